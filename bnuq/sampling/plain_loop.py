"""Stochastic passes: the network run once per draw, with ω in its BatchNorms and masks in its dropouts."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from bnuq import devices
from bnuq.errors import ModelError, SamplingError
from bnuq.sampling.batch_statistics import BatchStatistics
from bnuq.sampling.digests import is_of
from bnuq.sampling.dropout import Dropout, dropped
from bnuq.sampling.interception import (
    BatchNormCall,
    DropoutCall,
    Mode,
    NoiseCall,
    forward,
    noise_call,
    stochastic_call,
    undisturbed,
    with_autograd_if_needed,
)
from bnuq.sampling.noise import Learned, Noise, NoiseCalls
from bnuq.sampling.recorded_calls import BatchNormCalls
from bnuq.sampling.sites import BatchNormSite, DropoutSite, Sites

Statistics = Mapping[tuple[int, int], tuple[Tensor, Tensor]]  # (address, occurrence) of a site → mean, var (T, C)


@runtime_checkable
class Engine(Protocol):
    """The interface of an engine: T passes over a chunk of points."""

    samples: int

    def passes(self, inputs: Tensor, start: int = 0) -> Tensor:
        """Raw outputs (T, n, …) for points number `start`, `start` + 1, … of their set."""
        ...


@runtime_checkable
class BySet(Protocol):
    """Makes the engine of each set, whose inputs are the numbers of its points."""

    def of(self, name: str, points: Any) -> Engine: ...


class Evaluation:
    """The deterministic network: one pass in evaluation mode."""

    samples = 1

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def passes(self, inputs: Tensor, start: int = 0) -> Tensor:  # noqa: ARG002 - the points' numbers do not matter here
        with undisturbed(self._model):
            return with_autograd_if_needed(lambda: output_rows(self._model, inputs))[None]


class Ensemble:
    """The deterministic networks of an ensemble: sample k is the pass of network k."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self.samples = len(models)
        self.networks = tuple(models)
        self._networks = [Evaluation(model) for model in models]

    def passes(self, inputs: Tensor, start: int = 0, draws: Sequence[int] | None = None) -> Tensor:
        numbers = range(self.samples) if draws is None else draws
        return torch.cat([self._networks[number].passes(inputs, start) for number in numbers])


class PlainLoop:
    """T stochastic passes by intercepting the network's operations: the plain loop, which every other engine is
    verified against.

    `omega` replaces the statistics of the layers it holds; `dropout` makes dropouts active; `learned` draws the noise
    that the network draws, which is its mean otherwise. All other layers run as in evaluation mode.
    """

    def __init__(
        self,
        model: nn.Module,
        sites: Sites,
        *,
        omega: BatchStatistics | None = None,
        dropout: Dropout | None = None,
        learned: Learned | None = None,
    ) -> None:
        samples = {
            name: draws.samples
            for name, draws in (("omega", omega), ("dropout", dropout), ("learned", learned))
            if draws is not None
        }
        if len(set(samples.values())) > 1:
            counts = " and ".join(f"{name} has {count} draws" for name, count in samples.items())
            raise SamplingError(f"{counts}; expected the same number.")
        self.samples = next(iter(samples.values()), 1)
        self.noise = None if learned is None else Noise(learned)
        self.statistics = {} if omega is None else _statistics_by_call(model, sites.batchnorms, omega)
        self.model, self.sites, self.dropout = model, sites, dropout
        for site in sites.live_batchnorms:
            if not site.tracked and site.key not in self.statistics:
                raise SamplingError(
                    f"BatchNorm {site.name} keeps no running statistics that evaluation mode would use, and omega does "
                    "not hold it: outputs would depend on which examples pass together. Draw omega over all layers."
                )

    def in_float64(self, model: nn.Module, sites: Sites) -> PlainLoop:
        """The same draws on a copy of the network in float64, whose sites these are."""
        twin = copy.copy(self)
        twin.model, twin.sites = model, sites
        twin.statistics = {
            other.key: (self.statistics[site.key][0].double(), self.statistics[site.key][1].double())
            for site, other in zip(self.sites.batchnorms, sites.batchnorms, strict=True)
            if site.key in self.statistics
        }
        return twin

    def passes(self, inputs: Tensor, start: int = 0, draws: Sequence[int] | None = None) -> Tensor:
        with undisturbed(self.model):
            numbers = range(self.samples) if draws is None else draws
            return torch.stack([self.sample(inputs, start, draw) for draw in numbers])

    def sample(self, inputs: Tensor, start: int, draw: int) -> Tensor:
        """The pass of one draw, inside `undisturbed`."""
        with self.sample_pass(start, draw) as sample_pass:
            output = output_rows(self.model, inputs)
        sample_pass.check_complete()
        return output.clone()

    def sample_pass(self, start: int, draw: int) -> SamplePass:
        """What replaces the network's operations in the pass of one draw."""
        return SamplePass(self.sites, self.statistics, self.dropout, self.noise, draw=draw, start=start)


