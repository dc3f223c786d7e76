"""Fig. 2 of Shekhovtsov & Flach 2018: BatchNorm over 1,024 images beside 32, of which 32 have a loss in either case."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bnuq.report.document import Report
from experiments.learned.normalization import compared, facts, of_differences, sections
from experiments.learned.record import Comparison, NormalizationBatch, reader
from experiments.learned.record import summary as summary
from experiments.learned.running import Request, job
from experiments.learned.training import BATCH_SIZE, Job
from experiments.summary import report_of

LARGE = 1024
SMALL_NAME, LARGE_NAME = f"BN over {BATCH_SIZE}", "BN over {:,}".format
PUBLISHED: dict[str, Any] = {
    "source": "Shekhovtsov & Flach 2018, Stochastic normalizations as Bayesian learning, Fig. 2: CIFAR-10",
    "of_networks": {SMALL_NAME: {"accuracy": 0.930}, LARGE_NAME(LARGE): {"accuracy": 0.924}},
}
read = reader(NormalizationBatch)


def jobs(request: Request, of: str) -> Iterator[Job]:
    """BatchNorm over either number of images, from several seeds. Of a smaller set, over half of it."""
    for over in (BATCH_SIZE, _large(request)):
        for seed in range(request.seed, request.seed + request.seeds):
            options = (("normalization", "batch"), ("noise", "none"), ("width", request.width))
            name = SMALL_NAME if over == BATCH_SIZE else LARGE_NAME(over)
            values: dict[str, Any] = {"options": options, "seed": seed, "mcbn": True, "normalized_over": over}
            yield job(request, of, name, function="all_cnn", **values)


def _large(request: Request) -> int:
    return max(BATCH_SIZE + 1, min(LARGE, request.images // 2))


def _pairs(large: str) -> tuple[tuple[str, str, str, str, float | None], ...]:
    """The claim: the accuracy over many images is lower, and the NLL over few."""
    return ((large, SMALL_NAME, "accuracy", "accuracy", 0.924 - 0.930), (SMALL_NAME, large, "nll", "nll", None))


def reproduce(request: Request) -> NormalizationBatch:
    """Train the networks, measure them, write the record to `request.out`, and give it."""
    return compared(request, jobs, NormalizationBatch, _pairs(LARGE_NAME(_large(request))), PUBLISHED)


def report(record: Comparison, *, columns: int = 100) -> Report:  # noqa: ARG001 - every report has it
    """The report: accuracy and NLL of either number of images beside the published accuracies."""
    large = next(each.name for each in record.networks if each.name != SMALL_NAME)
    said = of_differences(record, _pairs(large))
    return report_of(record, facts=facts(record), summary=said, sections=sections(record))
