"""Sweeps over mini-batch sizes as a small network would give them: by formulas, and with errors, but without one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bnuq.estimates import Estimate
from bnuq.findings import note, warning
from bnuq.records.approximation import LayerCounts
from bnuq.studies.sweep.record import (
    BestOther,
    Decay,
    Elbo,
    ElboTerms,
    Protocol,
    Recommended,
    Repeated,
    Sweep,
    SweepPoint,
    SweptModel,
    SweptSet,
)

REFERENCE, TRAIN, SAMPLES, DRAW_SETS, UNITS = 4096, 50_000, 20, 5, 688
SIZES = (32, 64, 128, 256, 512, 1024, 4096)  # the last is the whole reference
OOD = ("svhn", "pcbdigits32")
SETS = (
    SweptSet("test", "test", 1000, "aa"),
    SweptSet("svhn", "ood", 900, "bb"),
    SweptSet("pcbdigits32", "ood", 800, "cc"),
)
NOISE = {"test": 1.5, "svhn": 5.5, "pcbdigits32": 1.6}  # c of MI = c/b · (N − b)/(N − 1), in nats


def decaying(size: int, of: str) -> float:
    """Mean mutual information by the law, in nats."""
    return NOISE[of] / size * (REFERENCE - size) / (REFERENCE - 1)


def repeated(value: float, random: np.random.Generator, *, mc: float, se: float, unit: bool = False) -> Repeated:
    """An estimate near `value`, whose draw sets differ by √R times `mc`; without an interval where both are 0."""
    of_sets = value + mc * math.sqrt(DRAW_SETS) * random.standard_normal(DRAW_SETS)
    of_sets = np.clip(of_sets, 0, 1) if unit else of_sets
    mean = float(of_sets.mean())
    error = float(of_sets.std(ddof=1)) / math.sqrt(DRAW_SETS)
    reach = 1.96 * math.hypot(se, error)
    return Repeated(Estimate(mean, se=se, mc_se=error, low=mean - reach, high=mean + reach), of_sets)


def classification_point(
    size: int, *, seed: int = 0, model: int = 0, protocol: Protocol = "single", elbo: bool = True, grows: float = 1.0
) -> SweepPoint:
    """A point at this size; MI is `grows` times that of the law."""
    random = np.random.default_rng([seed, size, model])
    degenerate = size == REFERENCE
    on = 0.0 if degenerate else 1.0
    information = {
        name: repeated(
            grows * decaying(size, name), random, mc=0.02 * grows * decaying(size, name),
            se=0.03 * grows * decaying(size, name),
        )
        for name in NOISE
    }  # fmt: skip
    test = {
        "accuracy": repeated(0.912 - 0.6 / size, random, mc=0.001 * on, se=0.009),
        "pll": repeated(-0.27 - 2.0 / size, random, mc=0.002 * on, se=0.02),
        "ece": repeated(0.022 + 0.2 / size, random, mc=0.001 * on, se=0.004),
        "predictive_entropy": repeated(0.2 + 1.5 / size, random, mc=0.001 * on, se=0.01),
    }
    estimates = {metric: {"test": one} for metric, one in test.items()} | {"mutual_information": information}
    told = {"svhn": 0.93 - 0.02 * math.log2(size / 32), "pcbdigits32": 0.56 - 0.02 * math.log2(size / 32)}
    auroc = {
        score: {
            name: repeated(
                0.5 if degenerate and score == "mutual_information" else max(value - shift, 0.5),
                random, mc=0.004 * on, se=0.012, unit=True,
            )
            for name, value in told.items()
        }
        for score, shift in (("mutual_information", 0.0), ("predictive_entropy", 0.03))
    }  # fmt: skip
    found = None if degenerate or not elbo else bound(size, random)
    trained = size if protocol == "matched" else 128
    return SweepPoint(model, protocol, size, trained, degenerate, estimates, auroc, found)


def bound(size: int, random: np.random.Generator, *, c: float = 0.6) -> Elbo:
    """The ELBO at a size: c/b nats an example are lost, and a unit's KL is that of unit information."""
    log_likelihood = -0.02 - c / size + 0.002 * random.standard_normal(SAMPLES * DRAW_SETS)
    expected = TRAIN * float(log_likelihood.mean())
    error = TRAIN * float(log_likelihood.std(ddof=1)) / math.sqrt(len(log_likelihood))
    kl = UNITS * (1 / size - 1 + math.log(size))
    return Elbo(Estimate(expected - kl, mc_se=error), Estimate(expected, mc_se=error), kl, log_likelihood)


def terms(**changed: Any) -> ElboTerms:
    layers = (LayerCounts("conv1", 32, 1024.0, 97.5, 310.0), LayerCounts("bn.2", 64, 64.0, 8.5, math.nan))
    made = ElboTerms(
        prior="unit", prior_parameters={}, counts="measured", kl_weight=1.0, train_size=TRAIN,
        reference_points=REFERENCE, points=500, units=UNITS, tau=None, layers=layers,
        c=Estimate(0.61, mc_se=0.02, low=0.57, high=0.65), predicted=Estimate(88.4, mc_se=2.9),
    )  # fmt: skip
    return replace(made, **changed)


def network(name: str = "resnet.pt", *, trained: int | None = 128, swept: bool = True, **changed: Any) -> SweptModel:
    decay = {
        of: Decay(Estimate(-1.0 - shift, se=0.02, low=-1.04 - shift, high=-0.96 - shift), 0.03, SIZES[:-1])
        for of, shift in (("test", 0.0), ("svhn", 0.02), ("pcbdigits32", 0.1))
    }
    made = SweptModel(
        name=name, path=f"/models/{name}", sha256="dd", train_batch_size=trained, parameters=464_154,
        batchnorm_layers=31, layers=("conv1", "bn.2"), elbo=terms() if swept else None, decay=decay if swept else {},
        record={"data": {"train": "train=/data/cifar10_train.npz"}, "rate": 0.5},
    )  # fmt: skip
    return replace(made, **changed)


