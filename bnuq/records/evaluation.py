"""The record of an evaluation: the request, the results, and their warnings and notes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np

from bnuq.estimates import Among, Axis, ByHand, Coordinate, Estimate, MetricName, Prefix, Size, Unit
from bnuq.findings import Finding
from bnuq.frozen import frozen
from bnuq.methods import METHOD_NAMES, method_named
from bnuq.metrics import METRICS, SCORES, SEPARATIONS
from bnuq.perturbations import change_in
from bnuq.records.certificate import Certification
from bnuq.records.shift import Shift
from bnuq.shapes import Float, Float16, Int16, Int64, Num, Shaped, UInt8
from bnuq.store.table import Row, rows_of
from bnuq.tasks import Task, task_named

MASKS = "philox"  # the generator of dropout masks

ERRORS, WITH_ERRORS = "auroc_errors", "scod"  # estimates of a score, of errors, and of errors and OOD points together
MethodName = Annotated[str, Coordinate("method"), Among(" ".join(METHOD_NAMES))]
SetName = Annotated[str, Coordinate("set")]
LabelName = Annotated[str, Coordinate("label")]
ClassName = Annotated[str, Coordinate("class")]
GroupName = Annotated[str, Coordinate("group")]
ScoreName = Annotated[str, Coordinate("score"), Among(" ".join(SCORES))]
BoundName = Annotated[str, Coordinate("bound"), Among("constant optimum")]
Estimates = Mapping[MetricName, Estimate]
Separation = Mapping[Annotated[str, Coordinate("metric"), Among(" ".join((*SEPARATIONS, WITH_ERRORS)))], Estimate]
OfErrors = Mapping[Annotated[str, Coordinate("metric"), Among(ERRORS)], Estimate]
Bound = Mapping[Annotated[str, Coordinate("metric"), Among("pll crps sigma confidence")], Estimate]
Normalized = Mapping[Annotated[str, Coordinate("metric"), Prefix("normalized_")], Estimate]
TargetUnits = Annotated[Float[np.ndarray, "point output"], Unit("target unit")]  # pyrefly: ignore
BatchNoise = Annotated[Float[np.ndarray, " layer"], Unit("standard deviations of batch noise")]

LARGEST, LARGEST_MAP = 64, 256  # pixels of a side of a small copy of an image, and of one whose pixels are scored
OWN = "is own"  # of what is computed of a result: whether this version has written its file here, byte for byte
NOT_SCORED = -1  # in place of the true class of a pixel
PARTS = {"class": "by_class", "group": "by_group"}  # of a labelled test set, and where their estimates stand
FEWEST_POINTS, MOST_PARTS = 20, 100  # of a class or a group that has estimates of its own, and of these
PIXEL_SCORES = tuple(name for name, estimand in SCORES.items() if estimand.score and estimand.score.of_pixels)
PIXEL_MEANS = tuple(  # the values of pixels that images have means of
    name
    for name, estimand in (METRICS | SCORES).items()
    if name in PIXEL_SCORES or ("segmentation" in estimand.tasks and (estimand.of_mean or estimand.of_samples))
)
AGGREGATIONS = ("mean", "upper_tail", "share_above", "foreground", "pairwise_dice")  # of the pixels of an image
OF_POINTS = (ERRORS, "set_coverage", "set_coverage_aps")  # of a class or group, where they are known
_OF_PARTS = ("count", "accuracy", "pll", *OF_POINTS, "iou", "dice")
Part = Mapping[Annotated[str, Coordinate("metric"), Among(" ".join(_OF_PARTS))], Estimate]
MEDIAN_LIMIT, WORST_LIMIT = 3.0, 6.0  # of a reference check, times what batch noise alone gives


class Bank(Protocol):
    """Draws of ω that know how to lay themselves out in a file."""

    def write_to(self, group: Any) -> None: ...  # an open HDF5 group


@runtime_checkable
class Samples(Protocol):
    """Raw outputs of one set under one method, spooled to disk while they were drawn."""

    @property
    def shape(self) -> tuple[int, int, int]: ...  # (T, n, K)

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def blocks(self) -> Any: ...  # of (start, array (T, chunk, K)), in order


@runtime_checkable
class Maps(Protocol):
    """Maps of each image of one set under one method: its predicted class, and scores of its pixels."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]: ...  # of each image by name, (H, W) each, in order


