"""What is evaluated, and by what: the task, the points and their scorer, the settings, and the network."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bnuq.config import Calibration, DrawSettings, ScoreSettings
from bnuq.data import Points
from bnuq.evaluation.tasks.scorer import TaskScorer
from bnuq.findings import Finding, note
from bnuq.frozen import frozen
from bnuq.methods import METHOD_NAMES, Method, Recalibration
from bnuq.metrics import DrawWeights
from bnuq.metrics.replicates import independent_units
from bnuq.records.evaluation import EvaluatedSet
from bnuq.sampling import counter_rng
from bnuq.tasks import Task

if TYPE_CHECKING:
    from torch import nn

    from bnuq.evaluation.pipeline import Pipeline
    from bnuq.sampling.sites import BatchNormSite, Sites

VALIDATION = "validation"
LEAST_POINTS = 20  # labelled test points of a cross-fit: ten a half


def described(name: str, points: Points, kind: Any, targets: Any, *, of_values: bool) -> EvaluatedSet:
    """A set as a result describes it, with labels, or with targets `of_values`."""
    return EvaluatedSet(
        name,
        kind,
        points.reference,
        points.sha256,
        len(points),
        labels=None if of_values else targets,
        targets=targets if of_values else None,
        group=points.group,
        classes=tuple(points.classes or ()),
        index=points.index,
        names=points.names,
        group_names=points.group_names,
    )


@frozen
class Plan:
    """What is drawn of a network. `methods` leaves out "deterministic", which always runs; `layers` are the BatchNorms
    that MCBN samples, and `batch_size` is None where no method does; `trained_with` is the training batch size, where
    it is known; `findings` say what the network does not allow."""

    task: Task
    outputs: int
    methods: tuple[Method, ...]
    sites: Sites
    layers: tuple[BatchNormSite, ...]
    batch_size: int | None
    trained_with: int | None
    image: tuple[int, int] | None  # height and width of the outputs of a segmentation
    findings: tuple[Finding, ...]


@frozen
class ScoredSets:
    """Sets whose samples are scored, in the order of evaluation: "validation" is first, where there is one. `outputs`
    is the number of classes, or of outputs of a regression; of each pixel where there is an `image`, the height and
    width of the outputs, of which a few alone are in memory at once. `notes` say which settings have no effect."""

    task: Task
    outputs: int
    methods: tuple[Method, ...]
    settings: ScoreSettings
    sets: Mapping[str, Points]
    scorer: TaskScorer
    notes: tuple[Finding, ...]
    image: tuple[int, int] | None = field(default=None, kw_only=True)

    @property
    def labelled(self) -> dict[str, Points]:
        """The sets with labels: the test set, also perturbed, and the validation points where there are any."""
        named = "test", VALIDATION, *self.perturbed
        return {name: points for name, points in self.sets.items() if name in named}

    @property
    def perturbed(self) -> dict[str, Points]:
        """The test set after each perturbation."""
        names = [perturbation.set_name for perturbation in self.settings.perturb]
        return {name: self.sets[name] for name in names if name in self.sets}

    @property
    def attacked(self) -> frozenset[str]:
        """The names of the sets that raise the loss, which every method computes for itself."""
        return frozenset(perturbation.set_name for perturbation in self.settings.perturb if perturbation.kind.is_attack)

    @property
    def by_severity(self) -> frozenset[str]:
        """The names of the sets after a change of some severity, of which there may be many: less is kept of each."""
        return frozenset(change.set_name for change in self.settings.perturb if change.is_severity)

    @property
    def ood(self) -> dict[str, Points]:
        return {name: points for name, points in self.sets.items() if name not in self.labelled}

    @property
    def compared(self) -> dict[str, Points]:
        """The sets that scores are to separate from the test set."""
        return self.ood | self.perturbed

    @property
    def has_post_hoc(self) -> bool:
        """Whether scores of the last layer of a classifier are wanted, and there are sets that they separate."""
        return bool(self.settings.post_hoc and self.compared and self.task.classifies_points)

    @property
    def calibration(self) -> Calibration:
        """What recalibrations are fitted to, or τ and the constant σ of a regression, which are always fitted to
        validation points if they are not cross-fitted."""
        chosen = default_calibration(self) if self.settings.calibrate is None else self.settings.calibrate
        return chosen if chosen in self.task.calibrations else "off"

    @property
    def fitted_to(self) -> str | None:
        """The set that recalibrations are fitted to."""
        return {"validation": VALIDATION, "cross": "test"}.get(self.calibration)

    @property
    def recalibrations(self) -> tuple[Recalibration, ...]:
        """How every method is recalibrated, too."""
        offered = () if self.fitted_to is None else self.task.recalibrations
        return tuple(kind for kind in offered if kind in self.settings.scoring.recalibration)

    @property
    def half_of_test(self) -> str:
        """The setting that takes validation points of the test set."""
        return "--held-out 0.5"

    @property
    def method_names(self) -> tuple[str, ...]:
        """The names that methods may have in the request."""
        return tuple(method.name for method in self.methods)

    def samples_of(self, method: Method, samples: int) -> int:
        """The samples of a point under a method, where there are this many draws."""
        return 1 if method.is_single else samples

    def weights(self, method: Method, draws: int) -> DrawWeights:
        """The replicates of a method where there are this many draws."""
        return self.scorer.weights(self.samples_of(method, draws), None)

    def findings_on_samples(self) -> Iterator[Finding]:
        """What is known before any pass of how its samples are drawn and scored."""
        for name in (name for name in self.labelled if name in ("test", self.fitted_to)):
            points, classes = len(self.sets[name]), self.outputs
            if self.scorer.bytes_of_probabilities(1, points, classes) is None:
                yield note("probabilities-not-kept", set=name, points=points, classes=classes)
        yield from self.notes


@frozen
class Subject(ScoredSets, Plan):
    """Sets that a network is evaluated on. `members` are the networks of an ensemble after the first, `checkpoints`
    name all of them."""

    draws: DrawSettings
    model: nn.Module
    pipeline: Pipeline
    train: Points | None
    members: tuple[nn.Module, ...] = ()
    checkpoints: tuple[Path, ...] = ()

    @property
    def outputs_of_point(self) -> int:
        """The outputs of a point, all pixels of an image together."""
        return self.outputs * math.prod(self.image or ())

    @property
    def max_samples(self) -> int:
        """T, or its upper limit where it is "auto"."""
        return self.draws.max_samples if self.draws.samples == "auto" else self.draws.samples

    @property
    def half_of_test(self) -> str:
        return "--validation split_of=test,fraction=0.5"

    @property
    def method_names(self) -> tuple[str, ...]:
        return METHOD_NAMES

    def samples_of(self, method: Method, samples: int) -> int:
        """The samples of a point under a method, where there are this many draws."""
        if method.is_single:
            return 1
        return samples if method.is_drawn else 1 + len(self.members)

    def weights(self, method: Method, draws: int) -> DrawWeights:
        """The replicates of a method where there are this many draws; masks already differ from point to point and need
        no bank."""
        return self.scorer.weights(self.samples_of(method, draws), self.bank if method.is_sampled_batchnorm else None)

    @property
    def bank(self) -> int | None:
        """The size of the bank of which each tile uses its own T draws; None where all points share T draws, or no
        method samples BatchNorm."""
        samples_batchnorm = any(method.is_sampled_batchnorm for method in self.methods)
        return self.draws.bank if samples_batchnorm and self.draws.bank != self.draws.samples else None

    def findings_on_samples(self) -> Iterator[Finding]:
        if self.bank is not None:
            yield note("bank-of-draws", tile=counter_rng.TILE, samples=self.draws.samples, bank=self.bank)
        if any(method.normalizes_jointly for method in self.methods):
            size = self.batch_size
            smaller = [(name, len(points)) for name, points in self.sets.items() if len(points) < (size or 0)]
            yield note("own-batches", batch_size=size, smaller=smaller)
        yield from super().findings_on_samples()


def default_calibration(subject: ScoredSets) -> Calibration:
    """Validation points, where they are not those of the test set; else the halves of a test set that has enough of
    them. Not those of images, all of which would have to pass again."""
    test, validation = subject.sets["test"], subject.sets.get(VALIDATION)
    if validation is not None and validation.sha256 != test.sha256:
        return "validation"
    has_halves = test.targets is not None and independent_units(len(test), test.group) >= LEAST_POINTS
    return subject.task.calibration(has_validation=validation is not None) if has_halves else "off"
