"""What the mini-batches of an evaluation were, in words, where they were other than usual."""

from __future__ import annotations

from bnuq.results.result import Result

USUAL = "random points, biased variance"


def sampler_in_words(result: Result) -> str:
    """How MCBN's mini-batches were drawn; "" where that was as usual, or no method drew any."""
    if not any("mcbn" in method for method in result.methods):
        return ""
    asked = result.run.get("sampling", {})
    group = result.run.get("data", {}).get("group", "group")
    told = (
        (asked.get("batches") == "stratified", "stratified by class"),
        (asked.get("batches") == "group", f"each of one {group}"),
        (asked.get("replacement"), "drawn with replacement"),
        (asked.get("per_query"), "drawn anew for every query"),
        (asked.get("query_in_batch"), "the query one of the points"),
        (asked.get("variance") == "unbiased", "unbiased variance"),
    )
    return ", ".join(words for holds, words in told if holds)
