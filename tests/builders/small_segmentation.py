"""A network so small that a segmentation is evaluated in a fraction of a second: its pictures, masks and run file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from bnuq.config import Options, resolve
from bnuq.records.evaluation import Result
from bnuq.workflows.evaluate import evaluate

NET = '''"""A tiny network that classifies each pixel."""

from torch import nn


def net(classes: int = 3, rate: float = 0.4, stride: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1, stride=stride, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Dropout2d(rate),
        nn.Conv2d(6, classes, 1),
    )
'''

RUN = """[model]
checkpoint = "model.pt"
arch = "net.py:net"
train_batch_size = 8

[data]
train = "train"
test = "test:masks"
ood = ["strange.npz", "anomalies.npz"]
ignore = 255
normalize = { mean = [0.5, 0.5, 0.5], std = [0.3, 0.3, 0.3] }

[sampling]
samples = 8
methods = ["mcbn", "mcdo"]
"""

CLASSES, IGNORE, HEIGHT, WIDTH = 3, 255, 8, 12
TRAIN, TEST, OTHER, SAMPLES = 24, 20, 6, 8


def write(folder: Path, *, text: str = RUN) -> Path:
    """Everything that `bnuq evaluate run.toml` needs, in `folder`; the path of the run file.

    The test set is there as folders, test:masks, and as test.npz. One of its images is ignored throughout, and the
    last class does not occur in most images. Of the OOD sets strange.npz has no masks, anomalies.npz has some.
    """
    folder.mkdir(exist_ok=True)
    (folder / "net.py").write_text(NET)
    random = np.random.default_rng(0)
    train, test, strange, anomalies = (pictures(random, count) for count in (TRAIN, TEST, OTHER, OTHER))
    model = network()
    torch.save(model.state_dict(), folder / "model.pt")
    with torch.no_grad():
        masks = model((torch.from_numpy(test).float().permute(0, 3, 1, 2) / 255 - 0.5) / 0.3).argmax(1).numpy()
    wrong = random.random(masks.shape) < 0.15
    masks[wrong] = random.integers(0, CLASSES, wrong.sum())
    masks[random.random(masks.shape) < 0.1] = IGNORE
    masks[3] = IGNORE
    for name, images in (("train", train), ("test", test)):
        write_pictures(folder / name, images)
    write_pictures(folder / "masks", masks)
    np.savez(folder / "test.npz", x=first_channel(test), y=masks)
    np.savez(folder / "strange.npz", x=first_channel(random.integers(0, 256, strange.shape, dtype=np.uint8)))
    where = np.zeros(anomalies.shape[:3], np.int64)
    where[:, 2:5, 3:9] = 1
    where[:, 0] = IGNORE
    anomalies[where == 1] = random.integers(0, 256, ((where == 1).sum(), 3))
    np.savez(folder / "anomalies.npz", x=first_channel(anomalies), y=where)
    (folder / "run.toml").write_text(text)
    return folder / "run.toml"


def pictures(random: np.random.Generator, count: int) -> np.ndarray:
    """Pictures (n, H, W, 3), uint8, of smooth colours."""
    coarse = random.integers(40, 216, (count, HEIGHT // 4, WIDTH // 4, 3))
    fine = np.repeat(np.repeat(coarse, 4, axis=1), 4, axis=2) + random.integers(-20, 20, (count, HEIGHT, WIDTH, 3))
    return fine.astype(np.uint8)


def first_channel(images: np.ndarray) -> np.ndarray:
    """Pictures (n, H, W, 3) as arrays are given: (n, 3, H, W) in [0, 1]."""
    return (images.transpose(0, 3, 1, 2) / 255).astype(np.float32)


def write_pictures(folder: Path, images: np.ndarray) -> None:
    """PNG files of pictures, or of masks (n, H, W)."""
    folder.mkdir(exist_ok=True)
    for number, image in enumerate(images):
        Image.fromarray(image.astype(np.uint8)).save(folder / f"{number:02d}.png")


def network(**arch_args: Any) -> nn.Sequential:
    """The network with the weights and running statistics of model.pt, in evaluation mode."""
    namespace: dict[str, Any] = {}
    exec(NET, namespace)
    images = torch.from_numpy(pictures(np.random.default_rng(1), 32)).float().permute(0, 3, 1, 2) / 255
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = namespace["net"](**arch_args)
        nn.init.normal_(model[4].weight, std=1.5)
        model[1].momentum = None  # a plain average
        model.train()
        with torch.no_grad():
            for _ in range(8):
                model((images[torch.randperm(len(images))[:8]] - 0.5) / 0.3)
    return model.eval()


def evaluated(folder: Path, *, run_file: str = "run.toml", out: str = "out.h5", **options: Any) -> Result:
    """The result of the run file in `folder`, with these options."""
    return evaluate(resolve(run_file, Options(out=folder / out, **options), folder=folder))
