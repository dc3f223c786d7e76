"""Does diabetes progress fast? Rows of ten measurements behind a label, and a dense network."""

import numpy as np
import torch
from fit import fit
from torch import nn


def network(inputs=10):
    return nn.Sequential(
        *(nn.Linear(inputs, 50), nn.BatchNorm1d(50), nn.ReLU(), nn.Dropout(0.1)),
        *(nn.Linear(50, 50), nn.BatchNorm1d(50), nn.ReLU(), nn.Dropout(0.1), nn.Linear(50, 2)),
    )


if __name__ == "__main__":
    for name in ("test", "train"):
        rows = np.loadtxt(f"sample_configs/regression/diabetes_{name}.csv", delimiter=",", skiprows=1)
        x, y = rows[:, :-1], (rows[:, -1] > 140).astype(int)
        table = np.column_stack([y, x])
        header = "outcome,age,sex,bmi,bp,s1,s2,s3,s4,s5,s6"
        np.savetxt(f"patients_{name}.csv", table, delimiter=",", fmt="%.5g", header=header, comments="")
    torch.manual_seed(0)
    model = network()
    standardised = torch.from_numpy((x - x.mean(0)) / x.std(0)).float()
    fit(model, standardised, torch.from_numpy(y), nn.functional.cross_entropy, epochs=20)
    torch.save(model.state_dict(), "patients.pt")