@frozen
class EvaluatedSet:
    """A set as it was evaluated: after --limit, in its own order. `kind` is "test", "validation" or "ood",
    or "perturbed": the test set with changed inputs.

    `labels` are those of a classification, 0 or 1 each where a point has several; `targets` those of a regression, in
    their own unit. `group` are numbers of the data's `group_names`, which results of earlier versions lack. `index` are
    the points' numbers in `reference`, `names` their files or ids there.
    """

    name: str
    kind: Literal["test", "validation", "ood", "perturbed"]
    reference: str
    sha256: str
    n: Size
    labels: Int64[np.ndarray, " point *label"] | None = None
    targets: TargetUnits | None = None
    group: Int64[np.ndarray, " point"] | None = None
    classes: tuple[str, ...] = ()
    index: Int64[np.ndarray, " point"] | None = None
    names: Shaped[np.ndarray, " point"] | None = None
    group_names: tuple[str, ...] = ()

    @property
    def parts(self) -> dict[str, dict[str, Int64[np.ndarray, " _"]]]:
        """The points of each class and of each group, as `parts_of` has them."""
        return parts_of(self.labels, self.classes, self.group, self.group_names)


def parts_of(
    labels: np.ndarray | None, classes: Sequence[str], group: np.ndarray | None, group_names: Sequence[str] = ()
) -> dict[str, dict[str, Int64[np.ndarray, " _"]]]:
    """The points of each "class" and of each "group", by its name, or its number where the data give none.

    Those of at least 20 points; if there are more than 100 of these, the 100 with the most points. Empty for a set
    without labels, and where points have several.
    """
    if labels is None or labels.ndim > 1:
        return {}
    of_groups = {} if group is None else {"group": _parts(group, group_names)}
    return {"class": _parts(labels, classes)} | of_groups


def _parts(values: np.ndarray, names: Sequence[str]) -> dict[str, np.ndarray]:
    names = names if len({*names}) == len(names) > int(values.max(initial=0)) else ()
    numbers, part_numbers, count = np.unique(values, return_inverse=True, return_counts=True)
    enough = np.flatnonzero(count >= FEWEST_POINTS)
    chosen = np.sort(enough[np.argsort(-count[enough], kind="stable")[:MOST_PARTS]])
    order, start = np.argsort(part_numbers, kind="stable"), np.cumsum(count) - count
    return {
        names[int(numbers[number])] if names else str(numbers[number]): order[
            start[number] : start[number] + count[number]
        ]
        for number in chosen
    }


@frozen
class SetResult:
    """One method on one set: estimates, per-point scores, and the log-likelihoods (T, n) where the set is labelled.

    `predicted` is the class, or the mean of a regression in target units, whose standard deviation `sigma` is; without
    τ that is of the draws alone.

    With several labels per point, which are predicted 0 or 1 each, `estimates` and `points` are means over labels;
    `by_label` and `label_points` have the estimates and the points of each, where the set is labelled. With one,
    `by_class` and `by_group` have accuracy, PLL and number of the points of `parts_of`, and where they are known the
    AUROC of their errors and the coverage of their prediction sets; `by_score` has the AUROC of all errors by each
    other score than predictive entropy, by which `estimates` has it.

    The points of a segmentation are images, and their values means over the `pixels` of each that are scored;
    `predicted` counts its pixels of each class. `contributions` are those of the images to estimates that are no means
    over pixels. `by_class` has IoU, Dice, the share of pixels that are found, and their number.

    `ranked` are the scores of test points that OOD sets are separated from, where a recalibration is fitted to halves
    of the test set: those by the one that is fitted to all test points, as OOD points have them.
    """

    estimates: Estimates
    points: Mapping[str, Float[np.ndarray, " point"]]
    predicted: Annotated[Num[np.ndarray, "#point *output"], Unit("number of a class, or target unit")]
    sigma: TargetUnits | None = None
    log_likelihood: Annotated[Float[np.ndarray, "sample point *label"] | None, ByHand("")] = None
    samples: Annotated[Samples | None, ByHand("")] = None
    maps: Annotated[Maps | None, ByHand("")] = None
    by_label: Mapping[LabelName, Estimates] = field(default_factory=dict)
    label_points: Mapping[str, Float[np.ndarray, "point label"]] = field(default_factory=dict)
    by_class: Mapping[ClassName, Part] = field(default_factory=dict)
    by_group: Mapping[GroupName, Part] = field(default_factory=dict)
    by_score: Mapping[ScoreName, OfErrors] = field(default_factory=dict)
    contributions: Mapping[str, Float[np.ndarray, " point"]] = field(default_factory=dict)
    ranked: Mapping[str, Float[np.ndarray, " point"]] = field(default_factory=dict)

    def __repr__(self) -> str:
        estimates = ", ".join(f"{name} {estimate.value:.4g}" for name, estimate in self.estimates.items())
        return f"<SetResult of {len(self.predicted):,} examples: {estimates}>"

    def of_label(self, label: str) -> SetResult:
        """One of the labels as a classification of two classes."""
        position = list(self.by_label).index(label)
        likelihood = self.log_likelihood
        return SetResult(
            estimates=self.by_label[label],
            points={name: values[:, position] for name, values in self.label_points.items()},
            predicted=self.predicted[:, position],
            log_likelihood=None if likelihood is None else likelihood[:, :, position],
        )