def recommendation(points: Sequence[SweepPoint], size: int = 64, **changed: Any) -> Recommended:
    """Of `size`, by the ELBO of these points."""
    bounds = {point.batch_size: point.elbo for point in points if point.elbo is not None}
    best = bounds[size]
    behind = {
        b: Estimate(
            one.elbo.value - best.elbo.value,
            mc_se=TRAIN * float((one.log_likelihood - best.log_likelihood).std(ddof=1)) / math.sqrt(100),
        )
        for b, one in bounds.items()
    }
    tests = {point.batch_size: point.estimates for point in points if not point.degenerate}
    on_test = {}
    for metric, se in {"accuracy": 0.004, "pll": 0.01}.items() if "accuracy" in tests[size] else ():
        by = {b: each[metric]["test"].estimate.value for b, each in tests.items()}
        other = max(by.keys() - {size}, key=by.__getitem__)
        on_test[metric] = BestOther(other, by[size] - by[other], se)
    made = Recommended(
        batch_size=size, model=points[0].model, protocol=points[0].protocol, criterion="elbo", of="train",
        behind=behind, decided_by="likelihood and prior", predicted_batch_size=Estimate(88.4, mc_se=2.9), at_end="",
        on_test=on_test,
    )  # fmt: skip
    return replace(made, **changed)


def single() -> Sweep:
    """One network at seven sizes, of which the last is the whole reference."""
    points = tuple(classification_point(size) for size in SIZES)
    return swept(points, (network(),), recommendation(points))


def both() -> Sweep:
    """One network at seven sizes, and three networks, each at the size that it was trained with."""
    line = tuple(classification_point(size) for size in SIZES)
    matched = tuple(
        classification_point(size, model=number, protocol="matched", grows=1.3, seed=5)
        for number, size in enumerate((32, 128, 512), 1)
    )
    others = tuple(network(f"m{size}.pt", trained=size, decay={}) for size in (32, 128, 512))
    made = swept(line + matched, (network(), *others), recommendation(line))
    return replace(
        made, findings=(warning("few-values", batch_size=4, layer="bn1", values=8), note("bank-left-out", bank=8))
    )


def matched() -> Sweep:
    """Three networks alone, each at its own size, of which none has an ELBO but one, chosen by validation PLL."""
    points = tuple(
        classification_point(size, model=number, protocol="matched", elbo=number == 1)
        for number, size in enumerate((32, 128, 512))
    )
    models = tuple(network(f"m{size}.pt", trained=size, decay={}) for size in (32, 128, 512))
    chosen = Recommended(
        batch_size=512, model=2, protocol="matched", criterion="pll", of="validation",
        behind={32: Estimate(-0.06, mc_se=0.01), 128: Estimate(-0.01, mc_se=0.02), 512: Estimate(0.0, mc_se=0.0)},
        decided_by="data", predicted_batch_size=None, at_end="largest",
    )  # fmt: skip
    sets = (*SETS, SweptSet("validation", "validation", 300, "ee"))
    return replace(swept(points, models, chosen), sets=sets)


def regression() -> Sweep:
    """One small regression network at four sizes, with no OOD set and an ELBO that grows up to the largest."""
    points = []
    for size in (16, 32, 64, 128):
        random = np.random.default_rng(size)
        estimates = {
            "crps": repeated(1.5 + 2 / size, random, mc=0.01, se=0.1),
            "pll": repeated(-2.4 - 1 / size, random, mc=0.01, se=0.05),
            "rmse": repeated(3.1 + 4 / size, random, mc=0.01, se=0.3),
            "variance": repeated(40.0 / size, random, mc=0.5 / size, se=2.0 / size),
            "coverage95": repeated(0.94, random, mc=0.004, se=0.02),
        }
        points.append(
            SweepPoint(
                0, "single", size, 32, False, {metric: {"test": one} for metric, one in estimates.items()}, {},
                bound(size, random, c=60.0),
            )
        )  # fmt: skip
    decay = {"test": Decay(Estimate(-1.01, se=0.05, low=-1.2, high=-0.8), 0.02, (16, 32, 64, 128))}
    none = terms(
        tau=0.05, c=None, predicted=None, why_none="no size is too large for the law",
        prior="gaussian", prior_parameters={"mean": 0.0, "variance": 4.0}, counts="nominal", layers=(),
    )  # fmt: skip
    model = network("mlp.pt", trained=32, decay=decay, elbo=none)
    chosen = recommendation(points, 128, decided_by="prior", predicted_batch_size=None, at_end="largest")
    made = swept(tuple(points), (model,), chosen)
    return replace(made, task="regression", sets=(SweptSet("test", "test", 60, "aa"),), score="variance")


def swept(points: tuple[SweepPoint, ...], models: tuple[SweptModel, ...], chosen: Recommended | None) -> Sweep:
    return Sweep(
        task="classification", models=models, points=points, sets=SETS, samples=SAMPLES, draw_sets=DRAW_SETS, seed=0,
        score="mutual_information", recommended=chosen, findings=(),
        seconds={"load": 0.25, "total": 83.5}, provenance={"bnuq": "0.1.0", "torch": "2.13.0"},
    )  # fmt: skip


ALL = {"single": single, "both": both, "matched": matched, "regression": regression}
