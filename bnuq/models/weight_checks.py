"""Checks that weights are plain and finite, and no larger than the file they are in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bnuq.errors import ModelError

_MOST_OVERLAP = 8  # how often tensors may share the bytes of the file, as flat parameters and views of them do
ASK_FOR_ORIGINAL = "Give the network from before the conversion."


def check_not_quantized(module: nn.Module, path: Path) -> None:
    """Raise ModelError for a network with quantized layers."""
    for name, layer in module.named_modules():
        kinds = chain((type(layer),), map(type, layer.parameters(recurse=False)))  # a fused layer may have lost these
        if any(re.search(r"(^|\.)(quantized|torchao)(\.|$)", kind.__module__) for kind in kinds):
            raise ModelError(
                f"{path}: is a quantized network: {name or 'it'} is a {type(layer).__name__} of "
                f"{type(layer).__module__}. BatchNorm is folded into such layers, and nothing is "
                f"left to sample. {ASK_FOR_ORIGINAL}"
            )


def check_values(path: Path, state: Mapping[str, Any], *, size: int, only_finite: bool) -> None:
    bad: list[str] = []
    views: dict[tuple[Any, ...], bool] = {}  # those looked at, and whether they are finite: tied weights are one
    total = 0
    for name, value in state.items():
        if not isinstance(value, Tensor) or nn.parameter.is_lazy(value):
            continue
        if value.layout != torch.strided or value.is_quantized or value.device.type != "cpu":
            odd = "quantized" if value.is_quantized else "empty (meta)" if value.is_meta else "sparse"
            raise ModelError(
                f"{path}: {name} is {'an' if odd[0] == 'e' else 'a'} {odd} tensor; expected plain weights. "
                f"Give the checkpoint from before the conversion."
            )
        if value.numel() * value.element_size() > size:
            raise ModelError(f"{path}: {name} has shape {tuple(value.shape)}, more than the file holds: it is forged.")
        view = value.data_ptr(), value.dtype, value.shape, value.stride()
        if view not in views:
            total += value.numel() * value.element_size()
            if total > _MOST_OVERLAP * size:
                raise ModelError(
                    f"{path}: its tensors overlap and hold more than {_MOST_OVERLAP} times the file's {size} bytes: it "
                    "is forged."
                )
            views[view] = not (only_finite and value.is_floating_point()) or _is_finite(value)
        if not views[view]:
            bad.append(name)
    if bad:
        raise ModelError(
            f"{path}: {bad[0]} holds NaN or infinite values ({len(bad)} of {len(state)} tensors do); "
            f"expected finite weights. The training diverged, or the file is damaged: give an earlier checkpoint."
        )


def _is_finite(value: Tensor) -> bool:
    if value.element_size() == 1:  # float8 has no isfinite
        value = value.float()
    # A mask of attention or classes is 0 or -inf; weights that diverged are not.
    return bool(torch.isfinite(value).all()) or bool((value.isneginf() | (value == 0)).all())