@frozen
class MethodResult:
    """One method on every set. `convergence` holds estimates of the first 1, 2, 4, … draws on the test set,
    `calibration` the bins of stated confidence, or the coverage of central intervals of a regression, `risk` the error
    of the most certain points against how many they are, `uncertainty_error` sd, |error| and its running mean by
    ascending sd.

    `pixel_ood` is the separation of the pixels of a segmentation, of whose images `ood` is; `class_calibration`
    are shares of each class by bins of its probability.

    `bounds` are the scores of the "constant" and of the "optimum" uncertainty about the same predictions, and
    `normalized` where the method's own lie between them, in percent.
    """

    sets: Mapping[SetName, SetResult]
    ood: Mapping[SetName, Mapping[ScoreName, Separation]]
    convergence: Mapping[str, Num[np.ndarray, " samples"]]
    calibration: Mapping[str, Num[np.ndarray, " bin"]]
    risk: Mapping[str, Num[np.ndarray, " coverage"]]
    uncertainty_error: Mapping[Annotated[str, Among("rank sigma error running_error")], Num[np.ndarray, " rank"]] = (
        field(default_factory=dict)
    )
    pixel_ood: Mapping[SetName, Mapping[ScoreName, Estimates]] = field(default_factory=dict)
    class_calibration: Mapping[Annotated[str, Among("count confidence accuracy")], Num[np.ndarray, "class bin"]] = (
        field(default_factory=dict)
    )
    bounds: Mapping[BoundName, Bound] = field(default_factory=dict)
    normalized: Normalized = field(default_factory=dict)

    def ranked(self, score: str, name: str) -> tuple[Float[np.ndarray, " test"], Float[np.ndarray, " other"]]:
        """A score of the test points and of those of another set, which rank against each other."""
        test = self.sets["test"]
        inside = test.points if change_in(name) is not None else {**test.points, **test.ranked}
        return inside[score], self.sets[name].points[score]


@frozen
class Thumbnails:
    """Small copies of the most informative images of a set, the most informative first; `kind` says in what sense,
    `method` by which method ("suspected-label": of earlier versions). `points` are their numbers in the set, `pixels`
    are 8-bit, grey or RGB."""

    kind: Literal["uncertain", "confidently-wrong", "suspected-label", "familiar"]
    set: SetName
    method: MethodName
    points: Int64[np.ndarray, " picture"]
    pixels: UInt8[np.ndarray, "picture row column channel"]


