"""BatchNorm in variational inference, after Mukhoti et al. 2020, §2: BatchNorm adds no term to the objective.

BatchNorm is a deterministic function of the weights and the mini-batch, so the divergence is that of the weights alone,
and the expected log-likelihood is that of the network with BatchNorm. What is measured: the objective that training
minimises, with the statistics of mini-batches, beside that of the network in use, with population statistics; and what
BatchNorm gains or costs in use. There are two such objectives. In the paper's eq. 3 one draw of the weights serves the
whole mini-batch; local reparametrisation draws for each point, which without BatchNorm has the same expectation, and
with BatchNorm has not, since the noise of the points is then part of the statistics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bnuq.estimates import Estimate
from bnuq.files.journal import Arrays
from bnuq.report import drawing
from bnuq.report.document import Picture, Report, ReportSection, Table, explanations
from bnuq.report.numbers import number, with_error
from experiments.learned.record import BnInVi, Comparison, Network, mean_of, reader, with_interval, written
from experiments.learned.record import summary as summary
from experiments.learned.running import Request, by_kind, described, job, trained
from experiments.learned.training import Job
from experiments.summary import report_of

TRAINED = {"point": "local reparametrisation", "batch": "eq. 3"}  # by how often weights are drawn in training
SHORT = {"mean-field": "VI", "dropout": "dropout"}  # by what is random
PUBLISHED: dict[str, Any] = {
    "source": "Mukhoti et al. 2020, On batch normalisation for approximate Bayesian inference, §2, without values",
    "of_networks": {},
}
_ESTIMATES = {  # of each network, by its name in the record and in the table
    "elbo_training": "ELBO of training",
    "elbo": "ELBO in use",
    "elbo_one_draw": "ELBO, one W for batch and point",
    "kl": "KL",
    "nll_samples": "test NLL of samples",
    "nll": "test NLL",
    "accuracy_samples": "accuracy of samples",
}
_COMPARED = ("elbo", "kl", "nll_samples")  # with and without BatchNorm
read = reader(BnInVi)


def jobs(request: Request, of: str) -> Iterator[Job]:
    """Every network, from several seeds."""
    for per, trained_by in TRAINED.items():
        for batch_norm in (False, True):
            for seed in range(request.seed, request.seed + request.seeds):
                options = {"batch_norm": batch_norm, "units": request.width, "per": per, "noise": request.noise}
                values: dict[str, Any] = {"options": tuple(options.items()), "learned": True, "mcbn": batch_norm}
                name = _name(request.noise, trained_by, batch_norm=batch_norm)
                yield job(request, of, name, function="dense", seed=seed, **values)


def _name(noise: str, trained_by: str, *, batch_norm: bool) -> str:
    return f"{SHORT[noise]} {'with' if batch_norm else 'without'} BN, {trained_by}"


def reproduce(request: Request) -> BnInVi:
    """Train every network, measure it, write the record to `request.out`, and give it."""
    with trained(request, lambda of: list(jobs(request, of))) as found:
        networks, differences = [], {}
        for of in request.sets:
            kinds = {name: arrays for (its, name), arrays in by_kind(found).items() if its == of}
            by_name = {name: [*map(_measured, arrays)] for name, arrays in kinds.items()}
            for name, each in by_name.items():
                seconds = sum(float(arrays["seconds"]) for arrays in kinds[name])
                networks.append(Network(of, name, _means(each), (), len(each), seconds))
            for trained_by in TRAINED.values():
                with_bn, without = (by_name[_name(request.noise, trained_by, batch_norm=bn)] for bn in (True, False))
                differences[f"{of}: training − use, {trained_by}"] = {
                    key: _mean([_minus(each[key], each["elbo"]) for each in with_bn])
                    for key in ("elbo_training", "elbo_one_draw")
                }
                differences[f"{of}: with − without BN, {trained_by}"] = {
                    key: _mean([_minus(a[key], b[key]) for a, b in zip(with_bn, without, strict=True)])
                    for key in _COMPARED
                }
        return written(
            BnInVi,
            request.out,
            experiment={**described(request), "noise": request.noise},
            published=PUBLISHED,
            networks=networks,
            differences=differences,
            seconds={"training": float(sum(measured["seconds"] for measured in found.values()))},
        )


def _measured(arrays: Arrays) -> dict[str, Estimate]:
    """The estimates of one network with their Monte Carlo errors; those of training in nats per point."""
    kl = float(arrays["kl"])

    def elbo(of: str) -> Estimate:
        mean = mean_of(arrays[of])
        return Estimate(mean.value - kl, mc_se=mean.se)

    found = {
        "elbo_training": elbo("training"),
        "elbo": elbo("use"),
        "kl": Estimate(kl),
        "nll": Estimate(-float(arrays["single"].mean())),
        "nll_samples": Estimate(-float(arrays["samples"].mean())),
        "accuracy_samples": Estimate(float(arrays["samples_right"].mean())),
    }
    return found | ({"elbo_one_draw": elbo("one_draw")} if "one_draw" in arrays else {})


def _minus(one: Estimate, other: Estimate) -> Estimate:
    return Estimate(one.value - other.value, mc_se=float(np.hypot(one.mc_se or 0.0, other.mc_se or 0.0)) or None)


def _mean(of_seeds: Sequence[Estimate]) -> Estimate:
    """The mean over seeds with its standard error over seeds, and the part of that which is Monte Carlo's."""
    mean = mean_of(np.array([each.value for each in of_seeds]))
    squares = sum((each.mc_se or 0.0) ** 2 for each in of_seeds)
    return Estimate(mean.value, se=mean.se, mc_se=squares**0.5 / len(of_seeds) or None)


