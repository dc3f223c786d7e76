"""Photographs of mixed sizes in class folders, and a network trained on their centres of 28 x 28 pixels."""

from pathlib import Path

import numpy as np
import torch
from fit import fit
from PIL import Image
from torch import nn


def network(num_classes=10):
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, stride=2), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Flatten(), nn.Dropout(0.3), nn.Linear(1152, num_classes)),
    )


def write(folder, points):
    arrays = np.load(f"bnuq-demo/fashion_{folder}.npz")
    for i, (pixels, label) in enumerate(zip(arrays["x"][:points, 0], arrays["y"], strict=False)):
        path = Path(folder, f"class{label}", f"{i:04}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).convert("RGB").resize((40 + i % 13, 40 + i % 7)).save(path)


def prepared(path):  # the shorter side to 32 pixels, the centre of 28 x 28, 0 to 1, normalised
    image = Image.open(path)
    scale = 32 / min(image.size)
    image = image.resize([int(side * scale) for side in image.size], Image.Resampling.BILINEAR)
    left, top = (image.width - 28) // 2, (image.height - 28) // 2
    pixels = np.asarray(image.crop((left, top, left + 28, top + 28))) / 255
    return torch.from_numpy((pixels.transpose(2, 0, 1) - 0.5) / 0.5).float()


if __name__ == "__main__":
    write("train", 1000)
    write("test", 400)
    paths = sorted(Path("train").rglob("*.png"))
    torch.manual_seed(0)
    model = network()
    labels = torch.tensor([int(path.parent.name[-1]) for path in paths])
    fit(model, torch.stack([prepared(path) for path in paths]), labels, nn.functional.cross_entropy, epochs=16)
    torch.save(model.state_dict(), "clothes.pt")
