"""What is it like? A network with one logit for each of four labels, of which an image may have several or none."""

import numpy as np
import torch
from fit import fit
from torch import nn

LABELS = {"upper body": (0, 2, 3, 4, 6), "long sleeves": (2, 4), "shoe": (5, 7, 9), "for summer": (0, 3, 5)}


def network():
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, stride=2), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Flatten(), nn.Dropout(0.3), nn.Linear(1152, len(LABELS))),
    )


if __name__ == "__main__":
    for name in ("test", "train"):
        with np.load(f"bnuq-demo/fashion_{name}.npz") as arrays:
            x, y = arrays["x"], np.stack([np.isin(arrays["y"], classes) for classes in LABELS.values()], axis=1)
        np.savez(f"attributes_{name}.npz", x=x, y=y, classes=list(LABELS))  # y: 0 or 1, one column a label
    torch.manual_seed(0)
    model = network()
    images, labels = torch.from_numpy(x / 255).float(), torch.from_numpy(y).float()
    fit(model, images, labels, nn.functional.binary_cross_entropy_with_logits, epochs=20)
    torch.save(model.state_dict(), "attributes.pt")
