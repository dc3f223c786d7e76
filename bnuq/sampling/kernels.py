"""Triton kernels that read and write memory once where plain operations do so several times. Triton comes with torch
for GPUs. A kernel is used on a device on which it was found, once in a process, to give what plain operations give."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from math import prod
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from bnuq import devices

_BLOCK = 1024  # entries of a program
_MOST_BLOCKS = 2**16 - 1  # along the second axis of a grid
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)

tl: Any = None  # triton.language, from the first kernel on; kernels look it up among the names of this module


def activated(
    x: Float[Tensor, "row channel *place"],
    scale: Float[Tensor, "draw channel"],
    shift: Float[Tensor, "draw channel"],
    added: Float[Tensor, "row channel *place"] | None = None,
) -> Float[Tensor, "row channel *place"]:
    """ReLU(x·scale + shift), or ReLU(x·scale + shift + added). The rows hold the same points once for each draw, draw
    by draw. It is computed in the dtype of scale and shift, at least in float32, and rounded to that of x."""
    if not (_fits(x) and scale.dtype in _DTYPES and _is_right("activated", x.device, x.dtype)):
        return plainly_activated(x, scale, shift, added)
    return _activated(x, scale, shift, added)


def plainly_activated(x: Tensor, scale: Tensor, shift: Tensor, added: Tensor | None = None) -> Tensor:
    """`activated` by operations of torch."""
    shape = (len(scale), 1, -1, *[1] * (x.ndim - 2))
    rows = x.unflatten(0, (len(scale), -1))
    out = None if x.dtype == scale.dtype else torch.empty_like(rows)
    result = torch.addcmul(shift.view(shape), rows, scale.view(shape), out=out).flatten(0, 1)
    return (result if added is None else result.add_(added)).relu_()


def masked(
    x: Float[Tensor, "row channel *place"],
    keys: Int64[Tensor, " draw"],
    *,
    p: float,
    first: int,
    by_channel: bool,
    out: Tensor | None,
) -> Tensor | None:
    """x after dropout at rate p, with masks by `squares`: the entries of a draw have the numbers `first`, `first` + 1,
    …, those of a channel one number if `by_channel`. None where no kernel computes it."""
    if not (_fits(x) and _is_right("masked", x.device, x.dtype)):
        return None
    return _masked(x, keys, p, first, by_channel, out)


def threshold(p: float) -> int:
    """Signed numbers of 32 bits that are at least this large keep an entry at rate p."""
    return min(round(p * 2**32), 2**32 - 1) - 2**31


def squares(keys: Int64[Tensor, "draw 1"], counter: Int64[Tensor, " entry"]) -> Int64[Tensor, "draw entry"]:
    """Random words, whose high halves count: functions of a key and the number of the entry. All integers wrap.

    Source: Widynski 2020, "Squares: A Fast Counter-Based RNG", arXiv 2004.06278, squares32.
    """
    y = keys * counter
    z = y + keys
    x = torch.addcmul(y, y, y)
    for summand in (z, y, z):
        swapped = x.view(torch.int32).unflatten(-1, (-1, 2)).flip(-1).flatten(-2).view(torch.int64)
        x = torch.addcmul(summand, swapped, swapped, out=x)
    return x


def _fits(x: Tensor) -> bool:
    """Whether the kernels can read the entries of x in the order in which they lie in memory."""
    dense = x.is_contiguous() or _is_channels_last(x)
    return x.ndim > 1 and x.numel() > 0 and dense and x.dtype in _DTYPES and x[0].numel() <= _BLOCK * _MOST_BLOCKS


def _is_channels_last(x: Tensor) -> bool:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return not x.is_contiguous() and x.ndim in formats and x.is_contiguous(memory_format=formats[x.ndim])


# ── launches ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _activated(x: Tensor, scale: Tensor, shift: Tensor, added: Tensor | None) -> Tensor:
    out = torch.empty_like(x)
    other = x
    if added is not None:
        other = added if added.stride() == x.stride() else torch.empty_like(x).copy_(added)
    rows = len(x) // len(scale)
    parameters = scale.contiguous(), shift.contiguous(), rows, x.shape[1], prod(x.shape[2:])
    _launch(_activate, x, other, out, *parameters, ADDS=added is not None, CHANNELS_LAST=_is_channels_last(x))
    return out


def _masked(x: Tensor, keys: Tensor, p: float, first: int, by_channel: bool, out: Tensor | None) -> Tensor:
    out = torch.empty_like(x) if out is None else out
    scale = float(torch.ones((), dtype=x.dtype).mul_(1 / (1 - p)))  # rounded as plain operations round it
    parameters = keys, len(x) // len(keys), x.shape[1], prod(x.shape[2:]), first, threshold(p), scale
    _launch(_mask, x, out, *parameters, BY_CHANNEL=by_channel, CHANNELS_LAST=_is_channels_last(x))
    return out


def _launch(kernel: Callable[..., None], x: Tensor, *arguments: Any, **constants: Any) -> None:
    """A program for each block of each row."""
    entries = x[0].numel()
    block = min(_BLOCK, 1 << (entries - 1).bit_length())
    with devices.as_current(x.device):
        _compiled(kernel)[len(x), -(-entries // block)](x, *arguments, **constants, BLOCK=block)


@cache
def _compiled(kernel: Callable[..., None]) -> Any:
    global tl
    import triton  # late: not every torch has it
    from triton import language

    tl = language
    return triton.jit(kernel)


# ── is it right here? ─────────────────────────────────────────────────────────────────────────────────────────────────


@cache
def _is_right(name: str, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernel of this name gives, for this dtype on this device, what plain operations give there; on a CPU
    none is used."""
    if devices.is_host(device) or find_spec("triton") is None:
        return False
    try:
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Triton, about its defaults
            return all(_CHECKS[name](x) for x in examples(device, dtype))
    except Exception:  # Triton does not compile for this device: whatever it is, plain operations are there
        return False


