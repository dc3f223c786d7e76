"""Which OOD scores results have, by the table of estimates."""

from __future__ import annotations

from bnuq.metrics import SCORES


def streamed_scores(*, single_sample: bool = False) -> set[str]:
    """The scores of every method of a classification, but for those of the last layer; of a single sample those that
    do not need several."""
    return {
        name
        for name, estimand in SCORES.items()
        if estimand.score is not None
        and estimand.score.source in ("probabilities", "logits")
        and not (single_sample and estimand.score.needs_samples)
    }
