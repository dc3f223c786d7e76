"""The tasks of networks, as values: what their outputs are, and what follows for estimates and words.

How each is scored is in `evaluation/tasks/`.
"""

from __future__ import annotations

from typing import Literal

from bnuq.frozen import frozen
from bnuq.methods import Recalibration

TaskName = Literal["classification", "regression", "segmentation"]


@frozen
class Task:
    """A task by its `name` in files and requests; those of several labels per point are named classifications.

    An output is a class of each point, or of each pixel where it `is_dense`, one of several labels, or a value.
    `spread` is the score of how much samples differ.
    """

    name: TaskName
    outputs: Literal["classes", "labels", "values"]
    spread: Literal["mutual_information", "variance"] = "mutual_information"
    is_dense: bool = False
    recalibrations: tuple[Recalibration, ...] = ()

    def __str__(self) -> str:
        return self.name

    @property
    def is_regression(self) -> bool:
        """Whether outputs are values, with targets of the same kind."""
        return self.outputs == "values"

    @property
    def is_classification(self) -> bool:
        """Whether each point has one class, or several labels."""
        return not (self.is_dense or self.is_regression)

    @property
    def classifies_points(self) -> bool:
        """Whether each point has a single class: its logits have post-hoc scores, and its probabilities are kept."""
        return self.outputs == "classes" and not self.is_dense

    @property
    def points(self) -> Literal["examples", "images"]:
        """What its points are called."""
        return "images" if self.is_dense else "examples"


CLASSIFICATION = Task("classification", "classes", recalibrations=("temperature", "vector"))
MULTILABEL = Task("classification", "labels")
REGRESSION = Task("regression", "values", spread="variance")
SEGMENTATION = Task("segmentation", "classes", is_dense=True, recalibrations=("temperature",))
TASKS = CLASSIFICATION, MULTILABEL, REGRESSION, SEGMENTATION


def task_named(name: str, *, several_labels: bool = False) -> Task:
    """The task of this name; of a classification that with several labels per point, if so."""
    return MULTILABEL if several_labels else next(task for task in TASKS if task.name == name)