class SamplePass(Mode):
    """One pass of one chunk, draw number `draw`."""

    def __init__(
        self,
        sites: Sites,
        statistics: Statistics,
        dropout: Dropout | None,
        noise: Noise | None = None,
        *,
        draw: int,
        start: int,
    ) -> None:
        super().__init__()
        self._dropouts = sites.dropouts
        self._statistics = statistics
        self._dropout = dropout
        self._noise, self._noise_calls = noise, NoiseCalls(sites.noises)
        self._draw, self._start = draw, start
        self._batchnorm_calls = BatchNormCalls(sites.batchnorms)
        self._dropout_calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        replaced = self.replaced(stochastic_call(func, args, kwargs) or noise_call(func, args, kwargs))
        return func(*args, **kwargs) if replaced is None else replaced

    def replaced(self, call: BatchNormCall | DropoutCall | NoiseCall | None) -> Tensor | None:
        """What this call gives under the draw; None where it is as in evaluation mode."""
        if isinstance(call, BatchNormCall):
            key = self._batchnorm_calls.key(call)
            if key in self._statistics:
                mean, var = self._statistics[key]
                return call.normalized(mean[self._draw], var[self._draw])
        elif isinstance(call, DropoutCall):
            site = self._dropout_site(call)
            if self._dropout is not None and site.stochastic:
                return dropped(call, site, self._dropout, [self._draw], self._start)
        elif call is not None and self._noise is not None:
            site = self._noise_calls.site(call)
            if site.stochastic:
                return self._noise.drawn(call, site, self._draw, self._start)
        return None

    def check_complete(self) -> None:
        """Raise SamplingError where the forward skipped a call."""
        self._batchnorm_calls.check_complete()
        if self._noise is not None:
            self._noise_calls.check_complete()

    def _dropout_site(self, call: DropoutCall) -> DropoutSite:
        number, self._dropout_calls = self._dropout_calls, self._dropout_calls + 1
        site = self._dropouts[number] if number < len(self._dropouts) else None
        if site is None or (site.variety, site.p) != (call.variety, call.p):
            raise SamplingError(
                "the network calls other dropouts than it did on a first look; bnuq needs a network whose path does "
                "not depend on its input."
            )
        return site


def output_rows(model: nn.Module, inputs: Tensor) -> Tensor:
    """The outputs of one forward, inside `undisturbed`. It is given a copy of the inputs, into which a network may
    write, and of a single point two, as it may drop the axis of one."""
    copied = torch.cat([inputs] * 2) if len(inputs) == 1 else inputs.clone()
    output = tensor_output(forward(model, copied))
    if len(output) != len(copied):
        raise SamplingError(
            f"the network's output has {len(output)} rows for {len(copied)} examples; expected one for each. Wrap the "
            "network in an --arch factory that returns them so."
        )
    return output[: len(inputs)]


def tensor_output(output: Any) -> Tensor:
    """The output of a network, if it is one tensor of (points, outputs); otherwise SamplingError, or ModelError
    for a dict in which several may be meant."""
    if isinstance(output, Mapping):
        keys = ", ".join(map(repr, output)) or "none"
        raise ModelError(
            f"the network's output is a dict with the keys {keys}; expected one tensor in it, or one under "
            '"logits" or "out". Wrap the network in an --arch factory that returns the tensor to be scored.'
        )
    if not isinstance(output, Tensor) or output.ndim < 2 or 0 in output.shape[1:]:
        form = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
        raise SamplingError(
            f"the network's output is {form}; expected one tensor of shape (examples, outputs). Wrap the network in an "
            "--arch factory that returns the tensor to be scored."
        )
    if not output.is_floating_point():
        kind = str(output.dtype).removeprefix("torch.")
        raise ModelError(
            f"the network's output is {kind}; expected floating-point numbers, such as the logits that classes are "
            "chosen by. Wrap the network in an --arch factory that returns them."
        )
    return output


def _statistics_by_call(
    model: nn.Module, sites: Sequence[BatchNormSite], omega: BatchStatistics
) -> dict[tuple[int, int], tuple[Tensor, Tensor]]:
    """ω on the model's device, by the key of the call; SamplingError where ω is of another network."""
    site_of_name = {site.name: site for site in sites}
    parameter = next(model.parameters(), None)
    device = parameter.device if parameter is not None else torch.device("cpu")
    dtype = parameter.dtype if parameter is not None else torch.float32
    statistics = {}
    for layer in omega.layers:
        site = site_of_name.get(layer.name)
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
        # A network in half precision may have running statistics of another dtype.
        layer_dtype = dtype if site.running_mean is None else site.running_mean.dtype
        mean, var = (devices.upload(torch.from_numpy(v), device, layer_dtype) for v in (layer.mean, layer.var))
        statistics[site.key] = mean, var
    if not is_of(omega.fingerprint, model):
        raise SamplingError(
            "omega was drawn from another network: the layers have the same names and sizes, but the weights differ. "
            "Draw it again from this one."
        )
    return statistics
