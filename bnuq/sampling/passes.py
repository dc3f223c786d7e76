"""Stochastic passes: the network run once per draw, with ω in its BatchNorms and masks in its dropouts."""

from __future__ import annotations

import math
import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from bnuq.errors import BnuqError, SamplingError
from bnuq.sampling.bank import BatchStatistics
from bnuq.sampling.dropout import Dropout, dropped
from bnuq.sampling.interception import (
    BatchNormCall,
    DropoutCall,
    Mode,
    fed,
    forward,
    stochastic_call,
    tensors_in,
    undisturbed,
    written_by,
)
from bnuq.sampling.sites import Site, Sites, find_sites
from bnuq.sampling.statistics import fingerprint


def default_chunk(point_shape: Sequence[int]) -> int:
    """How many points pass together unless the caller says otherwise: memory only, no figure depends on it."""
    return max(16, min(256, 2**20 // math.prod(point_shape)))


class Engine(Protocol):
    """What methods and reductions know of an engine: T passes over a chunk of points."""

    samples: int

    def passes(self, inputs: Tensor, start: int = 0) -> Tensor:
        """Raw outputs (T, n, …) for points number `start`, `start` + 1, … of their set."""
        ...


class Evaluation:
    """The network as it is: one pass in evaluation mode."""

    samples = 1

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def passes(self, inputs: Tensor, start: int = 0) -> Tensor:  # noqa: ARG002 - the points' numbers do not matter here
        with undisturbed(self._model):
            return _tensor_output(forward(self._model, inputs.clone()))[None]  # a network may write into its input


class Interception:
    """T stochastic passes by intercepting the network's operations; what precedes the first draw is run once a chunk.

    `omega` replaces the statistics of the layers it holds; `dropout` makes `dropouts` active. All other layers run as
    in evaluation mode.
    """

    def __init__(
        self,
        model: nn.Module,
        sites: Sites,
        *,
        omega: BatchStatistics | None = None,
        dropout: Dropout | None = None,
    ) -> None:
        if omega is not None and dropout is not None and omega.samples != dropout.samples:
            raise SamplingError(
                f"omega holds {omega.samples} draws and dropout asks for {dropout.samples}; they must be the same."
            )
        self.samples = omega.samples if omega is not None else dropout.samples if dropout is not None else 1
        self._model = model
        self._reuse = True  # until a network shows that it cannot be done
        self._sites = sites
        self._dropout = dropout
        self._statistics = {} if omega is None else _statistics_by_call(model, sites.batchnorms, omega)
        for site in sites.live_batchnorms:
            if not site.tracked and (site.address, site.occurrence) not in self._statistics:
                raise SamplingError(
                    f"BatchNorm {site.name} keeps no running statistics that evaluation mode would use, and omega does "
                    "not hold it: outputs would depend on which points pass together. Draw omega over all layers."
                )

    def passes(self, inputs: Tensor, start: int = 0) -> Tensor:
        with undisturbed(self._model):
            try:
                return self._passes(inputs, start)
            except _OtherPathError:
                self._check_memory(inputs)
                self._reuse = False
                return self._passes(inputs, start)

    def _check_memory(self, inputs: Tensor) -> None:
        """Raise SamplingError where the network itself, and not torch inside it, takes another path each time."""
        first, again = (_tensor_output(forward(self._model, inputs.clone())) for _ in range(2))
        if not torch.allclose(first, again, rtol=1e-4, atol=1e-4 * float(first.abs().max())):
            raise SamplingError(
                "the network gives other outputs when it is called again with the same inputs; bnuq needs a network "
                "whose forward has no memory."
            )

    def _passes(self, inputs: Tensor, start: int) -> Tensor:
        inputs = inputs.clone()  # a network may write into its input
        run = _Passes(self._sites, self._statistics, self._dropout, start, inputs, reuse=self._reuse)
        outputs = []
        for draw in range(self.samples):
            run.begin(draw)
            with run:
                outputs.append(_tensor_output(forward(self._model, inputs)).clone())
        return torch.stack(outputs)


class _OtherPathError(BnuqError):
    """The operations before the first draw are not those of the first pass: nothing of it can be handed on."""


class _Passes(Mode):
    """One chunk's passes. Until the first stochastic operation nothing depends on the draw: with `reuse`, later passes
    are handed the results of the first one. What a pass writes into those, or into the input, is put back for the next.
    """

    def __init__(
        self,
        sites: Sites,
        statistics: dict[tuple[int, int], tuple[Tensor, Tensor]],
        dropout: Dropout | None,
        start: int,
        inputs: Tensor,
        *,
        reuse: bool,
    ) -> None:
        super().__init__()
        self._inputs = inputs
        self._reuse = reuse
        self._dropouts = sites.dropouts
        self._statistics = statistics
        self._dropout = dropout
        self._start = start
        self._prefix: list[tuple[Any, Any]] = []  # (operation, result) in order
        self._recording = True
        self._guarded = {inputs.untyped_storage()._cdata}  # storages that later passes still need
        self._kept: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def begin(self, draw: int) -> None:
        for storage, copy in self._kept.values():
            storage.copy_(copy)
        self._draw = draw
        self._in_prefix = self._reuse
        self._recording = self._in_prefix and draw == 0
        self._step = 0  # operations seen in this pass, while still in the prefix
        self._batchnorm_calls: Counter[int] = Counter()
        self._dropout_calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        call = stochastic_call(func, args, kwargs)
        if isinstance(call, BatchNormCall):
            key = call.address, self._batchnorm_calls[call.address]
            self._batchnorm_calls[call.address] += 1
            if key in self._statistics:
                self._leave_prefix()
                mean, var = self._statistics[key]
                return call.normalized(mean[self._draw], var[self._draw])
        elif isinstance(call, DropoutCall):
            site = self._dropout_site(call)
            if self._dropout is not None and site.stochastic:
                self._leave_prefix()
                self._guard(func, args, kwargs)
                return dropped(call, site, self._dropout, self._draw, self._start)
        return self._ordinary(func, args, kwargs)

    def _dropout_site(self, call: DropoutCall) -> Site:
        number, self._dropout_calls = self._dropout_calls, self._dropout_calls + 1
        site = self._dropouts[number] if number < len(self._dropouts) else None
        if site is None or (site.variety, site.p) != (call.variety, call.p):
            raise SamplingError(
                "the network calls other dropouts than it did on a first look; bnuq needs a network whose path does "
                "not depend on its input."
            )
        return site

    def _ordinary(self, func: Any, args: tuple, kwargs: dict) -> Any:
        if not self._in_prefix:
            self._guard(func, args, kwargs)
            return func(*args, **kwargs)
        if self._recording:
            result = func(*args, **kwargs)
            again = func.is_view and any(not tensor.is_inference() for tensor in tensors_in(result))
            self._prefix.append((func, _AGAIN if again else _remembered(result)))
            return result
        if self._step >= len(self._prefix) or self._prefix[self._step][0] is not func:
            raise _OtherPathError
        result = self._prefix[self._step][1]
        self._step += 1
        return func(*args, **kwargs) if result is _AGAIN else result

    def _leave_prefix(self) -> None:
        if self._in_prefix and self._recording:
            self._prefix = [(func, _recalled(result)) for func, result in self._prefix]
            needed = (self._inputs, *(t for _, result in self._prefix for t in tensors_in(result)))
            self._guarded = {t.untyped_storage()._cdata for t in needed}
        self._in_prefix = False

    def _guard(self, func: Any, args: tuple, kwargs: dict) -> None:
        """Keep a copy of what the next pass needs, before this operation writes into it."""
        if not func._schema.is_mutable:
            return
        for tensor in written_by(func, args, kwargs):
            storage = tensor.untyped_storage()
            if storage._cdata in self._guarded and storage._cdata not in self._kept:
                self._kept[storage._cdata] = storage, storage.clone()


_AGAIN = object()  # stands for a view of a parameter or a buffer: cheap, and torch cannot return the same one twice


class _Remembered:
    """A tensor of the prefix while it is recorded: not kept alive, so that memory stays that of a plain forward."""

    def __init__(self, tensor: Tensor) -> None:
        self.alive = weakref.ref(tensor)
        self.size, self.stride, self.dtype, self.device = tensor.shape, tensor.stride(), tensor.dtype, tensor.device

    def recall(self) -> Tensor:
        """The tensor, or one of its shape without contents: nobody held it any more, so nobody will read it."""
        tensor = self.alive()
        if tensor is None:
            tensor = torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=self.device)
            tensor.untyped_storage().resize_(0)
        return tensor


_SMALL = 1024


def _remembered(result: Any) -> Any:
    if isinstance(result, Tensor):
        # a small one stays: the network may read its numbers past torch, by .tolist() or .numpy()
        return result if result.numel() <= _SMALL else _Remembered(result)
    return type(result)(map(_remembered, result)) if isinstance(result, (tuple, list)) else result


def _recalled(result: Any) -> Any:
    if isinstance(result, _Remembered):
        return result.recall()
    return type(result)(map(_recalled, result)) if isinstance(result, (tuple, list)) else result


def _tensor_output(output: Any) -> Tensor:
    if not isinstance(output, Tensor) or output.ndim < 2:
        what = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
        raise SamplingError(
            f"the network's output is {what}; expected one tensor of shape (points, outputs). Wrap the network in an "
            "--arch factory that returns the tensor to be scored."
        )
    return output


def _statistics_by_call(
    model: nn.Module, sites: Sequence[Site], omega: BatchStatistics
) -> dict[tuple[int, int], tuple[Tensor, Tensor]]:
    """ω on the model's device, keyed by what tells the calls apart; SamplingError where ω is of another network."""
    by_name = {site.name: site for site in sites}
    parameter = next(model.parameters(), None)
    device = parameter.device if parameter is not None else torch.device("cpu")
    dtype = parameter.dtype if parameter is not None else torch.float32
    found = {}
    for layer in omega.layers:
        site = by_name.get(layer.name)
        channels = layer.mean.shape[1]
        if site is None:
            raise SamplingError(
                f"omega was drawn from another network: its layer {layer.name} ({channels} channels) is not among this "
                f"network's {len(sites)} BatchNorm layers."
            )
        if (site.channels, site.eps) != (channels, layer.eps):
            raise SamplingError(
                f"omega was drawn from another network: layer {layer.name} has {site.channels} channels and "
                f"eps {site.eps:g} here, {channels} and {layer.eps:g} in omega."
            )
        mean, var = (torch.from_numpy(v).to(device, dtype) for v in (layer.mean, layer.var))
        found[site.address, site.occurrence] = mean, var
    if fingerprint(model) != omega.fingerprint:
        raise SamplingError(
            "omega was drawn from another network: the layers have the same names and sizes, but the weights differ. "
            "Draw it again from this one."
        )
    return found


def predict(
    model: nn.Module,
    inputs: Tensor | np.ndarray,
    omega: BatchStatistics | None = None,
    *,
    dropout: Dropout | None = None,
    chunk_size: int | None = None,
) -> Tensor:
    """Raw outputs (T, n, K) of T stochastic passes over `inputs` (n, *input), on the model's device and in its dtype.

    With `omega` the BatchNorm layers it holds use its draws, with `dropout` every dropout is active. `chunk_size`
    bounds memory and changes no output beyond rounding. The model is left as it was.

    Raises SamplingError where neither is given, where ω is of another network, no dropout is alive, or there are no
    inputs.
    """
    inputs = torch.as_tensor(inputs)
    if chunk_size is not None and chunk_size < 1:
        raise SamplingError(f"chunk_size is {chunk_size}; expected a whole number of at least 1.")
    if omega is None and dropout is None:
        raise SamplingError("predict needs omega, dropout or both; for the network as it is, call model(inputs).")
    sites = find_sites(model, fed(model, inputs[:3]), compare_with_training=False)
    if dropout is not None and not sites.live_dropouts:
        raise SamplingError("the network has no live dropout: all T passes would be the same.")
    engine = Interception(model, sites, omega=omega, dropout=dropout)
    size = chunk_size or default_chunk(inputs.shape[1:])
    starts = range(0, len(inputs), size)
    return torch.cat([engine.passes(fed(model, inputs[i : i + size]), i) for i in starts], dim=1)
