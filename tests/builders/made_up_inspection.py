"""Inspections as networks would give them: by the law of independent values, and made up beyond it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bnuq.estimates import Estimate
from bnuq.findings import note, warning
from bnuq.studies.inspect.record import (
    Crossing,
    Domain,
    Domains,
    Gap,
    Inspection,
    LayerGap,
    LayerNoise,
    NoiseBySize,
    PipelineFit,
    Pipelines,
    SiteRow,
)

BATCH, DRAWS, SIZES = 128, 16, (128, 64, 32, 16)
LINES = """[data]
normalize = { mean = [0.485, 0.456, 0.406], std = [0.229, 0.224, 0.225] }
augment = { pad = 4, crop = 32 } # flip = true: the statistics cannot tell
"""


def layers_of(blocks: int = 3) -> list[tuple[str, int, int]]:
    """Name, channels and positions of the BatchNorm layers of a residual network with so many blocks a stage."""
    found = [("bn1", 8, 1024)]
    for stage, (channels, positions) in enumerate(((8, 1024), (16, 256), (32, 64)), 1):
        found += [(f"layer{stage}.{b}.bn{n}", channels, positions) for b in range(blocks) for n in (1, 2)]
    return [*found, ("head.bn", 24, 1)]


def sites(blocks: int = 3, *, flagged: bool = False) -> tuple[SiteRow, ...]:
    rows = [
        SiteRow(name, "batchnorm", order, channels=channels, positions=positions, eps=1e-5, momentum=0.1, vanishing=0)
        for order, (name, channels, positions) in enumerate(layers_of(blocks))
    ]
    if flagged:
        rows[1] = SiteRow(
            rows[1].name, "batchnorm", 1, reason="it is frozen: it normalises by its running statistics in training",
            flags=("frozen",), channels=8, positions=1024, eps=1e-5, momentum=0.0, vanishing=0,
        )  # fmt: skip
        rows[2] = SiteRow(
            rows[2].name, "batchnorm", 2, flags=("never-trained",), channels=8, positions=1024, eps=1e-5, momentum=0.1,
            vanishing=0,
        )  # fmt: skip
        rows[3] = SiteRow(
            rows[3].name, "batchnorm", 3, flags=("not-finite", "vanishing"), channels=8, positions=1024, eps=1e-5,
            momentum=0.1, vanishing=3,
        )  # fmt: skip
    last = len(rows)
    return (
        *rows,
        SiteRow("drop", "dropout", last, p=0.5, variety="dropout"),
        SiteRow("drop2", "dropout", last + 1, reason="its rate is 0", p=0.0, variety="dropout"),
    )


def noise(blocks: int = 3, *, seed: int = 0) -> NoiseBySize:
    """Layers whose values are the less independent the more positions they have."""
    random = np.random.default_rng(seed)
    found = []
    for name, channels, positions in layers_of(blocks):
        nominal = BATCH * positions
        values = nominal / positions**0.6
        spread = random.chisquare(values - 1, (DRAWS, channels)) / values
        slope = -1 + 0.01 * random.standard_normal()
        variances = np.array([size**slope / (nominal / BATCH) ** 0.4 for size in SIZES])
        found.append(
            LayerNoise(
                name=name,
                channels=channels,
                positions=positions,
                nominal=nominal,
                sigma_u=1 / math.sqrt(2 * values),
                sigma_v=1 / math.sqrt(0.6 * values),
                values_mean=0.6 * values,
                values_deviation=values,
                rejected=1.0 if positions > 1 else 0.0,
                rejected_fitted=0.0,
                slope=Estimate(slope, mc_se=0.012, low=slope - 0.05, high=slope + 0.05),
                variances=variances,
                unbiased_scale=math.sqrt(nominal / (nominal - 1)),
                spread=spread,
            )
        )
    return NoiseBySize(BATCH, DRAWS, SIZES, tuple(found), Estimate(-0.41, mc_se=0.03, low=-0.48, high=-0.34))


def gap(blocks: int = 3, *, stale: float = 1.0, seed: int = 1) -> Gap:
    """`stale` is how many times the gap is what batch noise explains, in the third layer most of all."""
    random = np.random.default_rng(seed)
    rows = []
    for number, (name, channels, positions) in enumerate(layers_of(blocks)):
        explained = 0.2 / math.sqrt(BATCH * positions**0.4)
        times = 0.4 * stale * (2 if number == 3 else 1)
        rows.append(
            LayerGap(
                name=name,
                shift=times * explained * random.standard_normal(channels),
                log_ratio=times * 1.4 * explained * random.standard_normal(channels),
                explained_shift=explained,
                explained_log_ratio=1.4 * explained,
                ratio_mean=times,
                ratio_log_variance=1.1 * times,
                dead=2 if number == 5 and stale > 1 else 0,
            )
        )
    return Gap(points=10_000, batch_size=BATCH, worth=2432.0, passed=stale <= 1, layers=tuple(rows))


def domains() -> Domains:
    names = tuple(name for name, _, _ in layers_of())
    at = np.arange(len(names))
    found = (
        Domain("jpeg", "cifar10/jpeg", 4000, True, names, 0.02 + 0.0 * at, 0.03 + 0.0 * at, 1.5 + 0.05 * at),
        Domain("digits", "ood/digits.npz", 900, False, names, 0.5 / (1 + at), 0.6 / (1 + at), 40.0 / (1 + at)),
    )
    crossings = []
    for place, (domain, labelled) in enumerate((("jpeg", True), ("digits", False), ("test", True))):
        for other, statistics in enumerate(("running", "train", "jpeg", "digits", "mixed")):
            of = {"mutual_information": Estimate(0.02 + 0.01 * place + 0.003 * other, se=0.001, mc_se=0.0004)}
            if labelled:
                own = 0.03 if statistics == domain else -0.05 if statistics == "digits" else 0.0
                of["accuracy"] = Estimate(0.88 + own, se=0.006)
                of["pll"] = Estimate(-0.4 + own, se=0.01)
            crossings.append(Crossing(domain, statistics, of))
    return Domains(found, tuple(crossings), BATCH, 16)


IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def candidate(normalize: str | None, augment: str, worst: float, **other: Any) -> PipelineFit:
    mean, std = IMAGENET if normalize is not None else ((0.0,) * 3, (1.0,) * 3)
    held = {
        "mean": mean, "std": std, "channel_order": "rgb", "scale": 1, "median": 0.6 * worst,
        "worst_layer": "layer1.0.bn1", "passed": worst < 6, "tied": worst < 0.7,
    }  # fmt: skip
    return PipelineFit(normalize=normalize, augment=augment, worst=worst, **(held | other))


def pipelines() -> Pipelines:
    return Pipelines(
        candidates=(
            candidate("imagenet", "pad 4, crop 32", 0.58),
            candidate("imagenet", "pad 4, crop 32, flip", 0.59),
            candidate("cifar10", "pad 4, crop 32", 1.9),
            candidate("imagenet", "", 7.5),
            candidate("imagenet", "pad 4, crop 32", 21.0, channel_order="bgr"),
        ),
        first_round=(candidate(None, "", 60.0), candidate(None, "", 9000.0, scale=255)),
        undetermined=("flip: with and without it the statistics agree equally well",),
        lines=LINES,
    )


def inspection(**parts: Any) -> Inspection:
    held: dict[str, Any] = {
        "run": {
            "model": {"checkpoint": "resnet.pt", "arch": "resnet.py:net"},
            "data": {"train": "cifar10:train"},
            "sampling": {"seed": 0},
            "options": {"device": "cpu", "precision": "float32"},
        },
        "model": {
            "path": "/models/resnet.pt", "sha256": "ab" * 32, "task": "classification", "parameters": 269_722,
            "batchnorm_layers": 20, "dropout_layers": 2, "learned_layers": 0, "train_batch_size": 128,
        },
        "sites": sites(),
        "unreachable": (),
        "gap": None,
        "noise": None,
        "domains": None,
        "pipelines": None,
        "findings": (),
        "seconds": {"load": 0.21, "gap": 8.5, "total": 12.25},
        "provenance": {"bnuq": "0.1.0", "command": "bnuq inspect resnet.pt", "python": "3.11", "torch": "2.13.0"},
    }  # fmt: skip
    return Inspection(**(held | parts))


def bare() -> Inspection:
    """Of a network alone, without data."""
    return inspection(
        run=inspection().run | {"data": {}},  # type: ignore[operator]
        findings=(
            note("unmeasured", reason="this needs training data: name it with --train REF, or train under [data]"),
        ),
    )


def healthy() -> Inspection:
    return inspection(gap=gap(), noise=noise())


def whole() -> Inspection:
    """Everything that there is."""
    return inspection(gap=gap(), noise=noise(), domains=domains(), pipelines=pipelines())


def ill() -> Inspection:
    """Flagged layers, a reference that does not fit, and pipelines of which none does."""
    unfit = tuple(candidate("imagenet", "", worst, passed=False, tied=False) for worst in (8.5, 12.0))
    return inspection(
        sites=sites(flagged=True),
        unreachable=(("rnn", "dropout inside an LSTM cannot be reached"),),
        gap=gap(stale=20.0),
        noise=noise(),
        pipelines=Pipelines(unfit, (), (), ""),
        findings=(
            warning("reference-unchecked"),
            warning("never-trained", layers=["layer1.0.bn2"], evaluated=False),
            note("noise-on-the-same-points"),
        ),
    )


def long() -> Inspection:
    """57 BatchNorm layers."""
    return inspection(
        sites=sites(9),
        gap=gap(9, stale=20.0),
        noise=noise(9),
        model=inspection().model | {"batchnorm_layers": 56},  # type: ignore[operator]
    )


def unfinite() -> Inspection:
    """Nothing of it is a number."""
    bad = Estimate(math.nan, mc_se=math.inf)
    channel = np.array([math.nan, math.inf])
    layer = LayerNoise(
        "bn", 2, 1, 1, math.nan, math.inf, math.inf, math.nan, math.nan, math.nan, bad, np.array([0.0, math.nan]),
        math.inf, np.full((2, 2), math.nan),
    )  # fmt: skip
    other = LayerNoise(
        "bn2", 1, 1, 4, 0.0, 0.0, 0.0, math.inf, 0.5, 0.5, None, np.array([-1.0, 1.0]), 1.0, np.zeros((2, 1))
    )
    held = Estimate(-math.inf)
    return inspection(
        gap=Gap(10, 2, None, None, (LayerGap("bn", channel, channel, math.nan, math.inf, math.nan, math.inf, 0),)),
        noise=NoiseBySize(2, 2, (4, 2), (layer, other), bad),
        domains=Domains(
            (Domain("a", "a.npz", 1, False, ("bn", "bn2"), channel, channel, channel),),
            (Crossing("a", "running", {"accuracy": held, "mutual_information": bad}), Crossing("b", "mixed", {})),
            2,
            2,
        ),
        pipelines=Pipelines(
            (candidate("own", "", math.inf, median=math.nan),), (candidate("own", "", math.nan),), (), "a = 1"
        ),
    )


ALL = {
    "bare": bare, "healthy": healthy, "whole": whole, "ill": ill, "long": long, "unfinite": unfinite,
}  # fmt: skip
