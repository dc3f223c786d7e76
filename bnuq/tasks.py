"""The tasks of networks, as values: what their outputs are, and what follows for estimates and words.

How each is scored is in `evaluation/tasks/`.
"""

from __future__ import annotations

from typing import Literal

from bnuq.frozen import frozen
from bnuq.methods import Recalibration

TaskName = Literal["classification", "regression", "segmentation"]
Outputs = Literal["logits", "probabilities", "log_probabilities", "binary", "multilabel"]  # of a classifier


@frozen
class Task:
    """A task by its `name` in files and requests; those of several labels per point are named classifications.

    `unit` is what is right or wrong. `spread` is the score of how much samples differ,
    `headline` the estimate that a shift of the inputs is judged by. `truth` is the field of a set that has its labels
    or targets; that and predictions have a further axis as long as the entry `predicted_by` of what a result says of
    the network, and outputs in a file the last axis `axis`. `calibrations` are the points that what is `fitted` can be
    fitted to instead of the validation points alone. `scored_by` are settings that estimates depend on.
    """

    name: TaskName
    outputs: Literal["classes", "labels", "values"]
    unit: Literal["examples", "labels", "pixels"] = "examples"
    spread: Literal["mutual_information", "variance"] = "mutual_information"
    headline: Literal["accuracy", "rmse"] = "accuracy"
    truth: Literal["labels", "targets"] = "labels"
    axis: Literal["class", "label", "output"] = "class"
    predicted_by: Literal["", "classes", "labels", "outputs"] = ""
    recalibrations: tuple[Recalibration, ...] = ()
    calibrations: tuple[Literal["validation", "cross"], ...] = ()
    fitted: str = "a temperature"
    scored_by: tuple[str, ...] = ()
    of_part: tuple[str, ...] = ("count", "accuracy", "pll")  # estimates of a class or a group

    def __str__(self) -> str:
        return self.name

    @property
    def in_words(self) -> str:
        """What it is, as the reason why something is not offered."""
        return "there are several labels per example" if self.outputs == "labels" else f"this is a {self.name}"

    @property
    def is_dense(self) -> bool:
        """Whether outputs are the classes of each pixel."""
        return self.unit == "pixels"

    @property
    def is_regression(self) -> bool:
        """Whether outputs are values, with targets of the same kind."""
        return self.outputs == "values"

    @property
    def classifies_points(self) -> bool:
        """Whether each point has a single class: its logits have post-hoc scores, and its probabilities are kept."""
        return self.outputs == "classes" and self.unit == "examples"

    def calibration(self, *, has_validation: bool) -> Literal["cross", "off"]:
        """What is chosen where no validation points but those of the test set can be fitted to."""
        return "cross" if self.classifies_points or (self.is_regression and not has_validation) else "off"

    def labels_of(self, outputs: int) -> int:
        """The labels of a point of a network with so many outputs."""
        return outputs if self.outputs == "labels" else 1

    def described(self, outputs: int) -> dict[str, int]:
        """How a result counts the outputs of a network."""
        if self.outputs == "labels":
            return {"classes": 2, "labels": outputs}
        return {"outputs" if self.is_regression else "classes": outputs}


_FITTED = ("validation", "cross")
CLASSIFICATION = Task("classification", "classes", recalibrations=("temperature", "vector"), calibrations=_FITTED)
MULTILABEL = Task("classification", "labels", unit="labels", axis="label", predicted_by="labels")
REGRESSION = Task(
    "regression", "values", spread="variance", headline="rmse", truth="targets", axis="output", predicted_by="outputs",
    calibrations=("cross",), fitted="τ and the constant σ", scored_by=("scoring.",),
)  # fmt: skip
SEGMENTATION = Task(
    "segmentation", "classes", unit="pixels", predicted_by="classes", recalibrations=("temperature",),
    calibrations=_FITTED, scored_by=("data.ignore",), of_part=("count", "accuracy", "iou", "dice"),
)  # fmt: skip
TASKS = CLASSIFICATION, MULTILABEL, REGRESSION, SEGMENTATION


def task_named(name: str, *, several_labels: bool = False) -> Task:
    """The task of this name; of a classification that with several labels per point, if so."""
    return MULTILABEL if several_labels else next(task for task in TASKS if task.name == name)
