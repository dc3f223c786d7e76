"""Makes torchvision importable beside a CPU build of torch, where its own operators cannot be loaded.

The torchvision on PyPI is built for CUDA. With a CPU build of torch its compiled part does not load, and its import
fails, because it registers shape functions for operators that are not defined. TorchUncertainty and timm import
torchvision, but the timed code calls none of these operators, so it is enough to define their names. Where
torchvision's own operators load, nothing is done.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from torch import library

OPERATORS = ("nms", "qnms", "roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d")

_definitions: library.Library | None = None  # the definitions exist as long as this object


def make_importable() -> None:
    """Define torchvision's operators by name where its own do not load."""
    global _definitions
    if _definitions is not None or _real_operators_load():
        return
    _definitions = library.Library("torchvision", "DEF")
    for name in OPERATORS:
        for form in (name, f"_{name}_backward"):
            _definitions.define(f"{form}(Tensor a) -> Tensor")


def _real_operators_load() -> bool:
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return True  # no torchvision: its import reports that
    for compiled in Path(spec.origin).parent.glob("_C*"):
        try:
            torch.ops.load_library(str(compiled))
        except OSError:
            continue
        return True
    return False
