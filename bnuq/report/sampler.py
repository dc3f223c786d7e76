"""What the mini-batches of an evaluation were, in words, where they were other than usual, and what its laws were."""

from __future__ import annotations

from bnuq.config import ANALYTIC, DEFAULT_SAMPLER
from bnuq.records.evaluation import Result

USUAL = "random points, biased variance"


def sampler_in_words(result: Result) -> str:
    """How MCBN's mini-batches were drawn; "" where that was as usual, or no method drew any."""
    if not any("mcbn" in method for method in result.methods):
        return ""
    asked = result.run.get("sampling", {})
    group = result.run.get("data", {}).get("group", "group")
    told = (
        (asked.get("batches") == "stratified", "stratified by class"),
        (asked.get("batches") == "group", f"each from one {group}"),
        (asked.get("replacement"), "drawn with replacement"),
        (asked.get("per_query"), "new for every query"),
        (asked.get("query_in_batch"), "the query included"),
        (asked.get("variance") == "unbiased", "unbiased variance"),
    )
    return ", ".join(words for holds, words in told if holds)


def laws_in_words(result: Result) -> str:
    """How the analytic laws were fitted, as "counts measured (64 mini-batches), covariance layer"; "" where no method
    is of one."""
    laws = [method for method in result.methods if method in ANALYTIC]
    asked = result.run.get("sampling", {})
    told: list[tuple[str, bool]] = []  # with whether mini-batches were recorded for it
    if any(method != "mcbn-empirical" for method in laws):
        by_default = "measured" if result.run.get("data", {}).get("train") else "nominal"
        counts = asked.get("counts", by_default)
        told.append((f"counts {counts}", counts == "measured"))
    if "mcbn-empirical" in laws:
        told.append((f"covariance {asked.get('covariance', DEFAULT_SAMPLER.covariance)}", True))
    fitted = [recorded for _, recorded in told].index(True) if any(recorded for _, recorded in told) else None
    number = f" ({asked.get('law_draws', DEFAULT_SAMPLER.law_draws)} mini-batches)"
    return ", ".join(words + number * (place == fitted) for place, (words, _) in enumerate(told))