@frozen
class ImageMaps:
    """Small copies of images of the test set of a segmentation, and of their maps by `method`: the predicted class and
    scores of each pixel, and if it is known its true class, or `NOT_SCORED`. `points` are their numbers in the set,
    `pixels` are 8-bit, grey or RGB; None if inputs are not images."""

    method: MethodName
    points: Int64[np.ndarray, " picture"]
    predicted: Int16[np.ndarray, "picture row column"]
    scores: Mapping[str, Float16[np.ndarray, "picture row column"]]
    truth: Int16[np.ndarray, "picture row column"] | None = None
    pixels: UInt8[np.ndarray, "picture row column channel"] | None = None


@frozen
class ReferenceCheck:
    """How far the reference batches' statistics lie from the checkpoint's running ones, layer by layer.

    `mean` and `log_variance` are root mean squares over channels of the difference in units of batch noise; `expected`
    is what batch noise alone gives. `unfit` layers could not be compared so, at least in some channels, and normalise
    their inputs otherwise. Source: the null of Wu & Johnson 2021's moving averages, under a fixed network.
    """

    layers: Annotated[tuple[str, ...], Axis("layer")]
    mean: BatchNoise
    log_variance: BatchNoise
    expected: BatchNoise
    passed: bool
    unfit: tuple[str, ...] = ()

    @property
    def ratios(self) -> Float[np.ndarray, "layer quantity"]:
        """Of mean and log variance: the difference relative to what batch noise explains."""
        return np.stack([self.mean, self.log_variance], axis=1) / self.expected[:, None]

    @property
    def fits(self) -> bool:
        """Whether no layer is unfit, and median and worst are within their limits; layers may still be untrained."""
        return within_limits(self.ratios) and not self.unfit


def within_limits(ratios: Float[np.ndarray, "layer quantity"]) -> bool:
    """Whether both the median and the worst layer are within their limits of batch noise, in every quantity."""
    return bool((np.median(ratios, axis=0) <= MEDIAN_LIMIT).all() and ratios.max() <= WORST_LIMIT)


@frozen
class MethodWork:
    """The cost of the forward passes of one method.

    `ratio` is their cost over that of as many plain forwards. If there was a plan: multiply-adds of a point done
    `once` and for `each` draw, BatchNorms `folded` into the layers before them, draws `stacked` in one pass. Where
    there was none, `why_plain` says why. Samples that are `given_by` the passes of another method have their cost
    there.
    """

    seconds: float
    passes: int
    ratio: float | None = None
    once: int | None = None
    each: int | None = None
    folded: int | None = None
    stacked: int | None = None
    why_plain: str | None = None
    given_by: MethodName | None = None


@frozen
class Work:
    """The cost of a run: the passes of each method, and the peak memory of the process, in bytes."""

    methods: dict[MethodName, MethodWork] = field(default_factory=dict)
    peak_bytes: int | None = None

    def summary(self) -> dict[str, Any]:
        """As JSON values, without unknown ones."""
        methods = {
            name: {key: value for key, value in vars(method).items() if value is not None}
            for name, method in self.methods.items()
        }
        return {"methods": methods} | ({} if self.peak_bytes is None else {"peak_bytes": self.peak_bytes})


