"""BatchNorm in variational inference, after Mukhoti et al. 2020, §2: BatchNorm leaves the objective as it is.

BatchNorm is a deterministic function of the weights and the mini-batch, so it adds no term to the ELBO: the divergence
is that of the weights alone, and the expected log-likelihood is that of the network with BatchNorm. What is shown: the
ELBO that training sees, with the statistics of mini-batches, is that of the network which is used, with population
statistics; and what BatchNorm gains or costs against the same network without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bnuq.estimates import Estimate
from bnuq.files.journal import Arrays
from bnuq.report import drawing
from bnuq.report.document import PathLine, Picture, Report, ReportSection, Table, explanations
from bnuq.report.numbers import number, with_error
from bnuq.store import codec
from experiments.learned.record import BnInVi, Comparison, Network, mean_of, reader
from experiments.learned.record import summary as summary
from experiments.learned.running import Request, described, job, trained
from experiments.learned.training import Job
from experiments.work import machine

WITH, WITHOUT = "VI with BN", "VI without BN"
PUBLISHED: dict[str, Any] = {
    "source": "Mukhoti et al. 2020, On batch normalisation for approximate Bayesian inference, §2, without values",
    "of_networks": {},
}
_ESTIMATES = {  # of each network, by its name in the record and in the table
    "elbo": "ELBO",
    "elbo_population": "ELBO, population",
    "expected_log_likelihood": "E ln p",
    "kl": "KL",
    "nll_samples": "test NLL of samples",
    "nll": "test NLL",
    "accuracy_samples": "accuracy of samples",
}
read = reader(BnInVi)


def jobs(request: Request, of: str) -> Iterator[Job]:
    """Both networks, from several seeds."""
    for name, batch_norm in ((WITHOUT, False), (WITH, True)):
        for seed in range(request.seed, request.seed + request.seeds):
            options = (("batch_norm", batch_norm), ("units", request.width))
            yield job(request, of, name, function="dense", options=options, seed=seed, learned=True, mcbn=batch_norm)


def reproduce(request: Request) -> BnInVi:
    """Train every network, measure it, write the record to `request.out`, and give it."""
    with trained(request, lambda of: list(jobs(request, of))) as found:
        networks, differences = [], {}
        for of in request.sets:
            by_name = {
                name: [_measured(arrays) for each, arrays in found.items() if (each.of, each.name) == (of, name)]
                for name in (WITHOUT, WITH)
            }
            seconds = {
                name: sum(float(a["seconds"]) for each, a in found.items() if (each.of, each.name) == (of, name))
                for name in by_name
            }
            networks += [
                Network(of, name, _means(each), (), len(each), seconds[name]) for name, each in by_name.items()
            ]
            pairs = list(zip(by_name[WITH], by_name[WITHOUT], strict=True))
            shared = [key for key in _ESTIMATES if key in pairs[0][1]]
            differences[f"{of}: with − without BN"] = {
                key: mean_of(np.array([a[key] - b[key] for a, b in pairs])) for key in shared
            }
            differences[f"{of}: mini-batch − population statistics"] = {
                "elbo": mean_of(np.array([each["elbo"] - each["elbo_population"] for each in by_name[WITH]]))
            }
        record = BnInVi(
            experiment=described(request),
            published=PUBLISHED,
            networks=tuple(networks),
            differences=differences,
            seconds={"training": float(sum(measured["seconds"] for measured in found.values()))},
            provenance=machine(request.out, torch.device("cpu")),
            path=request.out.absolute(),
        )
        codec.write(record, request.out)
    return record


def _measured(arrays: Arrays) -> dict[str, float]:
    """The estimates of one network; those of training in nats per point."""
    likelihood, kl = float(arrays["train"].mean()), float(arrays["kl"])
    found = {
        "elbo": likelihood - kl,
        "expected_log_likelihood": likelihood,
        "kl": kl,
        "nll": -float(arrays["single"].mean()),
        "nll_samples": -float(arrays["samples"].mean()),
        "accuracy_samples": float(arrays["samples_right"].mean()),
    }
    if "train_population" in arrays:
        found["elbo_population"] = float(arrays["train_population"].mean()) - kl
    return found


def _means(networks: Sequence[dict[str, float]]) -> dict[str, Estimate]:
    return {key: mean_of(np.array([each[key] for each in networks])) for key in networks[0]}


# ── the report ───────────────────────────────────────────────────────────────────────────────────────────────────────


def report(record: Comparison, *, columns: int = 100) -> Report:  # noqa: ARG001 - every report has it
    """The report: the ELBO and its parts with and without BatchNorm, and what is found on the test set."""
    setup = record.experiment
    return Report(
        command=f"bnuq {record.COMMAND}",
        version=record.provenance["bnuq"],
        facts=(
            ("source", f"{record.published['source']}."),
            ("network", f"two hidden mean-field layers of {setup['width']} units; prior N(0, 1/inputs)"),
            (
                "trained",
                f"on the first {setup['images']:,} images of each set, {setup['epochs']} epochs of Adam, mini-batches "
                f"of 32; {setup['seeds']} seeds",
            ),
            ("samples", f"{setup['samples']}, of at most {setup['limit']:,} test points"),
            ("time", f"{record.seconds['training'] / 60:.0f} min of CPU time"),
        ),
        summary=tuple(sentences(record)),
        sections=tuple(_sections(record)),
        path=None if record.path is None else PathLine(record.path),
    )


def sentences(record: Comparison) -> Iterator[str]:
    """The differences with their 95 % intervals over seeds."""
    for name, estimates in record.differences.items():
        for key, change in estimates.items():
            if key in ("elbo", "nll_samples", "kl"):
                yield f"{_ESTIMATES[key]}, {name}: {_interval(change, record.experiment['seeds'])}."
    yield (
        "BatchNorm adds no term to the objective: the divergence is that of the weights, which scale and shift of "
        "BatchNorm, being no random variables, are not part of."
    )


def _interval(change: Estimate, seeds: int) -> str:
    if change.se is None:
        return f"{number(change.value, 4)} (one seed)"
    from scipy.stats import t

    half = float(t.ppf(0.975, seeds - 1)) * change.se
    low, high = change.value - half, change.value + half
    verdict = "no difference is shown" if low <= 0 <= high else "more" if change.value > 0 else "less"
    return f"{number(change.value, 4)} ({number(low, 4)} to {number(high, 4)}): {verdict}"


def _sections(record: Comparison) -> Iterator[ReportSection]:
    about = (
        "The ELBO per training point and its parts, with and without BatchNorm; bars are standard errors over seeds."
    )
    yield ReportSection("The ELBO and its parts", (Picture((record.KIND,), partial(_draw, record), about),))
    for of in record.experiment["sets"]:
        rows = tuple(
            (each.name, tuple(with_error(each.estimates.get(key), 4) for key in _ESTIMATES))
            for each in record.networks
            if each.set == of
        )
        yield ReportSection(of, (Table(tuple(_ESTIMATES.values()), rows, stacks=True),))
    legend = (
        "± standard error over seeds. ELBO, E ln p and KL in nats per training point; with BatchNorm, E ln p is over "
        "weights and mini-batches of 32 together (as in training, but for the dependence of a point on its own batch), "
        'and "population" over weights alone, with running statistics. Test NLL: of the mean weights; of samples: of '
        "the mean probability over weights, and with BatchNorm over mini-batches too."
    )
    yield ReportSection("", tuple(explanations([legend])))


def _draw(record: Comparison, path: Path) -> None:
    sets = record.experiment["sets"]
    parts = ("elbo", "expected_log_likelihood", "kl", "nll_samples")
    with drawing.picture(
        path,
        title="Mean-field VI with and without BatchNorm",
        about=f"nats per point; {record.experiment['seeds']} seeds, ± 1 standard error",
        columns=len(sets),
        size=(5.2, 3.4),
    ) as panels:
        for axes, of in zip(panels, sets, strict=True):
            networks = [each for each in record.networks if each.set == of]
            for number_, network in enumerate(networks):
                places = np.arange(len(parts)) + 0.36 * number_ - 0.18
                values = [network.estimates[part] for part in parts]
                axes.bar(
                    places, [each.value for each in values], 0.34, yerr=[each.se or 0.0 for each in values],
                    color=drawing.INK if number_ else drawing.GREY, capsize=2, label=network.name,
                )  # fmt: skip
            axes.set_xticks(np.arange(len(parts)), [_ESTIMATES[part] for part in parts])
            axes.axhline(0, color=drawing.GREY, linewidth=0.8)
            axes.set_title(of)
            axes.legend()
