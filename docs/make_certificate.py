"""`make certificate`: how often a certificate is broken, on real networks; writes docs/measured/certificate.md.

Predictions are made once; then validation points are drawn 1,000 times. Needs $BNUQ_TEST_DATA, the folder that
sample_configs/README.md describes. About five minutes of CPU time.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from make_figures import MEASURED, made_by, put, run_files
from torch import nn

import bnuq
from bnuq.config import Options, resolve
from bnuq.evaluation.certification import candidates_of
from bnuq.metrics import certificates
from bnuq.records.certificate import Certificate, certified
from bnuq.records.decisions import decided
from bnuq.records.evaluation import Result
from bnuq.records.evaluation_file import read
from bnuq.workflows.evaluate import evaluate

RISK, CONFIDENCE, DRAWS = 0.05, 0.95, 1000
HEAD = "| points | promise | validation points | made | accepted | broken, known population | broken, on all others |"


@dataclass(frozen=True)
class Population:
    """Points with fixed predictions: their scores, their losses (of a regression the scores are the errors), the part
    that each belongs to (0: none), and how many copies of each are in one group."""

    name: str
    scores: np.ndarray
    losses: np.ndarray | None = None
    part: np.ndarray | None = None
    copies: int = 1


def main() -> None:
    """Predict, draw, and write what came out."""
    named = os.environ.get("BNUQ_TEST_DATA")
    if not named:
        sys.exit("make certificate needs $BNUQ_TEST_DATA, the folder that sample_configs/README.md describes.")
    with run_files(Path(named).resolve()) as place, tempfile.TemporaryDirectory() as folder:
        results = dict(evaluated(Path(named).resolve(), place, Path(folder)))
    said = {name: [each.text for each in decided(result)] for name, result in results.items()}
    sentences = "\n".join(f"- {name}: {' '.join(texts[1:2])}" for name, texts in said.items())
    rows = "\n".join(row(*each) for each in studies(results))
    table = f"{HEAD}\n|{' --- |' * HEAD.count(' | ')} --- |\n{rows}"
    text = f"{made_by('make certificate')}\n\n{sentences}\n\n{table}"
    put(MEASURED / "certificate.md", "certificate", text)


# ── predictions, made once ───────────────────────────────────────────────────────────────────────────────────────────


def evaluated(pack: Path, place: Path, folder: Path) -> Iterator[tuple[str, Result]]:
    """The networks, each evaluated once with half of its test set as validation points."""
    halves = {"split_of": "test", "fraction": 0.5}
    asked: dict[str, Any] = {
        "risk": RISK,
        "confidence": CONFIDENCE,
        "samples": 16,
        "ood": (),
        "post_hoc": False,
    }
    for name, run_file, options in (
        ("Fashion-MNIST", "quickstart", {"test": "fashion-mnist:test", "data_root": pack, "methods": ("mcbn",)}),
        ("CIFAR-10, ResNet-20", "cifar_resnet20", {"methods": ("mcbn",)}),
    ):
        given = Options({**asked, **options, "each": "class", "validation": halves, "out": folder / f"{run_file}.h5"})
        yield name, evaluate(resolve(str(place / f"{run_file}.toml"), given, folder=place.parent))
    table = np.loadtxt(pack / "uci" / "power" / "data.csv", delimiter=",", skiprows=1)
    x, y = table[:, :-1].astype(np.float32), table[:, -1:].astype(np.float32)
    x, y = (x - x.mean(0)) / x.std(0), y.astype(np.float64)
    order = np.random.default_rng(0).permutation(len(x))
    train, test = order[:2000], order[2000:]
    network = trained(torch.from_numpy(x[train]), torch.from_numpy((y[train] - y[train].mean()) / y[train].std()))
    sets: dict[str, Any] = {name: {"x": x[rows], "y": y[rows]} for name, rows in (("train", train), ("test", test))}
    normalize = f"{y[train].mean()}/{y[train].std()}"
    asked |= {"methods": ("mcbn",), "batch_size": 64, "normalize_targets": normalize, "task": "regression"}
    bnuq.evaluate(network, **sets, **asked, out=folder / "power.h5", validation=halves)
    yield "UCI power, MLP", read(folder / "power.h5")


def trained(x: torch.Tensor, y: torch.Tensor) -> nn.Module:
    """A small network with BatchNorm, trained for a few seconds."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(x.shape[1], 50), nn.BatchNorm1d(50), nn.ReLU(), nn.Linear(50, 1))
    adam = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(40):
        for rows in torch.randperm(len(x)).split(64):
            adam.zero_grad()
            ((network(x[rows]) - y[rows].float()) ** 2).mean().backward()
            adam.step()
    return network.eval()


