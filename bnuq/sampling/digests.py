"""What the weights of a network are, as a few numbers: by them a change of any entry is noticed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from itertools import chain

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from bnuq import devices
from bnuq.forms import original_name, strided_parts
from bnuq.randomness import one_thread

_ROW = 2**16  # entries that one number stands for
_ROWS = 2**8  # that an accelerator takes at once
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32, 16: torch.int32}  # by bytes of an entry
_SAMPLED = 64  # digits of a fingerprint that are of a sample of the entries, all that earlier versions wrote


class Weights:
    """The parameters and buffers of a network at one time; equal where they are the same tensors with the same bits.

    To read them costs less than a pass of a few points; version counters would miss what is written to `tensor.data`.
    """

    def __init__(self, model: nn.Module) -> None:
        tensors = [tensor for tensor in chain(model.parameters(), model.buffers()) if not is_lazy(tensor)]
        parts = [part for tensor in tensors for part in strided_parts(tensor)]
        self._tensors = tensors  # kept alive, so that no other tensor gets their identity
        self._places = [(id(t), t.dtype, t.shape) for t in tensors], [part.data_ptr() for part in parts]
        self._sums = bit_sums(parts)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Weights)
            and self._places == other._places
            and all(map(torch.equal, self._sums, other._sums))
        )

    __hash__ = None  # pyrefly: ignore


@one_thread()  # none whose forward is changing the buffers
def fingerprint(model: nn.Module) -> str:
    """Two SHA-256 over the names, shapes and values of the network's parameters and saved buffers: of a sample of the
    values, and of all. The same on every device, and for the same values in another dtype."""
    state = {
        original_name(name): strided_parts(tensor.detach())
        for name, tensor in model.state_dict().items()
        if isinstance(tensor, Tensor) and not is_lazy(tensor) and not name.endswith("num_batches_tracked")
    }
    tensors = {(name, place): part for name, parts in state.items() for place, part in enumerate(parts)}
    some = {f"{key}": t.reshape(-1)[:: max(1, t.numel() // 256)].to(torch.float32) for key, t in tensors.items()}
    sums = {f"{key} {number}": found for key, t in tensors.items() for number, found in enumerate(_value_sums(t))}
    fetched = devices.fetch(some | sums)
    sampled, whole = hashlib.sha256(), hashlib.sha256()
    for key, tensor in tensors.items():
        sampled.update(f"{key[0]}{tuple(tensor.shape)}".encode())
        sampled.update(fetched[f"{key}"].tobytes())
        for number in range(2):
            values = fetched.get(f"{key} {number}")
            whole.update(b"" if values is None or not values.any() else b"%d" % number + values.tobytes())
    return sampled.hexdigest() + whole.hexdigest()


def is_of(stored: str, model: nn.Module) -> bool:
    """Whether this is the fingerprint of `model`; one that an earlier version wrote is compared as far as it goes."""
    return len(stored) >= _SAMPLED and fingerprint(model).startswith(stored)


def bit_sums(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Sums of the bits of all entries of these strided tensors, each times an odd number of its place, modulo 2⁶⁴.

    A single entry that changes always changes its sum; several that do leave it with a chance of 2⁻³² at most. Small
    tensors of a device are summed together, as if they were one; nothing is waited for.
    """
    groups: dict[tuple, list[Tensor]] = {}
    for tensor in tensors:
        entries = _integers(tensor)
        alone = id(tensor) if len(entries) >= _ROW else 0
        groups.setdefault((entries.device, entries.dtype, alone), []).append(entries)
    return [_row_sums(torch.cat(group) if len(group) > 1 else group[0]) for group in groups.values()]


def _value_sums(tensor: Tensor) -> list[Tensor]:
    """The sums of a tensor's values in float32, and of what this leaves of a float64; of other numbers as they are."""
    if not tensor.is_floating_point() or tensor.dtype is torch.float32:
        return bit_sums([tensor])
    rounded = tensor.to(torch.float32)
    return bit_sums([rounded] + ([(tensor - rounded).nan_to_num()] if tensor.dtype is torch.float64 else []))


@torch.inference_mode()
def _integers(tensor: Tensor) -> Tensor:
    """The bits of a strided tensor as integers on one axis."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    flat = (tensor.int_repr() if tensor.is_quantized else tensor).reshape(-1)
    flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    return flat.contiguous().view(_INTEGERS[flat.element_size()])


@torch.inference_mode()
def _row_sums(entries: Tensor) -> Tensor:
    factors, whole = _factors(entries.device), len(entries) // _ROW * _ROW
    rows = entries[:whole].view(-1, _ROW)
    if devices.is_host(entries.device):  # in numpy, which needs a half of the time
        sums = [torch.from_numpy(np.array([row.astype(np.int64) @ factors.numpy() for row in rows.numpy()], np.int64))]
    else:
        sums = [(part * factors).sum(1) for part in rows.split(_ROWS)]
    rest = entries[whole:]
    return torch.cat([*sums, (rest * factors[: len(rest)]).sum(0, keepdim=True)])


@cache
def _factors(device: torch.device) -> Tensor:
    """Odd numbers without a pattern, one for each place in a row: the finaliser of SplitMix64.

    Source: Steele, Lea & Flood 2014, figure 14."""
    numbers = np.arange(1, _ROW + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return torch.from_numpy((numbers | np.uint64(1)).view(np.int64)).to(device)
