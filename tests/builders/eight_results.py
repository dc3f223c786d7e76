"""Small results of eight kinds, made of networks in a folder, and one of every method."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import small_multilabel
import small_regression
import small_run
import small_segmentation
import torch
from cut_sets import write_samples
from made_up import with_estimates, with_test

import bnuq
from bnuq.records.evaluation import Result

OF_MASKS, OF_MODELS = ("mcbn", "mcdo", "mcbn+mcdo"), ("mcbn-chi2", "mcbn-gaussian", "mcbn-empirical")
EVERY = (*OF_MASKS, *OF_MODELS, "tta", "mcbn+tta", "laplace", "deterministic+own")


def quickstart(folder: Path) -> Result:
    place = write_samples(folder / "sample_configs", points=60)
    return small_run.evaluated(place, run_file="quickstart.toml", samples=8, out=folder / "out.h5")


def regression(folder: Path) -> Result:
    small_regression.write(folder)
    return small_regression.evaluated(folder)


def multilabel(folder: Path) -> Result:
    small_multilabel.write(folder)
    return small_run.evaluated(folder, out=folder / "out.h5")


def segmentation(folder: Path) -> Result:
    small_segmentation.write(folder)
    return small_segmentation.evaluated(folder, calibrate="cross")


def everything(folder: Path) -> Result:
    """Every method of one network, temperatures, five OOD sets."""
    small_run.write(folder)
    random = np.random.default_rng(5)
    for number in range(5):
        np.savez(folder / f"ood{number}.npz", x=random.normal(number, 1, (30, 1, 6, 6)).astype(np.float32))
    test = np.load(folder / "test.npz")
    np.savez(folder / "held_out.npz", x=test["x"] + 0.1, y=test["y"])
    sets = tuple(f"ood{number}.npz" for number in range(5))
    settings = {"methods": EVERY, "ood": sets, "validation": "held_out.npz", "augment": {"flip": True}}
    return small_run.evaluated(folder, out=folder / "out.h5", **settings)


def gain(folder: Path) -> Result:
    """A network whose samples explain the labels better than one pass."""
    result = quickstart(folder)
    mcbn = result.methods["mcbn"].sets["test"]
    for name in (name for name in result.methods if "mcbn" not in name and "mcdo" not in name):
        pll = mcbn.points["pll"] - 0.5 - 0.01 * np.cos(np.arange(len(mcbn.points["pll"])))
        plain = result.methods[name].sets["test"]
        estimate = replace(plain.estimates["pll"], value=float(pll.mean()))
        result = with_estimates(with_test(result, name, points=dict(plain.points) | {"pll": pll}), name, pll=estimate)
    return result


def broken(folder: Path) -> Result:
    """Running averages of another network."""
    small_run.write(folder)
    weights = torch.load(folder / "model.pt", weights_only=True)
    weights["1.running_mean"] += 2 * weights["1.running_var"].sqrt()
    torch.save(weights, folder / "model.pt")
    return small_run.evaluated(folder, out=folder / "out.h5", limit=50)


def unlabelled(folder: Path) -> Result:
    small_run.write(folder)
    np.savez(folder / "test.npz", x=np.load(folder / "test.npz")["x"])
    return small_run.evaluated(folder, out=folder / "out.h5")


def scored(_: Path) -> Result:
    """Predictions of two models, of three classes."""
    random = np.random.default_rng(0)
    labels = random.integers(3, size=500)
    logits = {name: random.normal(size=(500, 3)) + size * np.eye(3)[labels] for name, size in (("a", 3), ("b", 2.9))}
    return bnuq.score(logits, labels, outputs="logits", calibrate="cross").record


EIGHT = (quickstart, gain, regression, multilabel, segmentation, broken, unlabelled, scored)
