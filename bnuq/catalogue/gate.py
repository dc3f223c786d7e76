"""Warnings and notes of a check against a baseline."""

from __future__ import annotations

from collections.abc import Sequence

from bnuq.findings import Catalogue, Entry


def _hidden_by_draws(estimates: Sequence[str], growth: int) -> str:
    return (
        f"{', '.join(estimates)}: worse by more than tolerated, and clearly so over the points. Only the Monte Carlo "
        f"error explains it, and that has grown more than {growth}-fold since the baseline. Evaluate with more "
        "samples, and where the file may have been changed, evaluate again."
    )


def _new_warnings(warnings: Sequence[tuple[str, str]]) -> str:
    texts = " ".join(f"{text} [{code}]" for code, text in warnings)
    return f"The current result has warnings that the baseline does not have: {texts}"


GATE: Catalogue = {
    "settings-of-run-file": Entry("tolerances and minimums are those of [check] in {file}"),
    "new-since-baseline": Entry(
        lambda what, names: f"new since the baseline, and not compared with anything: {what} {', '.join(names)}"
    ),
    "not-compared": Entry("Not compared with the old baseline: {reason}"),
    "older-than-baseline": Entry(
        "{current} was made before {baseline}, its baseline: are the two swapped? CURRENT comes first."
    ),
    "same-file": Entry("Both are the same file, which is never worse than itself."),
    "other-layers": Entry("layers of the sampling: {current} now, {baseline} in the baseline."),
    "other-bank": Entry("bank of the sampling: {current} now, {baseline} in the baseline."),
    "hidden-by-draws": Entry(_hidden_by_draws),
    "new-warnings": Entry(_new_warnings),
    "unused-tolerance": Entry(
        lambda tolerances: f"No estimate of these results matches the tolerance of {', '.join(tolerances)}."
    ),
    "not-a-number": Entry(lambda estimates: f"{', '.join(estimates)}: not a number in the baseline, and so not gated."),
    "infinite": Entry(lambda estimates: f"{', '.join(estimates)}: infinite in both; a change cannot be detected."),
}
