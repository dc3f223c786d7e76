"""Notes of precise-bn."""

from __future__ import annotations

from collections.abc import Sequence

from bnuq.findings import Catalogue, Entry


def _not_finite_before(tensors: Sequence[str]) -> str:
    more = f" and {len(tensors) - 1} more" if len(tensors) > 1 else ""
    return (
        f"{tensors[0]}{more} held NaN or infinite values, so there is nothing to compare with on a test set; evaluate "
        "the new file"
    )


def _settings_unused(keys: Sequence[str]) -> str:
    return (
        f"{', '.join(keys)} of [sampling] {'is' if len(keys) == 1 else 'are'} not used here: precise-bn recomputes all "
        "layers, from random mini-batches without replacement"
    )


PRECISE_BN: Catalogue = {
    "file-replaced": Entry("an earlier file was replaced: {file}"),
    "default-batch-size": Entry(
        "mini-batches of {batch_size}: the default, as the training batch size is not known; name it with "
        "--batch-size, or train_batch_size under [model]"
    ),
    "all-points-used": Entry(
        "the reference has {points} points, fewer than the {requested} asked for: all of them were used"
    ),
    "few-points": Entry(
        "the statistics are from only {points} points, so they are noisy; use at least {minimum}, better a few thousand"
    ),
    "not-finite-before": Entry(_not_finite_before),
    "no-comparison": Entry("no estimates before and after: {reason}"),
    "variances-too-small": Entry(
        "{tensor}: {small} of {channels} variances are too small for the type they are stored in, and became 0; beside "
        "ε = {eps:.3g} that is almost no change"
    ),
    "settings-unused": Entry(_settings_unused),
    "statistics-unchanged": Entry("{layer} keeps its statistics: {reason}"),
    "no-statistics": Entry("BatchNorm {layer} keeps no running statistics, so it has none to replace"),
    "dropout-off": Entry("dropout was off while statistics were taken, as it is at prediction"),
}
