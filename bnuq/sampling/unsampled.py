"""Names the layers that are random or batch-dependent in training and cannot be sampled: in errors and in warnings."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from weakref import WeakValueDictionary

from torch import nn

_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"
_NAMED = 3  # layers in an error
_warned: WeakValueDictionary[tuple[int, str], nn.Module] = WeakValueDictionary()  # networks, by id and warning


def listed(layers: Iterable[tuple[str, str]]) -> str:
    """The first layers with the reasons, and how many more there are, in one text; empty where there is none."""
    named = [f"{layer or 'the network'}: {reason}" for layer, reason in layers]
    more = [f"{len(named) - _NAMED} more"] if len(named) > _NAMED else []
    return "; ".join(named[:_NAMED] + more)


def warn_of_unsampled(model: nn.Module, layers: Iterable[tuple[str, str]]) -> None:
    """Issue a UserWarning for each layer, at the line that called this package, once per network and text."""
    for layer, reason in layers:
        text = f"{layer or 'the network'} is not sampled: {reason}."
        if _warned.get((id(model), text)) is model:
            continue
        _warned[id(model), text] = model
        level, frame = 1, sys._getframe()
        while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
            level, frame = level + 1, frame.f_back
        warnings.warn(text, stacklevel=level)
