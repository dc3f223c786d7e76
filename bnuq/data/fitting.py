"""Points of one shape: pictures in files looked at, resized and cropped as the run says, and OOD sets adapted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from bnuq.data.decoded import OTHER_SIZE, Decoded, InArray, ItemSizes, sides
from bnuq.data.masks import Masks
from bnuq.data.points import Points, sample_of
from bnuq.data.resizing import Fit, Size
from bnuq.errors import DataError, RequestError
from bnuq.findings import note, warning

Shape = tuple[int, ...]


def fitted(
    points: Points,
    fit: Fit | None = None,
    *,
    whole: bool = True,
    like: Shape | None = None,
    adapt: bool = False,
    ignore: int = 255,
) -> Points:
    """`points` through `fit`. Of pictures in files that are evaluated `whole` every one is looked at: they are RGB
    where any has colour, and of one size. `like` is the shape of the test set's points: a reference that is not read
    whole has its channels, and a set that may `adapt` takes its shape, which a note says. Masks get the same geometry,
    with `ignore` where pictures are padded; they are looked at where the set is evaluated.

    Raises DataError for pictures that are damaged or of several sizes, and for masks of another size than their
    pictures; RequestError for a fit of other points.
    """
    if fit is not None and fit != Fit(interpolation=fit.interpolation):
        points = _with_fit(points, fit, ignore)
    surveyed = isinstance(points.inputs, Decoded) and points.inputs.source.encoded
    sizes: dict[Size, int] = {}
    if surveyed:
        points, sizes = _surveyed(points) if whole else (_unread(points, like), {})
    if not whole and isinstance(points.inputs, Decoded) and not isinstance(points.inputs.source, InArray):
        findings, sample = points.findings, len(sample_of(len(points)))
        if not points.inputs.source.encoded and sample < len(points):
            few = warning("dataset-sampled", reference=points.reference, points=len(points), sample=sample)
            findings = (*findings, few)
        points = replace(points, listed=True, findings=findings)
    before = points.point_shape
    if adapt and like is not None and len(before) == len(like) == 3 and (before != like or len(sizes) > 1):
        points, sizes = _adapted(points, like, fit or Fit(), len(sizes), ignore), {}
    if len(sizes) > 1:
        inputs = points.inputs
        assert isinstance(inputs, Decoded)
        (first, a), (other, b) = list(sizes.items())[:2]
        raise DataError(
            f"{inputs.source.name(b)}: is {other[1]} × {other[0]} pixels{' then' * bool(inputs.fit)}, and "
            f"{inputs.source.name(a, short=True)} is {first[1]} × {first[0]}; {OTHER_SIZE}"
        )
    return points


def in_colour(points: Points) -> Points:
    """Grey pictures repeated to the three channels of RGB, with a note; other points as they are."""
    if len(points.point_shape) != 3 or points.point_shape[0] != 1:
        return points
    inputs = points.inputs
    if not isinstance(inputs, Decoded):
        inputs = Decoded(InArray(inputs[:], points.reference), np.arange(len(points)), points.point_shape, inputs.dtype)
    inputs = replace(inputs, fit=replace(inputs.fit or Fit(), channels=3))
    return replace(points, inputs=inputs, findings=(*points.findings, note("grey-as-rgb")))


def are_grey_files(points: Points) -> bool:
    """Whether these are pictures in files, none of which has colour."""
    inputs = points.inputs
    return isinstance(inputs, Decoded) and inputs.source.encoded and points.point_shape[0] == 1


def _with_fit(points: Points, fit: Fit, ignore: int) -> Points:
    if len(points.point_shape) != 3:
        raise RequestError(
            f"data.{'resize' if fit.resize else 'crop'} needs images (channels, height, width); the examples of "
            f"{points.reference} have shape {points.point_shape}."
        )
    same = fit.channels in (None, points.point_shape[0]) and fit.keeps(*points.point_shape[1:])
    if same and not isinstance(points.inputs, Decoded):
        return points
    inputs = points.inputs
    if not isinstance(inputs, Decoded):
        array = inputs[:]
        inputs = Decoded(InArray(array, points.reference), np.arange(len(array)), array.shape[1:], array.dtype)
    targets = points.targets if points.masks is None else points.masks.fitted(fit, ignore)
    fitting = replace(points, inputs=replace(inputs, fit=fit), targets=targets)
    return fitting if inputs.source.encoded else _with_padding_noted(fitting, fit, [points.point_shape[1:]])


def _with_padding_noted(points: Points, fit: Fit | None, sizes: Iterable[Shape]) -> Points:
    """The points, with a note where pictures of these sizes are smaller than the crop."""
    small = [size for size in sizes if fit is not None and fit.pads(*size)]
    if not small or fit is None or fit.crop is None:
        return points
    padded = note("crop-pads", size=sides(*small[0]), crop=sides(*fit.crop))
    return replace(points, findings=(*points.findings, padded))


def _surveyed(points: Points) -> tuple[Points, dict[Size, int]]:
    """The points with the channels that all of them show, and the number of the first one of each size."""
    inputs = points.inputs
    assert isinstance(inputs, Decoded)
    survey = inputs.survey()
    if points.masks is not None:
        _check_sizes_of_masks(points.masks, survey, inputs)
    channels = 3 if survey.colour else 1
    inputs = replace(inputs, first_shape=(channels, *inputs.first_shape[1:]), surveyed=True)
    sizes: dict[Size, int] = {}
    for size, index in survey.first_of_size.items():
        sizes.setdefault(inputs.fit.size_of(*size) if inputs.fit else size, index)
    return _with_padding_noted(replace(points, inputs=inputs), inputs.fit, survey.first_of_size), sizes


def _check_sizes_of_masks(masks: Masks, pictures: ItemSizes, inputs: Decoded) -> None:
    """DataError for the first mask that has another size than its picture."""
    mask_sizes = masks.survey().sizes
    if (wrong := np.flatnonzero((mask_sizes != pictures.sizes).any(axis=1))).size:
        row = int(wrong[0])
        others = f"; {len(wrong) - 1} more masks are of another size" * (len(wrong) > 1)
        raise DataError(
            f"{masks.name(row)}: is {sides(*mask_sizes[row])} pixels, and its image "
            f"{inputs.source.name(int(inputs.rows[row]), short=True)} is {sides(*pictures.sizes[row])}{others}; "
            "expected the size of the image. Make masks of the original images: --resize then applies to both."
        )


def _unread(points: Points, like: Shape | None) -> Points:
    """A reference, of which the first picture alone was looked at: the test set says whether it is in colour."""
    inputs = points.inputs
    assert isinstance(inputs, Decoded)
    channels, *size = inputs.first_shape
    if like is not None and (channels, like[0]) == (1, 3):
        inputs = replace(inputs, first_shape=(3, *size))
    return replace(points, inputs=inputs)


def _adapted(points: Points, like: Shape, fit: Fit, sizes: int, ignore: int) -> Points:
    before = points.point_shape
    channels = like[0] if {before[0], like[0]} == {1, 3} else None
    size = (like[1], like[2]) if before[1:] != like[1:] or sizes > 1 else None
    if channels is None and size is None:
        return points
    adapted = _with_fit(points, replace(fit, channels=channels, size=size), ignore)
    finding = note(
        "set-adapted",
        channels=[before[0], channels or before[0]],
        size=["several" if sizes > 1 else f"{before[2]} × {before[1]}", f"{like[2]} × {like[1]}"],
        resized=size is not None,
    )
    return replace(adapted, findings=(*points.findings, finding))
