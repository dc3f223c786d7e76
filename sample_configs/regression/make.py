"""Make the files of the regression example again: split the diabetes data, train the network, save both.

    python sample_configs/regression/make.py --out FOLDER

The data are those of Efron, Hastie, Johnstone & Tibshirani 2004 (Least Angle Regression): 442 patients, ten baseline
variables, and a measure of disease progression one year on, as scikit-learn ships them (`pip install scikit-learn`).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from mlp import small_mlp
from torch import nn

BATCH, EPOCHS, SEED = 32, 40, 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent, help="where the files go")
    folder = parser.parse_args().out
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True, scaled=False)
    order = np.random.default_rng(SEED).permutation(len(x))
    parts = {"train": order[:262], "validation": order[262:352], "test": order[352:]}
    names = ["age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6", "progression"]
    for name, rows in parts.items():
        table = np.column_stack([x[rows], y[rows]])
        np.savetxt(folder / f"diabetes_{name}.csv", table, delimiter=",", header=",".join(names), comments="", fmt="%g")
    torch.save(trained(x[parts["train"]], y[parts["train"]]).state_dict(), folder / "diabetes_mlp.pt")


def trained(x: np.ndarray, y: np.ndarray) -> nn.Module:
    """The network after training on standardised inputs and targets, by Adam on the squared error."""
    inputs = torch.tensor((x - x.mean(0)) / x.std(0), dtype=torch.float32)
    targets = torch.tensor((y - y.mean()) / y.std(), dtype=torch.float32)[:, None]
    torch.manual_seed(SEED)
    model = small_mlp(x.shape[1])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x)).split(BATCH):
            if len(rows) == BATCH:
                optimizer.zero_grad()
                nn.functional.mse_loss(model(inputs[rows]), targets[rows]).backward()
                optimizer.step()
    return model.eval()


if __name__ == "__main__":
    main()
