"""Drawing ω: one joint draw of every BatchNorm's statistics per mini-batch (Monte Carlo Batch Normalization)."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor, nn

from bnuq.errors import SamplingError
from bnuq.sampling import keyed
from bnuq.sampling.bank import BatchStatistics, LayerStatistics
from bnuq.sampling.dropout import check_seed
from bnuq.sampling.interception import BatchNormCall, Mode, fed, forward, stochastic_call, undisturbed
from bnuq.sampling.sites import Site, find_sites, select_layers


def draw(
    model: nn.Module,
    train_images: Tensor | np.ndarray,
    *,
    samples: int = 64,
    batch_size: int = 128,
    seed: int = 0,
    layers: str | Sequence[str] = "all",
) -> BatchStatistics:
    """T joint draws of ω from random mini-batches of `train_images` (N, *input), as the network gets them in training.

    Batches are without replacement inside and independent of each other; draw t depends on (seed, t) alone, and a
    smaller batch is the beginning of a larger one. The model is left as it was.

    Raises SamplingError where there is no BatchNorm to sample, the batch exceeds N, or a layer would see fewer than two
    values per channel. Source: Teye et al. 2018, Algorithm 1.
    """
    images = torch.as_tensor(train_images)
    check_batch_size(batch_size, len(images))
    check_seed(seed)
    indices = all_batch_indices(seed, samples=samples, population=len(images), batch_size=batch_size)
    batches = (images[torch.from_numpy(rows)] for rows in indices)
    omega = statistics_of(model, batches, layers=layers)
    return replace(omega, seed=seed, indices=indices)


def check_batch_size(batch_size: int, population: int) -> None:
    """Raise SamplingError unless a mini-batch of this size can be drawn without replacement."""
    if not 2 <= batch_size <= population:
        raise SamplingError(
            f"batch_size is {batch_size}; expected 2 to {population}, the number of reference points "
            "(mini-batches are drawn without replacement)."
        )


def all_batch_indices(
    seed: int, *, samples: int, population: int, batch_size: int, purpose: int = keyed.BATCH
) -> Int64[np.ndarray, "sample batch"]:
    """The reference rows of every mini-batch."""
    if samples < 1:
        raise SamplingError(f"samples is {samples}; expected a whole number of at least 1.")
    size = {"population": population, "batch_size": batch_size, "purpose": purpose}
    return np.stack([keyed.batch_indices(seed, t, **size) for t in range(samples)])


def statistics_of(
    model: nn.Module,
    batches: Tensor | np.ndarray | Iterable[Tensor | np.ndarray],
    *,
    layers: str | Sequence[str] | Sequence[Site] = "all",
    on_draw: Callable[[], object] | None = None,
) -> BatchStatistics:
    """ω of mini-batches that you chose: a (T, b, *input) tensor or an iterable of (b, *input) batches.

    Each batch goes through the network once; every selected layer normalises it by its own mean and biased variance,
    so that deeper layers see what training would show them. The other layers keep their running statistics.
    `layers` may also be the sites themselves, where they are known; `on_draw` is called after each batch.
    """
    iterator = iter(batches)
    try:
        first = next(iterator)
    except StopIteration:
        raise SamplingError("there are no mini-batches to take statistics of; expected at least one.") from None
    sites = _stochastic_sites(model, fed(model, first), layers)
    draws: list[list[tuple[Tensor, Tensor, int]]] = []
    with undisturbed(model):
        for batch in chain([first], iterator):
            mode = _Measure(sites)
            with mode:
                forward(model, fed(model, batch))
            draws.append(mode.in_order())
            if on_draw is not None:
                on_draw()
    measured = tuple(
        LayerStatistics(
            name=site.name,
            eps=site.eps,
            mean=torch.stack([one[k][0] for one in draws]).cpu().numpy(),
            var=torch.stack([one[k][1] for one in draws]).cpu().numpy(),
            count=np.array([one[k][2] for one in draws], dtype=np.int64),
        )
        for k, site in enumerate(sites)
    )
    for layer in measured:
        if not (np.isfinite(layer.mean).all() and np.isfinite(layer.var).all()):
            raise SamplingError(
                f"layer {layer.name}: the statistics of a mini-batch are not finite; check the network's weights, "
                "and the reference for NaN or inf."
            )
    return BatchStatistics(layers=measured, fingerprint=fingerprint(model), batch_size=len(first))


def _stochastic_sites(model: nn.Module, example: Tensor, layers: Any) -> tuple[Site, ...]:
    if not isinstance(layers, str) and len(layers) and isinstance(layers[0], Site):
        return tuple(layers)
    sites = find_sites(model, example).live_batchnorms
    if not sites:
        raise SamplingError("the network has no BatchNorm layer that could be sampled; MCBN needs at least one.")
    return select_layers(sites, layers)


class _Measure(Mode):
    """Normalises each selected BatchNorm by the statistics of the batch that passes, and keeps them."""

    def __init__(self, sites: Sequence[Site]) -> None:
        super().__init__()
        self._sites = sites
        self._wanted = {(site.address, site.occurrence): site for site in sites}
        self._calls: Counter[int] = Counter()
        self._found: dict[str, tuple[Tensor, Tensor, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        call = stochastic_call(func, args, kwargs or {})
        if not isinstance(call, BatchNormCall):
            return func(*args, **(kwargs or {}))
        site = self._wanted.get((call.address, self._calls[call.address]))
        self._calls[call.address] += 1
        if site is None:
            return func(*args, **(kwargs or {}))
        count = call.input.numel() // call.input.shape[1]
        if count < 2:
            raise SamplingError(
                f"layer {site.name} sees {count} value per channel in a mini-batch of {call.input.shape[0]}; "
                "a variance needs at least 2: raise the batch size."
            )
        mean, var = moments(call.input)
        self._found[site.name] = mean, var, count
        return call.normalized(mean, var)

    def in_order(self) -> list[tuple[Tensor, Tensor, int]]:
        missing = [site.name for site in self._sites if site.name not in self._found]
        if missing:
            raise SamplingError(
                f"layer {missing[0]} was not called for one of the mini-batches; bnuq needs a network whose path does "
                "not depend on its input."
            )
        return [self._found[site.name] for site in self._sites]


def moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of each channel (axis 1) over all other axes, sound where the mean dwarfs the spread."""
    if values.shape[2:].numel() == 1 or values.device.type == "mps":
        wide = values if values.device.type == "mps" else values.double()
        var, mean = torch.var_mean(wide, dim=[axis for axis in range(values.ndim) if axis != 1], correction=0)
        return mean.to(values.dtype), var.to(values.dtype)
    # torch's own kernel accumulates in double; in channels_last it would not (mean off by 9 at mean 10⁴)
    return torch.batch_norm_update_stats(values.contiguous(), None, None, 0.0)


def fingerprint(model: nn.Module) -> str:
    """SHA-256 over the names, shapes and a sample of the values of the network's parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, Tensor) or name.endswith("num_batches_tracked"):
            continue
        flat = tensor.detach().reshape(-1)
        step = max(1, flat.numel() // 256)
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(flat[::step].to("cpu", torch.float32).numpy().tobytes())
    return digest.hexdigest()
