"""The methods, OOD sets and task of several results."""

from __future__ import annotations

from collections.abc import Mapping

from bnuq.records.evaluation import Estimates, Result
from bnuq.report import ood

Results = Mapping[str, Result]  # by name, in the order of the columns; all of one task


def methods_of(results: Results) -> list[str]:
    """The methods of any of the results, in their order."""
    return list(dict.fromkeys(method for result in results.values() for method in result.methods))


def ood_names(results: Results) -> list[str]:
    """The OOD sets of any of the results, in their order."""
    return list(dict.fromkeys(name for result in results.values() for name in ood.names(result)))


def is_regression(results: Results) -> bool:
    """Whether their task is regression."""
    return any(result.model.get("task") == "regression" for result in results.values())


def separations(result: Result, method: str, name: str) -> Mapping[str, Estimates]:
    """How well a method separates an OOD set, by score; empty if the result does not have it."""
    return result.methods[method].ood.get(name, {}) if method in result.methods else {}


def best_score(results: Results, name: str, method: str) -> tuple[str, dict[str, float]] | None:
    """The score of largest mean AUROC, of those that most results have, and its AUROC in each result."""
    aurocs: dict[str, dict[str, float]] = {}
    for result_name, result in results.items():
        for score, estimates in separations(result, method, name).items():
            aurocs.setdefault(score, {})[result_name] = estimates["auroc"].value
    most = max((len(values) for values in aurocs.values()), default=0)
    shared = {score: values for score, values in aurocs.items() if len(values) == most}
    return max(shared.items(), key=lambda item: sum(item[1].values()), default=None)
