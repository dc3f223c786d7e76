"""Adds learned noise to the layers of an existing network."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import nn

from experiments.layers import flows, mean_field, normalization
from experiments.layers.learned import check_choice
from experiments.layers.scales import StochasticScale

_SUFFIX = {nn.Linear: "Linear", nn.Conv1d: "Conv1d", nn.Conv2d: "Conv2d", nn.Conv3d: "Conv3d"}
_BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_FUSED = (nn.MultiheadAttention, nn.TransformerEncoderLayer)  # may use the weights of their layers past `forward`
FORMS = ("scales", "batch-noise", "mean-field", "mnf")


def convert(module: nn.Module, to: str = "scales", **options: Any) -> nn.Module:
    """A copy of the network in which layers have learned noise, with the same weights and the same outputs in `eval()`.

    - `to="scales"`: every Linear, Conv and BatchNorm has a Bayesian scale of each channel, which starts at its present
      scale (options: `per`; `initial_sd`, in units of that scale). A Linear or Conv that is registered just before a
      BatchNorm of its channels is left as it is: the scale is that of the BatchNorm.
    - `to="batch-noise"`: the same layers have the noise of mini-batches, of `effective_size` values (option `per`).
    - `to="mean-field"`: every Linear and Conv is mean-field (options: `prior_sd`, `initial_sd`).
    - `to="mnf"`: every Linear is an `MNFLinear` (options: those of it).

    Layers of a subclass, those with hooks or parametrisations, and those of attention are left as they are, since
    their weights may be used otherwise. Outputs agree up to rounding. Raises ValueError if nothing can be converted.
    """
    check_choice(to, "to", FORMS)
    if to == "batch-noise" and options.get("effective_size") is None:
        raise ValueError(
            '"batch-noise" is that of mini-batches of some size; say which: effective_size=32, for example.'
        )
    network = copy.deepcopy(module)
    elsewhere = {id(part) for whole in network.modules() if isinstance(whole, _FUSED) for part in whole.modules()}
    layers = [layer for layer in network.modules() if _is_plain(layer) and id(layer) not in elsewhere]
    converters: dict[str, Callable[[nn.Module, nn.Module | None], bool]] = {
        "scales": lambda layer, before: _scaled(layer, before, noise="scale", **options),
        "batch-noise": lambda layer, before: _scaled(layer, before, noise="batch", **options),
        "mean-field": lambda layer, _: _with_weights(layer, mean_field, "MeanField", **options),
        "mnf": lambda layer, _: type(layer) is nn.Linear and _with_weights(layer, flows, "MNF", **options),
    }
    converted = [layer for i, layer in enumerate(layers) if converters[to](layer, next(iter(layers[i + 1 :]), None))]
    if not converted:
        raise ValueError(
            f'no layer of {type(module).__name__} can be converted to "{to}"; expected plain torch layers.'
        )
    for layer in converted:
        layer.train(layer.training)  # and what it has gained
    return network


def _is_plain(layer: nn.Module) -> bool:
    known = type(layer) in _SUFFIX or type(layer) in _BATCH_NORM
    return known and not layer._forward_hooks and not layer._forward_pre_hooks


def _with_weights(layer: Any, forms: ModuleType, prefix: str, **options: Any) -> bool:
    if type(layer) not in _SUFFIX:
        return False
    layer.__class__ = getattr(forms, prefix + _SUFFIX[type(layer)])
    layer.add_noise(**options)
    return True


def _scaled(layer: Any, before: Any, *, initial_sd: float = 0.1, **options: Any) -> bool:
    """Give the layer a `StochasticScale`; not if it stands before a BatchNorm of its channels, which has one."""
    if type(layer) in _BATCH_NORM:
        weight, bias = layer.weight, layer.bias
        layer.weight, layer.bias, layer.affine, layer.__class__ = None, None, False, normalization.BatchNorm
        layer.stochastic = StochasticScale(layer.num_features, bias=bias is not None, **options)
    elif isinstance(before, (*_BATCH_NORM, normalization.BatchNorm)) and before.num_features == layer.weight.shape[0]:
        return False
    else:
        weight, bias, layer.bias = None, layer.bias, None
        layer.__class__ = getattr(normalization, "Normalized" + _SUFFIX[type(layer)])
        layer.add_scale("none", bias=bias is not None, **options)
    _start(layer.stochastic, weight, bias, initial_sd)
    layer.stochastic.to(next(t for t in (bias, *layer.parameters(), *layer.buffers()) if t is not None))
    return True


def _start(stochastic: StochasticScale, weight: nn.Parameter | None, bias: nn.Parameter | None, sd: float) -> None:
    """Start at the scale and bias of the layer, with standard deviations of `sd` times the scale."""
    if weight is not None and stochastic.gain is not None:
        stochastic.gain = weight
    elif weight is not None:
        stochastic.scale = weight
    stochastic.bias = bias
    if stochastic.scale_u is not None:
        sds = (sd * stochastic.scale.detach().abs()).clamp(min=1e-6)
        stochastic.scale_u = nn.Parameter(torch.where(sds < 1, sds.log(), sds - 1))
