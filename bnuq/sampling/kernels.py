"""Triton kernels that read and write memory once where plain operations do so several times. Triton comes with torch
for GPUs. A kernel is used on a device on which it was found, once in a process, to give what plain operations give."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache, lru_cache
from importlib.util import find_spec
from math import prod
from typing import Any

import torch
from torch import Tensor

from bnuq import devices
from bnuq.sampling import counter_rng
from bnuq.sampling.counter_rng import MaskKey
from bnuq.shapes import Float, Int64, UInt8

_BLOCK = 1024  # entries of a program
_MOST_BLOCKS = 2**16 - 1  # along the second axis of a grid
_MOST_ENTRIES = 2**30  # of the mask of a draw, so that numbers of 32 bits count them
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)

tl: Any = None  # triton.language, from the first kernel on; kernels look it up among the names of this module
philox: Any = None  # what they call, compiled


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
    x: Float[Tensor, "row channel *place"], key: MaskKey, *, first: int, scale: float, out: Tensor | None = None
) -> Tensor | None:
    """x·scale where an entry is kept, by the masks `counter_rng.kept` of each draw from number `first` on, otherwise 0.
    The rows are those of each draw, draw by draw. None where no kernel computes it."""
    fits = _fits(x) and _masks(key, x.numel() // len(key.draws), x.device, x.dtype)
    return _masked(x, key, first, scale, out) if fits else None


def kept(key: MaskKey, first: int, count: int, device: torch.device) -> UInt8[Tensor, "draw entry"] | None:
    """`counter_rng.kept` on the device. None where no kernel computes it."""
    if not _masks(key, count, device, torch.uint8):
        return None
    ones = torch.ones((len(key.draws), count), dtype=torch.uint8, device=device)
    return _masked(ones, key, first, 1, ones)


def _masks(key: MaskKey, count: int, device: torch.device, dtype: torch.dtype) -> bool:
    fits = 0 < count < _MOST_ENTRIES and len(key.draws) <= _MOST_BLOCKS
    return fits and _is_right("masked", device, dtype)


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
    block = min(_BLOCK, 1 << (x[0].numel() - 1).bit_length())
    constants = {"ADDS": added is not None, "CHANNELS_LAST": _is_channels_last(x), "BLOCK": block}
    _launch(_activate, (len(x), -(-x[0].numel() // block)), x, other, out, *parameters, **constants)
    return out


def _masked(x: Tensor, key: MaskKey, first: int, scale: float, out: Tensor | None) -> Tensor:
    """A program takes 128 blocks of Philox, since the ten rounds of a block give 16 entries of consecutive numbers.
    They are consecutive on a line: all entries of a draw are one, and channels last each channel of a picture is."""
    out = torch.empty_like(x) if out is None else out
    lines, channels, length = 1, 1, x.numel() // len(key.draws)
    if _is_channels_last(x):
        channels, length = x.shape[1], prod(x.shape[2:])
        lines = len(x) // len(key.draws) * channels
    skipped = first % 16
    blocks = (length + (skipped if lines == 1 else 15) + 15) // 16  # of a line, at most
    blocks_each = min(128 if lines == 1 else 4, 1 << (blocks - 1).bit_length())
    lines_each = 1 if lines == 1 else 128 // blocks_each
    scale = float(torch.ones((), dtype=x.dtype).mul_(scale))  # rounded as plain operations round it
    tiles = -(-blocks // blocks_each)
    parameters = lines, channels, length, tiles, first, skipped, key.site, *counter_rng.thresholds(key.p), scale
    keys = _keys_on(x.device, key.seed, key.draws)
    grid = (-(-lines // lines_each) * tiles, len(key.draws))
    _launch(_mask, grid, x, out, keys, *parameters, LINES=lines_each, BLOCKS=blocks_each)
    return out


@lru_cache(maxsize=256)
def _keys_on(device: torch.device, seed: int, draws: tuple[int, ...]) -> Int64[Tensor, "draw 2"]:
    """The keys of Philox on the device, cached across chunks."""
    return devices.upload(torch.tensor([[seed, draw] for draw in draws]), device)


def _launch(kernel: Callable[..., None], grid: tuple[int, int], x: Tensor, *arguments: Any, **constants: Any) -> None:
    with devices.as_current(x.device):
        _compiled(kernel)[grid](x, *arguments, **constants)


@cache
def _compiled(kernel: Callable[..., None]) -> Any:
    global tl, philox
    import triton  # late: not every torch has it
    from triton import language

    tl, philox = language, philox or triton.jit(_philox)
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
    """Whether the kernel gives, bit by bit, what the masks of the CPU give for these rows of two draws."""
    for p, first in _TIED:
        key, scale = MaskKey(1, (2, 7), 3, p), 4 / 3 if x.is_floating_point() else 1
        mask = torch.from_numpy(counter_rng.kept(key, first, x.numel() // 2)).to(x.device).view(x.shape)
        if not torch.equal(_masked(x, key, first, scale, None), x * mask.to(x.dtype).mul_(scale)):
            return False
    return True


# Rates, and numbers of first entries, where the first 16 bits of an entry do not decide: two are kept, one is dropped.
_TIED = (43193.5 / 2**16, 5), (12588.5 / 2**16, 2**36 + 3)
_CHECKS: dict[str, Callable[[Tensor], bool]] = {"activated": agrees_when_activated, "masked": agrees_when_masked}


# ── kernels ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _activate(
    x, other, out, scales, shifts, rows, channels, area,
    ADDS: tl.constexpr, CHANNELS_LAST: tl.constexpr, BLOCK: tl.constexpr,  # noqa: N803 - as Triton's constants are
):  # fmt: skip
    # a program takes a block of the entries of a row, in the order of memory
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
    x, out, keys, lines, channels, length, tiles, first, skipped, site, high, low, scale,
    LINES: tl.constexpr, BLOCKS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    draw = tl.program_id(1).to(tl.int64)
    seed, number = tl.load(keys + 2 * draw).to(tl.uint64), tl.load(keys + 2 * draw + 1).to(tl.uint64)
    line, tile = tl.program_id(0) // tiles * LINES + tl.arange(0, LINES)[None, :], tl.program_id(0) % tiles
    start = skipped + line * length  # of a line, counted like the others from the beginning of the first block
    blocks = first // 16 + start // 16 + tile * BLOCKS + tl.arange(0, BLOCKS)[:, None].to(tl.int64)
    a, b, c, d = philox(blocks, site, 2, seed, number)  # counter_rng.MASK
    words = tl.permute(tl.join(tl.join(a, c), tl.join(b, d)), 0, 2, 3, 1)
    quarters = tl.reshape(words, 4 * BLOCKS, 1, LINES) >> (16 * tl.arange(0, 4))[None, :, None].to(tl.uint64)
    bits = (tl.reshape(quarters, 16 * BLOCKS, LINES) & 0xFFFF).to(tl.int32)
    place = 16 * BLOCKS * tile + tl.arange(0, 16 * BLOCKS)[:, None] - start % 16
    inside = (place >= 0) & (place < length) & (line < lines)
    entry = start + place
    tie = tl.max(tl.where(bits == high, entry, -1))
    while tie >= 0:  # one entry in 65,536
        word, _, _, _ = philox(first + (tie - skipped).to(tl.int64), site, 7, seed, number)  # counter_rng.MASK_TIE
        bits = tl.where(entry == tie, tl.where(word >= low, high + 1, -1), bits)
        tie = tl.max(tl.where(bits == high, entry, -1))
    channel = line % channels
    memory = (draw * lines + line - channel) * length + place * channels + channel
    value = tl.load(x + memory, mask=inside).to(tl.float32) * tl.where(bits > high, scale, 0.0)
    tl.store(out + memory, value, mask=inside)


def _philox(block, site, purpose, seed, number):
    """Four words of each block, as numpy's Philox4x64-10 has them: it counts before it draws."""
    a = (block + 1).to(tl.uint64)
    b, c, d = site, tl.zeros_like(a), purpose
    for _ in tl.static_range(10):
        product, other = a * 0xD2E7470EE14C6C93, c * 0xCA5A826395121157
        a, c = tl.umulhi(c, 0xCA5A826395121157) ^ b ^ seed, tl.umulhi(a, 0xD2E7470EE14C6C93) ^ d ^ number
        b, d = other, product
        seed, number = seed + 0x9E3779B97F4A7C15, number + 0xBB67AE8584CAA73B
    return a, b, c, d
