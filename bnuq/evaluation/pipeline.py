"""From points to the network's input: normalisation, augmentation, order of channels; the scale of targets; and the
device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnuq import devices
from bnuq.arithmetic import Arithmetic, arithmetic_named
from bnuq.config import Augment, Normalize, PointSettings
from bnuq.data import (
    WORDS,
    Decoded,
    Points,
    ahead,
    augmented,
    check_ranges,
    crop_of,
    flips,
    jitter_of,
    jittered,
    mean_and_std,
    normalized,
    padded,
    places,
    resized_crop,
)
from bnuq.errors import RequestError, first_line
from bnuq.evaluation import memory
from bnuq.evaluation.target_scale import normalize_of, statistics
from bnuq.files.mapped import is_mapped
from bnuq.findings import Finding, note
from bnuq.frozen import frozen
from bnuq.sampling import counter_rng
from bnuq.sampling.program_draws import windows
from bnuq.shapes import Bool, Int64


def input_normalize(settings: PointSettings, train: Points | None, evaluated: Points | None = None) -> Normalize | None:
    """The statistics that inputs are normalised with; "train" computes them from the reference, feature by feature.
    RequestError for published ones of another number of channels than the `evaluated` points have (the reference, where
    None): one number of MEAN/STD serves all channels, those of grey images do not."""
    if settings.normalize != "train":
        points = train if evaluated is None else evaluated
        if settings.normalize_name is not None and settings.normalize is not None and points is not None:
            numbers, channels = len(settings.normalize.mean), points.point_shape[0]
            if numbers != channels:
                written = ",".join(["MEAN"] * channels) + "/" + ",".join(["STD"] * channels)
                raise RequestError(
                    f"--normalize {settings.normalize_name} is for images of {numbers} channel{'s' * (numbers > 1)}, "
                    f"and the examples of {points.reference} have shape {points.point_shape}, with {channels} first; "
                    "expected the normalisation of the training: another name, or numbers "
                    f"(--normalize {written}; one number serves all channels)."
                )
        return settings.normalize
    if train is None:
        raise RequestError(
            'data.normalize is "train", and there is no training set to take mean and std of. Add --train REF, or '
            "write normalize = { mean = [...], std = [...] }."
        )
    is_read = isinstance(train.inputs, Decoded) or is_mapped(train.inputs)
    if is_read and 8 * math.prod(train.inputs.shape) > _IN_MEMORY:
        return _streamed(train)
    values = train.raw(slice(None))
    return statistics(np.moveaxis(values, 1, -1).reshape(-1, values.shape[1]))


_IN_MEMORY = 2**31  # bytes of a reference whose statistics are taken in one go


def _streamed(train: Points) -> Normalize:
    """`statistics` of a reference that does not fit in memory: the parts' means and variances, merged."""
    count, mean, squares = 0, np.zeros(train.point_shape[0]), np.zeros(train.point_shape[0])
    for start in range(0, len(train), 256):
        values = np.moveaxis(train.raw(slice(start, start + 256)), 1, -1).reshape(-1, train.point_shape[0])
        part, delta = len(values), values.mean(0, dtype=np.float64) - mean
        squares += values.var(0, dtype=np.float64) * part + delta**2 * (count * part / (count + part))
        count, mean = count + part, mean + delta * part / (count + part)
    return normalize_of(mean, np.sqrt(squares / count))


