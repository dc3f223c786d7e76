"""`make noise-models`: compares analytic noise models with MCBN, in the table of docs/measured/noise-models.md.

Needs $BNUQ_TEST_DATA, the folder that sample_configs/README.md describes. About half an hour on two cores; the results
are kept in docs/noise-models/, and what lies there is not evaluated again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from make_figures import DOCS, MEASURED, made_by, put, run_files

from bnuq import metrics
from bnuq.cli.progress import Bars
from bnuq.config import Options, resolve
from bnuq.estimates import Estimate
from bnuq.records.approximation import Approximation, approximations
from bnuq.records.evaluation import Result
from bnuq.records.evaluation_file import read
from bnuq.workflows.evaluate import evaluate

KEPT = DOCS / "noise-models"
NETWORKS = {
    "cifar_resnet20": ("ResNet-20, b = 128", {"batch_size": 128}),
    "fmnist_mlp": ("Fashion-MNIST MLP, b = 128", {}),
}


@dataclass(frozen=True)
class Variant:
    """One evaluation, in which noise models with these settings are compared with MCBN."""

    name: str
    methods: tuple[str, ...]
    sampler: dict[str, Any] = field(default_factory=dict)
    seed: int = 0


VARIANTS = (
    Variant("nominal", ("mcbn-chi2", "mcbn-gaussian"), {"counts": "nominal"}),
    Variant("measured", ("mcbn-chi2", "mcbn-gaussian"), {"counts": "measured"}),
    Variant("channel", ("mcbn-empirical",), {"covariance": "channel"}),
    Variant("layer8", ("mcbn-empirical",), {"covariance": "layer:8"}),
    Variant("layer", ("mcbn-empirical",), {"covariance": "layer"}),
    Variant("network", ("mcbn-empirical",), {"covariance": "network"}),
    Variant("again", ("mcbn",), seed=1),
)


def main() -> None:
    """Evaluate what is not there yet, and write what it gave."""
    named = os.environ.get("BNUQ_TEST_DATA")
    if not named:
        sys.exit("make noise-models needs $BNUQ_TEST_DATA, the folder that sample_configs/README.md describes.")
    KEPT.mkdir(exist_ok=True)
    with run_files(Path(named).resolve()) as place:
        for network, (_, options) in NETWORKS.items():
            for variant in VARIANTS:
                out = KEPT / f"{network}-{variant.name}.h5"
                if out.exists():
                    continue
                print(out.name, flush=True)
                asked = Options(
                    samples=32, methods=variant.methods, sampler=variant.sampler, seed=variant.seed, out=out
                )
                run = resolve(str(place / f"{network}.toml"), Options(asked | options), folder=place.parent)
                evaluate(run, progress=Bars())
    table = "\n".join(rows())
    text = f"{table}\n\nT = 32, ± Monte Carlo error. {made_by('make noise-models')}"
    put(MEASURED / "noise-models.md", "noise-models", text)


def rows() -> Iterator[str]:
    """The table: a row for each network and noise model."""
    head = "network | noise model | mean MI / mcbn's, test | on OOD | rank corr. of MI | PLL − mcbn's"
    yield f"| {head} | AUROC by MI − mcbn's |"
    yield "|" + " --- |" * 7
    for network, (title, _) in NETWORKS.items():
        for variant in VARIANTS:
            result = read(KEPT / f"{network}-{variant.name}.h5")
            if variant.name == "again":
                yield f"| {title} | `mcbn` with another seed | {_again(result, network)} |"
            for one in approximations(result):
                yield f"| {title} | {_noise_model(one.method, variant)} | {' | '.join(_cells(one))} |"


def _noise_model(method: str, variant: Variant) -> str:
    settings = ", ".join(f"{key} = {value}" for key, value in variant.sampler.items())
    return f"`{method}`, {settings}"


def _cells(one: Approximation) -> Iterator[str]:
    other = next(name for name in one.ratio if name != "test")
    yield shown(one.ratio["test"], 2)
    yield shown(one.ratio[other], 2)
    yield fixed(one.rank["test"], 2)
    assert one.pll is not None
    yield shown(one.pll, 4, sign=True)
    yield shown(one.auroc[other], 3, sign=True)


def _again(result: Result, network: str) -> str:
    """MCBN under another seed, beside MCBN: what Monte Carlo error alone leaves of an agreement."""
    first = read(KEPT / f"{network}-nominal.h5")
    ours, theirs = (one.methods["mcbn"] for one in (result, first))
    other = next(name for name in theirs.ood)
    means = [
        [method.sets[name].estimates["mutual_information"].value for method in (ours, theirs)]
        for name in ("test", other)
    ]
    rank = metrics.spearman(*(method.sets["test"].points["mutual_information"] for method in (ours, theirs)))
    pll = [method.sets["test"].estimates["pll"].value for method in (ours, theirs)]
    auroc = [method.ood[other]["mutual_information"]["auroc"].value for method in (ours, theirs)]
    cells = [fixed(a / b, 2) for a, b in means]
    changes = fixed(pll[0] - pll[1], 4, sign=True), fixed(auroc[0] - auroc[1], 3, sign=True)
    return " | ".join((*cells, fixed(rank, 2), *changes))


def shown(estimate: Estimate, digits: int, *, sign: bool = False) -> str:
    text = fixed(estimate.value, digits, sign=sign)
    return text if estimate.mc_se is None else f"{text} ± {fixed(estimate.mc_se, digits)}"


def fixed(value: float, digits: int, *, sign: bool = False) -> str:
    return f"{value:{'+' if sign else ''}.{digits}f}".replace("-", "−")


if __name__ == "__main__":
    main()