def studies(results: dict[str, Result]) -> Iterator[tuple[Population, str, int]]:
    """What is drawn from: populations, the promise in words, and the number of validation points."""
    clothes, cifar, power = results.values()
    fashion, classes = _whole("Fashion-MNIST", clothes), _predicted(clothes)
    for points in (300, 1000, 5000):
        yield fashion, "error of accepted points", points
    yield replace(fashion, part=1 + classes), "the same of each of 10 predicted classes", 5000
    yield replace(fashion, part=1 + np.arange(len(classes)) % 4), "the same of each of 4 known groups", 2000
    yield replace(fashion, copies=3), "groups of 3 copies as units", 1000
    yield _whole("CIFAR-10, ResNet-20", cifar), "error of accepted points", 400
    yield _whole("UCI power", power), "points outside their intervals", 1000


def _whole(name: str, result: Result) -> Population:
    """All labelled points of a result under its chosen method: test and validation points."""
    certification = result.certification
    assert certification is not None
    certificate, test = certification.chosen, result.methods[certification.method].sets["test"]
    if certificate.losses is None:
        assert certificate.test_errors is not None
        return Population(name, np.concatenate([certificate.scores, certificate.test_errors]))
    losses = np.concatenate([certificate.losses, 1 - test.points["accuracy"]])
    return Population(name, np.concatenate([certificate.scores, test.points[certificate.score]]), losses)


def _predicted(result: Result) -> np.ndarray:
    certification = result.certification
    assert certification is not None and certification.chosen.part is not None
    assert certification.chosen.test_part is not None
    return np.concatenate([certification.chosen.part, certification.chosen.test_part]) - 1


# ── promises, made and broken ────────────────────────────────────────────────────────────────────────────────────────


def row(population: Population, words: str, points: int) -> str:
    """How often some promise was made and broken: of points drawn with replacement, whose population is known exactly,
    and of a random part of the points, on all others."""
    random = np.random.default_rng(0)
    total, shares, broken, made = len(population.scores), [], [0, 0], 0
    for _ in range(DRAWS):
        chosen, choosing = random.integers(total, size=points), random.integers(total, size=min(points, 1000))
        made_here, broken_here, share = _promise(population, chosen, choosing, np.arange(total))
        made, broken[0] = made + made_here, broken[0] + broken_here
        shares.append(share)
        order = random.permutation(total)
        half, others = order[:points], order[points:]
        broken[1] += _promise(population, half, others, others)[1]
    ends = [certificates.exact_interval(count, DRAWS) for count in broken]
    cells = [
        f"{100 * count / DRAWS:.1f} % ({100 * low:.1f}–{100 * high:.1f})"
        for count, (low, high) in zip(broken, ends, strict=True)
    ]
    accepted = f"{100 * np.mean(shares):.1f} %"
    return f"| {' | '.join([population.name, words, f'{points:,}', f'{100 * made / DRAWS:.0f} %', accepted, *cells])} |"


def _promise(
    population: Population, chosen: np.ndarray, choosing: np.ndarray, future: np.ndarray
) -> tuple[bool, bool, float]:
    """Whether anything was promised by the chosen points, whether any of it is broken on the future ones, and the share
    of these that is accepted; candidates are of the points for `choosing`."""
    rows = np.repeat(chosen, population.copies)
    parts = 0 if population.part is None else int(population.part.max())
    is_of_width = population.losses is None
    certificate = certified(
        Certificate(
            score="absolute_error" if is_of_width else "least_confidence",
            names=("", *map(str, range(1, parts + 1))),
            thresholds=np.zeros(1),
            candidates=np.zeros(0) if is_of_width else candidates_of(population.scores[choosing]),
            scores=population.scores[rows],
            losses=None if population.losses is None else population.losses[rows],
            group=np.repeat(np.arange(len(chosen)), population.copies) if population.copies > 1 else None,
            part=None if population.part is None else population.part[rows],
        ),
        RISK,
        CONFIDENCE,
    )
    made = broken = False
    shares = []
    for number in range(1, parts + 1) if parts else (0,):
        of_part = future if number == 0 or population.part is None else future[population.part[future] == number]
        inside = population.scores[of_part] <= certificate.thresholds[number]
        shares.append(float(inside.mean()))
        if certificate.is_kept(number):
            wrong = ~inside if population.losses is None else population.losses[of_part][inside]
            made, broken = True, broken or float(np.mean(wrong)) > RISK
    return made, broken, float(np.mean(shares))


if __name__ == "__main__":
    main()