@frozen
class Pipeline:
    """Turns points into the network's input on its device: as in evaluation, or as in training. Points that are
    `integers`, such as token numbers, or several inputs, packed, are passed as int64, as they are."""

    settings: PointSettings
    device: torch.device
    normalize: Normalize | None = None
    integers: bool = False

    arithmetic: Arithmetic = field(init=False)  # of the samples

    def __post_init__(self) -> None:
        arithmetic = arithmetic_named(self.settings.precision, devices.torch_uses_tf32(self.device))
        object.__setattr__(self, "arithmetic", arithmetic)
        if arithmetic.is_exact:  # others are checked where they are used: points are also prepared on the CPU
            self.check_arithmetic()

    def check_arithmetic(self) -> None:
        """Raise RequestError for an arithmetic that the device does not have."""
        check_arithmetic(self.arithmetic, self.device)

    @property
    def dtype(self) -> torch.dtype:
        return getattr(torch, self.arithmetic.network)

    def evaluated(self, points: Points, indices: Any) -> Tensor:
        """Evaluated points: normalisation only."""
        return self.prepared(points.inputs[indices].astype(np.int64) if self.integers else points.raw(indices))

    def trained(
        self, points: Points, indices: Int64[np.ndarray, " batch"], *, draw: int, purpose: int, first: int = 0
    ) -> Tensor:
        """A reference batch through the training pipeline: augmentation of raw pixels, then normalisation.

        The points have the places `first`, `first` + 1, … in their batch.
        """
        key = {"draw": draw, "purpose": purpose, "first": first}
        return self.augmented(self.pixels(points, indices, **key), **key)

    def batches(
        self, points: Points, rows: Iterable[Int64[np.ndarray, " _"]], *, draws: Iterable[int], purpose: int
    ) -> Iterator[Tensor]:
        """The reference batches with these rows and numbers, see `trained` and `made`."""
        makers = (
            partial(self.trained, points, batch, draw=draw, purpose=purpose)
            for draw, batch in zip(draws, rows, strict=True)
        )
        return self.made(makers, points)

    def made(self, makers: Iterable[Callable[[], Tensor]], *sets: Points) -> Iterator[Tensor]:
        """What the makers make of the points of these sets; the next one while one is in use, where `makes_ahead`."""
        if not self.makes_ahead(*sets):
            return (make() for make in makers)
        return ahead(makers, devices.queue_of_this_thread(self.device))

    def makes_ahead(self, *sets: Points) -> bool:
        """Whether a thread makes the next inputs of these sets while some are in use: for an accelerator, or where
        reading them takes time, but for those that the user's code makes."""
        worthwhile = not devices.is_host(self.device) or any(points.read_in_threads for points in sets)
        return worthwhile and not any(points.is_user_code for points in sets)

    def pixels(
        self, points: Points, indices: Int64[np.ndarray, " batch"], *, draw: int, purpose: int, first: int = 0
    ) -> np.ndarray:
        """Raw reference points before augmentation, or random parts of the original pictures; they have the places
        `first`, `first` + 1, … in their batch."""
        augment = self.settings.augment
        if self.integers:
            return points.inputs[indices].astype(np.int64)
        if augment is None or augment.resized_crop is None:
            return points.raw(indices)
        if len(points.point_shape) != 3:
            raise RequestError(
                f"{augment.place}.resized_crop needs images; the examples have shape {points.point_shape}."
            )
        check_ranges(augment)
        words = counter_rng.part_words(self.settings.seed, draw, len(indices), WORDS, purpose, first=first)
        return points.changed(
            indices,
            (augment.resized_crop, augment.resized_crop),
            lambda place, picture: resized_crop(picture, augment, words[place], self.settings.interpolation),
        )

    def augmented(self, raw: np.ndarray, *, draw: int, purpose: int, first: int = 0) -> Tensor:
        """A batch of `pixels`, padded, cropped, flipped, jittered and normalised; see `pixels` for `first`."""
        if (augment := self.settings.augment) is not None:
            _check_padding_fits(raw, augment)
            key = self.settings.seed, draw, len(raw), purpose
            raw = augmented(raw, augment, counter_rng.augmentation_words(*key, first=first))
            if augment.jitter is not None:
                words = counter_rng.jitter_words(*key, first=first)
                raw = jittered(raw, jitter_of(augment), words, place=augment.place)
        return self.prepared(raw)

    @property
    def augments_by_place(self) -> bool:
        """Whether an augmented picture is a part of the padded one, so that it can be normalised before."""
        augment = self.settings.augment
        by_place = augment is not None and augment.jitter is None and augment.resized_crop is None
        return by_place and not self.integers

    def padded(self, points: Points, indices: Int64[np.ndarray, " batch"]) -> Tensor:
        """Pictures with their padding, normalised, on the device: those that `parts` are taken of."""
        assert self.settings.augment is not None
        raw = points.raw(indices)
        _check_padding_fits(raw, self.settings.augment)
        return self.prepared(padded(raw, self.settings.augment))

    def parts(
        self, pictures: Tensor, shape: tuple[int, ...], *, draws: Sequence[int], purpose: int, first: int = 0
    ) -> tuple[Tensor, Tensor]:
        """`augmented` points (draw·point, …) of several draws, and which are flipped, of `padded` pictures that had
        this shape (channels, height, width); an accelerator is not waited for."""
        augment, count = self.settings.augment, len(pictures)
        assert augment is not None
        of_draw = partial(counter_rng.augmentation_words, self.settings.seed)
        words = [of_draw(draw, count, purpose, first=first) for draw in draws]
        top, left, flipped = places(shape, augment, np.stack(words))
        height, width = map(np.arange, crop_of(shape, augment))
        across = np.where(flipped[..., None], width[::-1], width) + left[..., None]
        down, across, flipped = (
            devices.upload(torch.from_numpy(values), self.device)
            for values in (top[..., None] + height, across, flipped.ravel())
        )
        return windows(pictures, down, across), flipped

    def flips(self, count: int, *, draw: int, purpose: int, first: int = 0) -> Bool[Tensor, " row"]:
        """Which of so many pictures `augmented` flips left and right with this key."""
        if self.settings.augment is None or not self.settings.augment.flip:
            return torch.zeros(count, dtype=torch.bool, device=self.device)
        words = counter_rng.augmentation_words(self.settings.seed, draw, count, purpose, first=first)
        return torch.from_numpy(flips(words)).to(self.device)

    def backwards(self, gradient: Tensor) -> Tensor:
        """A gradient w.r.t. the network's input as one w.r.t. the raw points, up to positive factors of the
        normalisation, which keep its signs."""
        return gradient.flip(1) if self.settings.channel_order == "bgr" else gradient

    def prepared_on_device(self, raw: Tensor) -> Tensor:
        """`prepared` of floats that are on the device, or on the CPU where that has no such floats: to the bit, and an
        accelerator is not waited for."""
        raw = raw.flip(1) if self.settings.channel_order == "bgr" else raw
        wide = raw.double() if self.dtype == torch.float64 else raw
        if self.normalize is not None:
            of_numpy = np.float64 if wide.dtype == torch.float64 else np.float32
            statistics = mean_and_std(tuple(wide.shape), of_numpy, self.normalize)
            mean, std = (devices.upload(torch.from_numpy(values), wide.device) for values in statistics)
            wide = (wide - mean) / std
        return devices.upload(wide, self.device, self.dtype)

    def prepared(self, raw: np.ndarray) -> Tensor:
        """Raw points as the network's input: normalised, in its order of channels, on its device."""
        if self.integers:
            return devices.upload(torch.from_numpy(raw), self.device)
        if self.settings.channel_order == "bgr":
            if raw.ndim != 4 or raw.shape[1] != 3:
                raise RequestError(
                    f'data.channel_order is "bgr", and examples have shape {raw.shape[1:]}; expected images with 3 '
                    "channels."
                )
            raw = np.ascontiguousarray(raw[:, ::-1])
        wide = raw.astype(np.float64) if self.dtype == torch.float64 else raw
        inputs = np.require(normalized(wide, self.normalize), requirements="W")  # the array may be read-only
        return devices.upload(torch.from_numpy(inputs), self.device, self.dtype)


