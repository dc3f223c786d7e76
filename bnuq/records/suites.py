"""The near and the far sets of a published suite among those of a result, and their mean AUROC."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from bnuq.estimates import Estimate
from bnuq.files.suites import DISTANCES, Distance, suites
from bnuq.frozen import frozen
from bnuq.metrics import SCORES, detection_influence, jackknife_error, standard_error
from bnuq.records.evaluation import Result


@frozen
class Part:
    """The near, or the far, sets of a suite that a result has, by the names that it has for them."""

    distance: Distance
    sets: tuple[str, ...]

    def mean_aurocs(self, result: Result, method: str, scores: Iterable[str] = tuple(SCORES)) -> dict[str, Estimate]:
        """The mean AUROC over the sets by each score that the method has for all of them."""
        ood = result.methods[method].ood
        known = (score for score in scores if all(score in ood[name] for name in self.sets))
        return {score: self._mean_auroc(result, method, score) for score in known}

    def _mean_auroc(self, result: Result, method: str, score: str) -> Estimate:
        # The test points and the draws are the same for all sets, so that the errors of the sets are not independent.
        method_result, test = result.methods[method], result.sets["test"]
        aurocs = [method_result.ood[name][score]["auroc"] for name in self.sets]
        influences = [detection_influence(*method_result.ranked(score, name)).auroc for name in self.sets]
        errors = [
            standard_error(np.mean([test_influence for test_influence, _ in influences], axis=0), group=test.group)
        ]
        for name, (_, outside) in zip(self.sets, influences, strict=True):
            errors.append(standard_error(outside, group=result.sets[name].group) / len(self.sets))
        se = math.hypot(*errors)
        left_out = [auroc.jackknife for auroc in aurocs if auroc.jackknife is not None and auroc.mc_se is not None]
        is_known = len(left_out) == len(aurocs) and len(set(map(len, left_out))) == 1
        return Estimate(
            value=float(np.mean([auroc.value for auroc in aurocs])),
            se=se if math.isfinite(se) else None,
            mc_se=float(jackknife_error(np.mean(left_out, axis=0))) if is_known else None,
        )


def parts_of_suites(result: Result) -> dict[str, tuple[Part, ...]]:
    """For each suite with sets in the result, its near and its far sets, if there are any."""
    set_names = {evaluated.reference: name for name, evaluated in result.sets.items() if evaluated.kind == "ood"}
    parts: dict[str, tuple[Part, ...]] = {}
    for suite, members in suites().items():
        named = [(member.distance, set_names[member.reference]) for member in members if member.reference in set_names]
        if named:
            names = {distance: tuple(name for at, name in named if at == distance) for distance in DISTANCES}
            parts[suite] = tuple(Part(distance, sets) for distance, sets in names.items() if sets)
    return parts