@frozen
class Result:
    """The result of one `bnuq evaluate`. The deterministic method is always there, and first; beside mcbn
    "deterministic+population" is there where the reference check failed. `units` are the SHA-256 of the units of work
    that its figures were made of, by their names; the root of their Merkle tree stands in the provenance."""

    KIND: ClassVar[str] = "evaluate"
    COMMAND: ClassVar[str] = "evaluate"

    run: Mapping[str, Any]
    model: Mapping[str, Any]
    sampling: Mapping[str, Any]
    sets: Mapping[str, EvaluatedSet]
    methods: Mapping[MethodName, MethodResult]
    findings: tuple[Finding, ...]
    seconds: Mapping[str, float]
    provenance: Mapping[str, Any]
    work: Work = field(default_factory=Work)
    reference_check: ReferenceCheck | None = None
    certification: Certification | None = None
    shift: Shift | None = None
    gallery: tuple[Thumbnails, ...] = ()
    image_maps: ImageMaps | None = None
    bank: Annotated[Bank | None, ByHand("")] = field(default=None, repr=False)
    path: Path | None = None
    units: Mapping[str, str] = field(default_factory=dict, repr=False)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Every estimate, in the order of the fields."""
        return tuple(rows_of(self))

    @cached_property
    def computed(self) -> dict[str, Any]:
        """What other modules compute of this record alone, kept while it lives, by a name of theirs."""
        return {}

    @property
    def task(self) -> Task:
        """The task of the network."""
        return task_named(self.model.get("task", "classification"), several_labels=bool(self.model.get("labels")))

    @property
    def first(self) -> str:
        """The method that others are compared with, where none is named: the deterministic network."""
        return next(iter(self.methods))

    def is_single(self, method: str) -> bool:
        """Whether a method has one sample of a point."""
        return method_named(method).is_single

    def file_sha256(self, method: str) -> str | None:
        """The digest of the file that the samples of a method are from, if they are from one."""
        return self.provenance.get("predictions_sha256") if "file" in method_named(method).differs_by else None

    @property
    def mask_generator(self) -> str:
        """The generator of dropout masks. Before it was recorded, GPUs had one of their own."""
        on_gpu = not str(self.sampling["device"]).startswith(("cpu", "mps"))
        return self.provenance.get("masks", "squares" if on_gpu else MASKS)

    @property
    def sampled(self) -> tuple[str, ...]:
        """The methods of several samples."""
        return tuple(method for method in self.methods if not self.is_single(method))

    @property
    def given_distribution(self) -> Literal["", "gaussian", "quantiles"]:
        """What each point of a regression has in place of samples and observation noise, if anything."""
        return ""

    @property
    def is_cross_fitted(self) -> bool:
        """Whether temperatures, or τ and the constant σ of a regression, were fitted to halves of the test set."""
        return self.run.get("sampling", {}).get("calibrate") == "cross"

    def samples_of(self, method: str) -> int:
        """The samples of a point under a method: 1 of a single pass, the networks of an ensemble, and otherwise T."""
        sources = method_named(method).differs_by
        if not sources:
            return 1
        return len(self.model["members"]) if "networks" in sources else int(self.sampling["samples"])


FileMethodName = Annotated[str, Coordinate("method")]  # by the name of its file


@frozen
class Scored(Result):
    """The result of one `bnuq score`: the methods are files of predictions, and `model["files"]` says what is known of
    each."""

    KIND: ClassVar[str] = "score"
    COMMAND: ClassVar[str] = "score"

    methods: Mapping[FileMethodName, MethodResult]

    def is_single(self, method: str) -> bool:
        return self.samples_of(method) == 1

    @property
    def given_distribution(self) -> Literal["", "gaussian", "quantiles"]:
        kinds = {file["outputs"] for file in self.model["files"].values()}
        return "quantiles" if kinds == {"quantiles"} else "gaussian" if kinds <= {"gaussian", "quantiles"} else ""

    def file_sha256(self, method: str) -> str | None:
        return self.model["files"][method_named(method).plain.name]["sha256"]

    def samples_of(self, method: str) -> int:
        return int(self.model["files"][method_named(method).plain.name]["samples"])

    def renamed(self, new: str) -> Scored:
        """The result of one file of predictions under another name of its method."""
        (old,) = self.model["files"]

        def name_of(method: str) -> str:
            return new + method.removeprefix(old)

        def of_methods(values: Mapping[str, Any]) -> dict[str, Any]:
            return {name_of(method): value for method, value in values.items()}

        promised = self.certification
        if promised is not None:
            promised = replace(promised, method=name_of(promised.method), methods=of_methods(promised.methods))
        model = {**self.model, "files": of_methods(self.model["files"])}
        return replace(self, model=model, methods=of_methods(self.methods), certification=promised)


def of_label(result: Result, label: str) -> Result:
    """The test set of a result with several labels per point, scored for one of them: a classification of two
    classes."""
    test = result.sets["test"]
    assert test.labels is not None
    position = list(next(iter(result.methods.values())).sets["test"].by_label).index(label)
    return replace(
        result,
        model={key: value for key, value in result.model.items() if key != "labels"},
        sets={"test": replace(test, labels=test.labels[:, position])},
        methods={
            name: MethodResult({"test": method.sets["test"].of_label(label)}, {}, {}, {}, {})
            for name, method in result.methods.items()
        },
    )
