"""The data of sample_configs/ with fewer points, or smaller ones: what runs on them runs on all, in less time."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "bnuq" / "demo"


def write_set(source: Path, target: Path, points: int) -> None:
    """The first points of a set in an npz file."""
    with np.load(source) as arrays:
        np.savez(target, **{name: arrays[name][:points] for name in arrays})


def write_samples(place: Path, *, train: int = 512, points: int = 200) -> Path:
    """sample_configs/ as it ships, but for the demo, which is in quickstart/ there and in the run files: so many points
    of its reference and of each other set."""
    shutil.copytree(ROOT / "sample_configs", place, ignore=shutil.ignore_patterns("*.npz"))
    shutil.copytree(
        DEMO, place / "quickstart", ignore=shutil.ignore_patterns("*.npz", "*.toml", "__pycache__"), dirs_exist_ok=True
    )
    for path in DEMO.glob("*.npz"):
        write_set(path, place / "quickstart" / path.name, train if path.stem.endswith("train") else points)
    for path in (place / "quickstart.toml", place / "ci" / "bnuq.toml"):
        path.write_text(path.read_text(encoding="utf-8").replace("../bnuq/demo/", "quickstart/"), encoding="utf-8")
    return place


def write_scenes(place: Path, *, train: int = 24, test: int = 20, height: int = 24, width: int = 32) -> None:
    """Pictures of coloured bands, and the masks of the test set, laid out as CamVid: classes 0 to 10, 11 is void."""
    random = np.random.default_rng(0)
    colours = random.integers(0, 256, (12, 3))
    for folder, count in (("train", train), ("test", test)):
        (place / folder).mkdir(parents=True)
        (place / f"{folder}annot").mkdir()
        for number in range(count):
            bands = np.sort(random.integers(0, 12, (height // 4, width // 8)), axis=0)
            mask = bands.repeat(4, axis=0).repeat(8, axis=1).astype(np.uint8)
            noisy = colours[mask] + random.integers(-20, 21, (height, width, 3))
            for kind, pixels in (("", noisy.clip(0, 255)), ("annot", mask)):
                Image.fromarray(pixels.astype(np.uint8)).save(place / f"{folder}{kind}" / f"{number:02d}.png")
    names = "sky building pole road pavement tree sign_symbol fence car pedestrian bicyclist void"
    (place / "classes.txt").write_text("\n".join(names.split()) + "\n")
