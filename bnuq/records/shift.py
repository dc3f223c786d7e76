"""The record of how results change with the inputs: curves over severity, alarms of scores, forecasts of accuracy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated

import numpy as np

from bnuq.estimates import Among, Axis, Coordinate, Unit
from bnuq.frozen import frozen
from bnuq.methods import METHOD_NAMES
from bnuq.perturbations import Change, change_in
from bnuq.shapes import Float

LEVEL = 0.99  # of the bands
FORECASTS = ("thresholded_confidence", "difference_of_confidences")  # of accuracy, without labels
_OF_METRIC, _OF_SCORE, _STRENGTH = Unit("unit of the metric"), Unit("unit of the score"), Unit("severity or size")
MethodName = Annotated[str, Coordinate("method"), Among(" ".join(METHOD_NAMES))]


@frozen
class MethodShift:
    """One method on the changed sets; NaN where something does not happen, or is not known.

    `change` is that of each metric from the test set, with its errors `se` over points and `mc_se` over draws, both of
    paired differences. `mean` is that of each score, whose mean over a window of unchanged points is in the `band` at
    99 %. `alarm` is the severity at which the mean leaves it, `loss` that at which accuracy has fallen by what counts
    as a loss (or RMSE risen by it, relatively), `lead` how far severity rises from the one to the other, `lead_se` its
    error over points. `predicted` is the accuracy by each of the forecasts, which use no labels of the changed points,
    `error_se` the error of its difference to the accuracy; `breaks` is the first severity at which that is beyond its
    own band at 99 %. Sources: Garg et al. 2022, Leveraging Unlabeled Data to Predict Out-of-Distribution Performance
    (thresholded confidence); Guillory et al. 2021, Predicting with Confidence on Unseen Distributions (difference).
    """

    metrics: Annotated[tuple[str, ...], Axis("shift_metric")]
    change: Annotated[Float[np.ndarray, "shift_metric changed_set"], _OF_METRIC]
    se: Annotated[Float[np.ndarray, "shift_metric changed_set"], _OF_METRIC]
    mc_se: Annotated[Float[np.ndarray, "shift_metric changed_set"], _OF_METRIC]
    scores: Annotated[tuple[str, ...], Axis("shift_score")]
    mean: Annotated[Float[np.ndarray, "shift_score changed_set"], _OF_SCORE]
    band: Annotated[Float[np.ndarray, "shift_score end"], _OF_SCORE]
    alarm: Annotated[Float[np.ndarray, "shift_score family"], _STRENGTH]
    lead: Annotated[Float[np.ndarray, "shift_score family"], _STRENGTH]
    lead_se: Annotated[Float[np.ndarray, "shift_score family"], _STRENGTH]
    loss: Annotated[Float[np.ndarray, " family"], _STRENGTH]
    forecasts: Annotated[tuple[str, ...], Axis("forecast")]
    predicted: Annotated[Float[np.ndarray, "forecast changed_set"], Unit("1")]
    error_se: Annotated[Float[np.ndarray, "forecast changed_set"], Unit("1")]
    breaks: Annotated[Float[np.ndarray, "forecast family"], _STRENGTH]


@frozen
class Shift:
    """The changed sets, family by family and by rising severity, and every method on them. An alarm is raised by the
    mean score of `window` points; a loss is one of accuracy by `limit`, or relatively of RMSE; None is the usual
    one."""

    sets: Annotated[tuple[str, ...], Axis("changed_set")]
    families: Annotated[tuple[str, ...], Axis("family")]
    window: int
    methods: Mapping[MethodName, MethodShift] = field(default_factory=dict)
    limit: float | None = None

    @property
    def changes(self) -> dict[str, Change]:
        """What the name of each set says."""
        return {name: change for name in self.sets if (change := change_in(name)) is not None}

    def places(self, family: str) -> list[int]:
        """Where the sets of a family stand among the sets."""
        return [place for place, change in enumerate(self.changes.values()) if change.family == family]
