"""`make worth`: every method beside free baselines on eight networks and an ensemble; writes docs/measured/worth.md.

Needs $BNUQ_TEST_DATA, the folder that sample_configs/README.md describes. About half an hour on two cores; the results
are kept in docs/worth/, and what lies there is not evaluated again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from make_demo import cut_sets
from make_figures import DOCS, MEASURED, made_by, put, run_files
from torch import nn

import bnuq
from bnuq.cli.progress import Bars
from bnuq.config import Options, resolve_ensemble
from bnuq.metrics.registry import metric_of
from bnuq.records.comparisons import MethodComparison, passes_of
from bnuq.records.decisions import decided, judged
from bnuq.records.evaluation import Result
from bnuq.records.evaluation_file import read
from bnuq.report.numbers import digits_of, number, signed
from bnuq.workflows.evaluate import evaluate

KEPT = DOCS / "worth"
ALL = ("mcbn", "mcdo", "mcbn+mcdo", "tta", "laplace")
ONLY_BATCHNORM = ("mcbn", "tta", "laplace")


def main() -> None:
    """Evaluate what is not there yet, and write what it gave."""
    named = os.environ.get("BNUQ_TEST_DATA")
    if not named:
        sys.exit("make worth needs $BNUQ_TEST_DATA, the folder that sample_configs/README.md describes.")
    KEPT.mkdir(exist_ok=True)
    results: dict[str, Result] = {}
    with run_files(Path(named).resolve()) as place:
        for title, evaluated in networks(Path(named).resolve(), place).items():
            out = KEPT / f"{title.replace(' ', '_').replace(',', '')}.h5"
            if not out.exists():
                print(out.name, flush=True)
                evaluated(out)
            results[title] = read(out)
    text = "\n\n".join(section(title, result) for title, result in results.items())
    put(MEASURED / "worth.md", "worth", f"{made_by('make worth')}\n\n{text}")


def networks(pack: Path, place: Path) -> dict[str, Callable[[Path], object]]:
    """What is evaluated, by its title, each as a function of the file that the result goes to."""

    def shipped(name: str, *others: str, **options: object) -> Callable[[Path], object]:
        def evaluated(out: Path) -> object:
            asked = Options({"samples": 32, "calibrate": "cross", "out": out} | options)
            models = str(place / f"{name}.toml"), *(str(pack / "checkpoints" / other) for other in others)
            return evaluate(resolve_ensemble(models, asked, folder=place.parent), progress=Bars())

        return evaluated

    archs = tuple(f"{place / 'architectures/cifar_resnet.py'}:resnet{depth}" for depth in (20, 32, 56))
    digits, pictures = str(pack / "ood/pcbdigits32.npz"), str(pack / "cifar10/lossless_test.npz")
    return {
        "ResNet-20, b = 32": shipped("cifar_resnet20", methods=(*ONLY_BATCHNORM, "mcbn+tta"), batch_size=32),
        "ResNet-20, b = 128": shipped("cifar_resnet20", methods=ONLY_BATCHNORM, batch_size=128),
        "ResNet-32, b = 32": shipped("cifar_resnet32", methods=("mcbn", "laplace"), batch_size=32),
        "ResNet-56, b = 32": shipped("cifar_resnet56", methods=("mcbn", "laplace"), batch_size=32),
        "Ensemble of ResNet-20, -32 and -56": shipped(
            "cifar_resnet20",
            "resnet32-d509ac18.th",
            "resnet56-4bfd9763.th",
            methods=("mcbn", "ensemble"),
            batch_size=32,
            arch=archs,
        ),
        "Fashion-MNIST CNN of the demo": shipped("quickstart", methods=ALL, calibrate="validation"),
        "Fashion-MNIST MLP": shipped("fmnist_mlp", methods=("mcbn", "laplace"), limit=2000),
        "SVHN CNN on printed digits": shipped(
            "svhn_cnn", methods=("mcbn", "mcdo", "mcbn+mcdo", "laplace"), train=digits, test=digits, ood=(pictures,)
        ),
        "Transformer without BatchNorm and dropout": partial(transformer_evaluated, pack),
    }


class Transformer(nn.Module):
    """A small vision transformer: patches of 4 × 4, two layers of width 64, no BatchNorm, no dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 64, 4, stride=4)
        self.places = nn.Parameter(0.02 * torch.randn(1, 49, 64))
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True) for _ in "12")
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.places
        for layer in self.layers:
            tokens = layer(tokens)
        return self.head(tokens.mean(1))


def transformer_evaluated(pack: Path, out: Path) -> object:
    """Train the transformer on the pictures of the demo's training for a minute, and evaluate it in memory."""
    sets = {}
    for name, (images, labels) in cut_sets(pack).items():
        x = torch.from_numpy(np.array(images)).float().div(255).sub(0.2860).div(0.3530)
        sets[name] = x, torch.from_numpy(np.array(labels))
    torch.manual_seed(0)
    network = Transformer()
    x, y = sets["fashion_train"]
    optimizer = torch.optim.AdamW(network.parameters(), 1e-3, weight_decay=0.05)
    for _ in range(20):
        for rows in torch.randperm(len(x)).split(128):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()
            optimizer.step()
    data = {name: torch.utils.data.TensorDataset(*tensors) for name, tensors in sets.items()}
    return bnuq.evaluate(
        network.eval(),
        train=data["fashion_train"],
        test=data["fashion_test"],
        ood={"mnist": data["mnist"]},
        methods=("laplace",),
        samples=32,
        calibrate="cross",
    ).save(out)


def section(title: str, result: Result) -> str:
    """The decisions on one network, and its table."""
    verdict = judged(result)
    todo = "\n".join(f"- {decision.text}" for decision in decided(result))
    columns = list(dict.fromkeys((each.metric, each.set) for each in verdict.comparisons))
    heads = [f"{metric_of(m).arrow} {metric_of(m).label}{f' of {of}' if m == 'auroc' else ''}" for m, of in columns]
    rows = [f"| method | passes | {' | '.join(heads)} |", f"|{' --- |' * (2 + len(heads))}"]
    for method in result.methods:
        cells = (cell(method, metric, of, verdict.comparisons) for metric, of in columns)
        rows.append(f"| {method} | {passes_of(method, result)} | {' | '.join(cells)} |")
    return "\n\n".join([f"## {title}", todo, "\n".join(rows)])


def cell(method: str, metric: str, of_set: str, comparisons: tuple[MethodComparison, ...]) -> str:
    """An estimate, by the best score of the method, and its difference to the best of a single pass."""
    here = [each for each in comparisons if (each.metric, each.set) == (metric, of_set)]
    of_method = [each for each in here if each.method == method]
    digits = digits_of(metric, [each.value for each in here])
    if here and here[0].against == method:
        score = f" ({metric_of(here[0].score_of_against).label})" if here[0].score_of_against else ""
        return f"**{number(here[0].value_of_against, digits)}**{score}"
    if not of_method:
        return "–"
    best = max(of_method, key=lambda each: each.gain)
    score = f" ({metric_of(best.score).label})" if best.score else ""
    error = "" if best.se is None else f" ± {number(best.se, digits)}"
    mark = "\\*" if best.is_better or best.is_worse else ""
    return f"{number(best.value, digits)}{score}<br>{signed(best.difference, digits)}{error}{mark}"


if __name__ == "__main__":
    main()