def examples(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Rows of two draws, as pictures in both layouts and as a matrix."""
    values = torch.arange(2 * 3 * 5 * 7 * 11).remainder(257).sub(128).div(64)
    pictures = values.to(device, dtype).view(6, 5, 7, 11)
    return pictures, pictures.contiguous(memory_format=torch.channels_last), pictures.flatten(1)


def agrees_when_activated(x: Tensor) -> bool:
    """Whether the kernel gives, to the rounding of the dtype, what plain operations give for these rows of two
    draws."""
    index = torch.arange(2 * x.shape[1], device=x.device).view(2, -1)
    scale, shift = index.remainder(7).sub(3).div(4), index.remainder(5).sub(2).div(2)
    # of the largest term: the kernel rounds once
    close = {"rtol": 0.0, "atol": 4 * torch.finfo(x.dtype).eps * 4}
    return all(
        torch.allclose(_activated(x, scale, shift, added), plainly_activated(x, scale, shift, added), **close)
        for added in (None, x.flip(0))
    )


def agrees_when_masked(x: Tensor) -> bool:
    """Whether the kernel gives, bit by bit, what plain operations give for these rows of two draws."""
    keys = torch.tensor([0x548C9DECBCE65297, -0x1B3D5F7A9C8E6D43], device=x.device)
    for p, first, by_channel in ((0.3, 5, False), (0.75, 2**33, True)):
        masks = x[:, :, :1, :1] if by_channel and x.ndim == 4 else x
        counter = torch.arange(first, first + masks.numel() // 2, device=x.device)
        kept = squares(keys[:, None], counter).view(torch.int32)[:, 1::2] >= threshold(p)
        expected = x * kept.view(masks.shape).to(x.dtype).mul_(1 / (1 - p))
        if not torch.equal(_masked(x, keys, p, first, by_channel, None), expected):
            return False
    return True


_CHECKS: dict[str, Callable[[Tensor], bool]] = {"activated": agrees_when_activated, "masked": agrees_when_masked}


# ── kernels: a program is given a row, and a block of its entries in the order of memory ──────────────────────────────


def _activate(
    x, other, out, scales, shifts, rows, channels, area,
    ADDS: tl.constexpr, CHANNELS_LAST: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803 - as Triton's constants are
):  # fmt: skip
    row, inner = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = inner < channels * area
    channel = inner % channels if CHANNELS_LAST else inner // area
    parameter, entry = (row // rows) * channels + channel, row * channels * area + inner
    scale = tl.load(scales + parameter, mask=inside).to(tl.float32)
    value = tl.load(x + entry, mask=inside).to(tl.float32) * scale
    value += tl.load(shifts + parameter, mask=inside).to(tl.float32)
    if ADDS:
        value += tl.load(other + entry, mask=inside).to(tl.float32)
    tl.store(out + entry, tl.where(value < 0, 0.0, value), mask=inside)  # NaN stays, as it does in torch


def _mask(
    x, out, keys, points, channels, area, first, threshold, scale,
    BY_CHANNEL: tl.constexpr, CHANNELS_LAST: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    row, inner = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = inner < channels * area
    number = inner
    if CHANNELS_LAST:
        number = inner % channels * area + inner // channels
    masks = channels * area
    if BY_CHANNEL:
        number, masks = number // area, channels
    key = tl.load(keys + row // points)
    y = key * (first + row % points * masks + number)
    z = y + key
    word = y * y + y
    word = (word >> 32) & 0xFFFFFFFF | (word << 32)
    word = word * word + z
    word = (word >> 32) & 0xFFFFFFFF | (word << 32)
    word = word * word + y
    word = (word >> 32) & 0xFFFFFFFF | (word << 32)
    word = (word * word + z) >> 32
    entry = row * channels * area + inner
    value = tl.load(x + entry, mask=inside).to(tl.float32) * tl.where(word >= threshold, scale, 0.0)
    tl.store(out + entry, value, mask=inside)