def _means(networks: Sequence[Mapping[str, Estimate]]) -> dict[str, Estimate]:
    return {key: _mean([each[key] for each in networks]) for key in networks[0]}


# ── the report ───────────────────────────────────────────────────────────────────────────────────────────────────────


def report(record: Comparison, *, columns: int = 100) -> Report:  # noqa: ARG001 - every report has it
    """The report: the ELBO and its parts with and without BatchNorm, and what is found on the test set."""
    setup = record.experiment
    return report_of(
        record,
        facts=(
            ("source", f"{record.published['source']}."),
            (
                "network",
                f"two hidden layers of {setup['width']} units, "
                f"{'dropout of 0.2 before the second and third' if _is_dropout(record) else 'mean-field'}; "
                "prior N(0, 1/inputs)",
            ),
            (
                "trained",
                f"on the first {setup['images']:,} images of each set, {setup['epochs']} epochs of Adam, mini-batches "
                f"of 32; {setup['seeds']} seeds; each network by local reparametrisation and by eq. 3, one draw of the "
                "weights for a mini-batch",
            ),
            ("samples", f"{setup['samples']}, of at most {setup['limit']:,} test points"),
            ("time", f"{record.seconds['training'] / 60:.0f} min of CPU time"),
        ),
        summary=sentences(record),
        sections=_sections(record),
    )


def sentences(record: Comparison) -> Iterator[str]:
    """The differences with their 95 % intervals over seeds."""
    for name, estimates in record.differences.items():
        for key, change in estimates.items():
            label = "ELBO" if key.startswith("elbo_") else _ESTIMATES[key]
            of = name.replace("training", "one W for batch and point") if key == "elbo_one_draw" else name
            yield f"{label}, {of}: {_interval(change, record.experiment['seeds'])}."
        if "elbo_one_draw" in estimates:
            change = estimates["elbo_training"].value - estimates["elbo_one_draw"].value
            yield f"ELBO, {name.replace('use', 'one W for batch and point')}: {number(change, 4)}."
    if _is_dropout(record):
        yield (
            "That BatchNorm leaves the objective of MC dropout as it is holds of its prior term, which is that of the "
            "weights alone; what training minimises differs from the objective in use wherever an interval above "
            "leaves out 0. No number is published; network and data are bnuq's own."
        )
        return
    yield (
        "BatchNorm adds no term to the objective: the divergence is that of the weights, which scale and shift of "
        "BatchNorm, being no random variables, are not part of."
    )


