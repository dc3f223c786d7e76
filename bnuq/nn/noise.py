"""The noise of learned layers: one operation, which gives zeros until bnuq samples it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch import library as registry

registry.define("bnuq::standard_normal", "(Tensor like) -> Tensor")


@registry.impl("bnuq::standard_normal", "CompositeExplicitAutograd")
def _zeros(like: Tensor) -> Tensor:
    return torch.zeros_like(like)


@registry.impl("bnuq::standard_normal", "Meta")  # register_fake would search all modules for this line
def _shape(like: Tensor) -> Tensor:
    return torch.empty_like(like)


def standard_normal(like: Tensor, *, training: bool) -> Tensor:
    """Standard normal numbers of the shape, dtype and device of `like`, for a layer whose noise is learned.

    In training mode they are drawn by torch at every call. In evaluation mode they are zeros, so that the layer is
    deterministic; bnuq's method `learned` draws them there, once for every sample, shared by all points.
    """
    return torch.randn_like(like) if training else torch.ops.bnuq.standard_normal(like.detach())