def _check_padding_fits(raw: np.ndarray, augment: Augment) -> None:
    """RequestError where a mini-batch with its padding would not fit in memory."""
    if raw.ndim != 4 or augment.pad <= max(raw.shape[2:]):
        return
    padded = raw.nbytes * math.prod(side + 2 * augment.pad for side in raw.shape[2:]) // math.prod(raw.shape[2:])
    free = memory.available(torch.device("cpu"))
    if free is not None and 2 * padded > free:
        raise RequestError(
            f"{augment.place}.pad is {augment.pad}: a mini-batch of {len(raw)} images would take "
            f"{memory.in_words(2 * padded)} with its padding, and {memory.in_words(free)} are free. Expected less."
        )


def device_and_notes(name: str) -> tuple[torch.device, tuple[Finding, ...]]:
    """The device, with its index, that `name` (one of devices.NAMES) stands for here, and a note where "auto" does not
    use a GPU that is there; RequestError where it cannot be used."""
    if name == "auto":
        if (accelerator := devices.preferred()) is None:
            return torch.device("cpu"), ()
        try:
            return _probed(accelerator), ()
        except RuntimeError as error:
            return torch.device("cpu"), (note("gpu-unusable", reason=first_line(error)),)
    try:
        return _probed(name), ()
    except (RuntimeError, AssertionError) as error:
        raise RequestError(
            f"--device {name} cannot be used here ({first_line(error)}); expected {devices.NAMES}."
        ) from error


def _probed(name: str) -> torch.device:
    """The device with its index, because another thread may have another current device. It has run a kernel, which
    fails on a GPU that this build of torch has no kernels for."""
    probe = torch.ones(1, device=torch.device(name), dtype=torch.float64) + 1
    probe.item()
    return probe.device


def check_arithmetic(arithmetic: Arithmetic, device: torch.device) -> None:
    """Raise RequestError for an arithmetic that this device does not have."""
    if "tf32" in (arithmetic.convolutions, arithmetic.products) and not devices.traits(device).tf32:
        raise RequestError(
            f"--precision {arithmetic} is an arithmetic of CUDA devices, and this is {device}; use float32 or bfloat16."
        )
    if arithmetic.half == "float16" and devices.is_host(device):
        raise RequestError(
            f"--precision {arithmetic} is an arithmetic of accelerators, and this is {device}, where float32 is "
            "faster; use float32 or bfloat16."
        )