def _is_dropout(record: Comparison) -> bool:
    return record.experiment.get("noise") == "dropout"


def _interval(change: Estimate, seeds: int) -> str:
    change = with_interval(change, seeds)
    low, high = change.low, change.high
    if low is None or high is None:
        return f"{number(change.value, 4)} (one seed)"
    verdict = "no difference is shown" if low <= 0 <= high else "more" if change.value > 0 else "less"
    drawn = "" if change.mc_se is None else f"; Monte Carlo ±{number(change.mc_se, 4)}"
    return f"{number(change.value, 4)} ({number(low, 4)} to {number(high, 4)}{drawn}): {verdict}"


def _sections(record: Comparison) -> Iterator[ReportSection]:
    about = (
        "The ELBO per training point as trained and in use, its divergence, and the NLL of samples, with and without "
        "BatchNorm; bars are standard errors over seeds."
    )
    yield ReportSection("The ELBO and its parts", (Picture((record.KIND,), partial(_draw, record), about),))
    for of in record.experiment["sets"]:
        rows = tuple(
            (_in_short(each.name), tuple(with_error(_over_seeds(each.estimates.get(key)), 4) for key in _ESTIMATES))
            for each in record.networks
            if each.set == of
        )
        yield ReportSection(of, (Table(tuple(_ESTIMATES.values()), rows, stacks=True),))
    legend = (
        "± standard error over seeds. ELBO and KL in nats per training point. ELBO of training: weights drawn as in "
        "training (local reparametrisation, in the table local: for each point; eq. 3: once for a mini-batch), "
        "BatchNorm with the statistics of the mini-batch of 32 that the point is in. In use: with running statistics. "
        "One W for batch and point: weights drawn once, statistics of a mini-batch that the point is not in, as MCBN "
        "samples. KL of dropout: without the entropy of its masks, a constant. Test NLL: of the mean weights; of "
        "samples: of the mean probability over weights, and with BatchNorm over mini-batches too."
    )
    yield ReportSection("", tuple(explanations([legend])))


def _in_short(name: str) -> str:
    return name.replace("local reparametrisation", "local")


def _over_seeds(estimate: Estimate | None) -> Estimate | None:
    """Without the Monte Carlo error, which the spread over seeds holds already."""
    return None if estimate is None else Estimate(estimate.value, se=estimate.se)


def _draw(record: Comparison, path: Path) -> None:
    sets = record.experiment["sets"]
    shades = ("0.6", drawing.INK, "0.85", drawing.GREY)
    parts = ("elbo_training", "elbo", "kl", "nll_samples")
    with drawing.picture(
        path,
        title=f"{'MC dropout' if _is_dropout(record) else 'Mean-field VI'} with and without BatchNorm",
        about=f"nats per point; {record.experiment['seeds']} seeds, ± 1 standard error",
        columns=len(sets),
        size=(5.2, 3.4),
    ) as panels:
        for axes, of in zip(panels, sets, strict=True):
            networks = [each for each in record.networks if each.set == of]
            for number_, network in enumerate(networks):
                places = np.arange(len(parts)) + 0.2 * number_ - 0.3
                values = [network.estimates[part] for part in parts]
                axes.bar(
                    places, [each.value for each in values], 0.18, yerr=[each.se or 0.0 for each in values],
                    color=shades[number_], capsize=2, label=network.name,
                )  # fmt: skip
            axes.set_xticks(np.arange(len(parts)), [_ESTIMATES[part] for part in parts])
            axes.axhline(0, color=drawing.GREY, linewidth=0.8)
            axes.set_title(of)
            axes.legend(loc="lower right", fontsize="x-small", handlelength=0.8)
