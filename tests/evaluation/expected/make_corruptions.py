"""Writes corruptions.npz: pictures by the package imagecorruptions 1.1.2, which the tests compare bnuq's with.

In an environment of its own: pip install imagecorruptions==1.1.2 opencv-python-headless "setuptools<80"
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from imagecorruptions import corruptions  # pyrefly: ignore
from PIL import Image

SEVERITIES, HEIGHT, WIDTH = (1, 3, 5), 24, 20
STEP = 2  # every second row and column is kept
DETERMINISTIC = {
    "defocus": "defocus_blur", "motion": "motion_blur", "contrast": "contrast", "brightness": "brightness",
    "pixelate": "pixelate", "jpeg": "jpeg_compression",
}  # fmt: skip
NOISE = {"gaussian": "gaussian_noise", "shot": "shot_noise", "impulse": "impulse_noise"}
GREYS = (26, 128, 217)  # levels of the even pictures whose noise is measured


def picture() -> np.ndarray:
    """Soft colours, a dark square, a bright bar and a black corner."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    soft = [128 + 90 * np.sin(x / 4 + k) * np.cos(y / (5 + k)) for k in range(3)]
    levels = np.stack(soft, -1).round().astype(np.uint8)
    levels[4:10, 3:9] = (40, 20, 90)
    levels[14:17] = (250, 240, 180)
    levels[:2, -3:] = 0
    return levels


def main() -> None:
    levels = picture()
    arrays = {"picture": levels}
    for name, function in DETERMINISTIC.items():
        given = Image.fromarray(levels) if name in ("pixelate", "jpeg") else levels
        if name == "motion":  # whose line is longer than the picture
            given = np.tile(levels, (2, 3, 1))
        made = []
        for severity in SEVERITIES:
            np.random.seed(severity)  # of the angle of a motion
            made.append(np.array(getattr(corruptions, function)(given, severity)).round()[::STEP, ::STEP])
        arrays[name] = np.stack(made).astype(np.uint8)
    angles = []
    for severity in SEVERITIES:
        np.random.seed(severity)
        angles.append(np.random.uniform(-45, 45))
    arrays["angles"] = np.array(angles)
    for name, function in NOISE.items():
        np.random.seed(0)
        made = [
            [getattr(corruptions, function)(np.full((400, 400, 1), level, np.uint8), severity) for level in GREYS]
            for severity in range(1, 6)
        ]
        values = np.array(made).reshape(5, len(GREYS), -1) / 255
        arrays[name] = np.stack([values.mean(-1), values.std(-1), (values == 0).mean(-1), (values == 1).mean(-1)], -1)
    np.savez_compressed(Path(__file__).with_name("corruptions.npz"), **arrays)


if __name__ == "__main__":
    main()
