"""Holds what bnuq gives for a network against the training-mode forward of that network, layer by layer.

`make zoo` does so for published networks, the tests for small ones. What is random in training is found here without
bnuq: by the buffers that a training-mode forward updates, and by the random operations that it runs.
"""

from __future__ import annotations

import copy
import random
import warnings
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import bnuq
from bnuq.errors import BnuqError
from bnuq.sampling.engine import Stochastic
from bnuq.sampling.plain_loop import PlainLoop
from bnuq.sampling.recorded_calls import hooked
from bnuq.sampling.site_search import find_sites
from bnuq.sampling.sites import Sites

TOLERANCES = {torch.float64: 1e-9, torch.float32: 3e-4}  # of outputs, relative to the largest
BATCH = 4  # points of a mini-batch
DRAWS = 2
PASSES = 8  # with dropout, whose mean and deviation are compared with those of torch's
_NAMED = " is not sampled: "  # in bnuq's warnings


@dataclass
class Checked:
    """What bnuq gives for one network.

    `batchnorms`, `dropouts` and `noises` count the calls that are sampled. `named` are the layers that are not, with
    the reason, `refusals` the errors by method. `deviation` is that of MCBN from the training-mode forward, relative to
    the largest output. `loop` is why there is no plan of the network's operations, empty where there is one. `faults`
    are all that is wrong: empty where everything random is sampled exactly or named.
    """

    batchnorms: int = 0
    dropouts: int = 0
    noises: int = 0
    named: dict[str, str] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    deviation: float | None = None
    loop: str = ""
    faults: list[str] = field(default_factory=list)


def checked(network: nn.Module, images: Tensor) -> Checked:
    """Sample `network` by bnuq's public functions, with mini-batches of `images` (n, *input), and check what they give.

    The network must be in evaluation mode, and its forward must be possible in both modes.
    """
    result, before = Checked(), snapshot(network)
    normalising, drawing = normalising_layers(network, images[:BATCH]), random_calls(network, images[:BATCH])
    dropout, learned = bnuq.Dropout(PASSES, seed=2), bnuq.Learned(DRAWS)
    samples = _asked(result, "mcdo", lambda: bnuq.predict(network, images[:4], dropout=dropout))
    sites, drawn = _asked(result, "sites", lambda: find_sites(network, images[:3])), None
    if sites is not None:
        if sites.noises:
            drawn = _asked(result, "learned", lambda: bnuq.predict(network, images[:4], learned=learned))
        live = sites.live_dropouts if samples is not None else ()
        noisy = sites.live_noises if drawn is not None else ()
        result.dropouts, result.noises = len(live), len(noisy)
        random_sites = [site for site in (*live, *noisy) if getattr(site, "p", 0) < 1]
        _check_named(result, drawing, Counter(_layer(site.name) for site in random_sites), "is random")
    omega = _asked(result, "mcbn", lambda: bnuq.draw(network, images, samples=DRAWS, batch_size=BATCH, seed=1))
    layers = () if omega is None else omega.layers
    result.batchnorms = len(layers)
    _check_named(result, normalising, Counter({_layer(layer.name): 1 for layer in layers}), "normalises")
    if omega is not None:
        _check_training(result, network, images, omega)
    if sites is not None:
        if samples is not None:
            _check_masks(result, network, images[:4], samples, sites, drawing)
        _check_engine(result, network, images[:3], sites, omega, drops=samples is not None)
    if changed := [name for name, value in snapshot(network).items() if not _same(value, before[name])]:
        result.faults.append(f"changed: {', '.join(changed[:3])}")
    return result


def _asked(result: Checked, method: str, call: Callable[[], Any]) -> Any:
    """What `call` returns; None where it is refused. Warnings and refusals are noted."""
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        try:
            return call()
        except BnuqError as error:
            result.refusals[method] = str(error)
            return None
        finally:
            for warning in issued:
                layer, named, reason = str(warning.message).partition(_NAMED)
                if named:
                    result.named[layer] = reason
                else:
                    result.faults.append(f"warning of {method}: {layer}")


def _layer(site: str) -> str:
    return site.partition("#")[0]


_NETWORK = ("", "the network", "dropout", "noise", "batch_norm")  # what no layer but the network itself calls


def _check_named(result: Checked, expected: Counter[str], sampled: Counter[str], does: str) -> None:
    """Every layer that is random in training is sampled as often as it is called, and no other; or it is named, with
    others or in a refusal."""
    refusals = " ".join(result.refusals.values())
    refused = (
        is_refused(result.refusals) or "no live dropout that can be sampled (" in refusals
    )  # with the first layers
    for layer in expected | sampled:
        names = (layer,) if layer else _NETWORK
        calls, samples = expected[layer], sum(sampled[name] for name in names)
        is_named = any(name in result.named or f"{name}: " in refusals for name in names if name)
        if layer in _GENERATORS:
            is_named = any(layer in reason for reason in (refusals, *result.named.values()))
        if samples < calls and not is_named and not refused:
            result.faults.append(f"silent: {layer or 'the network'} {does} {calls} times, {samples} are sampled")
        if samples > calls and layer not in _NETWORK:
            result.faults.append(f"wrong: {layer} {does} {calls} times in training, and {samples} are sampled")


def is_refused(refusals: Mapping[str, str]) -> bool:
    """Whether MCBN is refused for another reason than that there is nothing to sample."""
    return "mcbn" in refusals and "no BatchNorm layer" not in refusals["mcbn"]


_GENERATORS = ("numpy", "Python's random")


# What is random in training


def normalising_layers(network: nn.Module, batch: Tensor) -> Counter[str]:
    """The layers whose running means a training-mode forward of `batch` updates: they normalise by its statistics."""
    twin = copy.deepcopy(network).train()
    for module in twin.modules():
        if isinstance(getattr(module, "momentum", None), float):
            setattr(module, "momentum", 0.5)  # noqa: B010 - of any kind of layer
    means = {name: value for name, value in twin.named_buffers() if name.endswith("running_mean")}
    before = {name: value.clone() for name, value in means.items()}
    with _aside():
        twin(batch.clone())
    return Counter(name.rpartition(".")[0] for name, value in means.items() if not torch.equal(value, before[name]))


def random_calls(network: nn.Module, batch: Tensor) -> Counter[str]:
    """How often each layer runs a random operation in a training-mode forward, below composite operations; and whether
    the forward uses the generators of numpy or Python, by their names."""
    return _random_calls(copy.deepcopy(network).train(), batch)


def _random_calls(twin: nn.Module, batch: Tensor) -> Counter[str]:
    counts, inside = Counter[str](), [""]

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
            if torch.Tag.nondeterministic_seeded not in func.tags:
                return func(*args, **(kwargs or {}))
            before = torch.get_rng_state()  # an attention without dropout leaves it as it is
            result = func(*args, **(kwargs or {}))
            own = (kwargs or {}).get("generator") is not None
            counts[inside[-1]] += own or not torch.equal(before, torch.get_rng_state())
            return result

    def enter(path: str, _: Any) -> None:
        inside.append(path)

    def leave(*_: Any) -> None:
        inside.pop()

    with _aside(), hooked(twin, enter, leave), Watch():
        before = _generators()
        twin(batch.clone())
        counts.update(name for name, state in _generators().items() if state != before[name])
    return +counts


def _generators() -> dict[str, Any]:
    numpys: Any = np.random.get_state()
    return dict(zip(_GENERATORS, ((numpys[1].tobytes(), numpys[2]), random.getstate()), strict=True))


@contextmanager
def _aside() -> Iterator[None]:
    """Run a copy without gradients, and leave the generators as they were. The fast path of transformers, which leaves
    dropout out, is off."""
    fast, python, numpys = torch.backends.mha.get_fastpath_enabled(), random.getstate(), np.random.get_state()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(5)
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        random.setstate(python)
        np.random.set_state(numpys)


# MCBN


def _check_training(result: Checked, network: nn.Module, images: Tensor, omega: bnuq.BatchStatistics) -> None:
    """f_ω(B), with ω of B, is the training-mode forward of B in which nothing else is random."""
    outputs = bnuq.predict(network, images, omega)
    twin = quiet_copy(network, images[:BATCH], result.named)
    deviations, drawn = [], omega.indices
    assert drawn is not None  # they are mini-batches
    for sample, rows in zip(outputs, drawn, strict=True):
        with _aside(), _Means():
            expected = main_output(twin(images[rows].clone()))
        deviations.append(deviation(sample[rows], expected))
    result.deviation = worst = max(deviations)
    if not worst <= max(TOLERANCES[outputs.dtype], 100 * _of_rounding(twin, images[drawn[0]])):
        result.faults.append(f"wrong: MCBN deviates from training by {worst:.2g}")
    if deviation(outputs[0], outputs[1]) < 1e-6:
        result.faults.append("wrong: the samples of MCBN are equal")


def quiet_copy(network: nn.Module, batch: Tensor, named: Container[str]) -> nn.Module:
    """A copy in training mode with all rates of dropout at 0, and with the `named` layers in evaluation mode. Where it
    is still random, only its BatchNorms are in training mode."""
    twin = copy.deepcopy(network).train()
    for name, module in twin.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, float) and (key in ("p", "prob") or "drop" in key):
                setattr(module, key, 0.0)
        module.training = name not in named and (bool(name) or not any(name in named for name in _NETWORK))
    if _random_calls(twin, batch):
        for module in twin.modules():
            module.training = "running_mean" in module._buffers
    return twin


def _of_rounding(twin: nn.Module, batch: Tensor) -> float:
    """How far the outputs of a forward move where its input changes in the last bit: layers that divide by the
    deviation of a few values multiply rounding."""
    generator = torch.Generator().manual_seed(0)
    last_bits = 1 + torch.finfo(batch.dtype).eps * torch.randn(batch.shape, generator=generator, dtype=batch.dtype)
    with _aside(), _Means():
        return deviation(main_output(twin(batch * last_bits)), main_output(twin(batch.clone())))


def _made_in(network: nn.Module, points: Tensor) -> torch.dtype:
    """The type whose rounding the outputs have: float32 where the forward casts values of the points to it."""
    with _aside(), _Casts(len(points)) as casts:
        network(points)
    return torch.float32 if casts.are_made else points.dtype


class _Casts(TorchDispatchMode):
    """Whether values of so many points are cast from float64 to float32."""

    def __init__(self, points: int) -> None:
        super().__init__()
        self._points, self.are_made = points, False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and result.dtype == torch.float32 and args[0].ndim > 1:
            self.are_made |= args[0].dtype == torch.float64 and len(args[0]) == self._points
        return result


class _Means(TorchDispatchMode):
    """Gives the means of random numbers, which a network may ask for in evaluation mode too."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.bernoulli.default:
            return args[0].clone()
        if func is torch.ops.aten.rand_like.default:
            return torch.full_like(result, 0.5)
        return torch.zeros_like(result) if func is torch.ops.aten.randn_like.default else result


def main_output(output: Any) -> Tensor:
    """The tensor to be scored: what is called "logits" or "out" in a dict, the first of several."""
    if isinstance(output, dict):
        output = next((output[key] for key in ("logits", "out") if key in output), next(iter(output.values())))
    return output if isinstance(output, Tensor) else main_output(output[0])


def deviation(outputs: Tensor, expected: Tensor) -> float:
    """The largest difference relative to the largest expected value; infinite where shapes differ or NaN is there."""
    if outputs.shape != expected.shape or not bool(outputs.isfinite().all() and expected.isfinite().all()):
        return float("inf")
    return float((outputs - expected).abs().max() / expected.abs().max())


# Dropout


def _check_masks(
    result: Checked, network: nn.Module, points: Tensor, samples: Tensor, sites: Sites, drawing: Counter[str]
) -> None:
    """Samples differ, every dropout that is a module changes its input, and mean and deviation of the outputs are those
    of passes in which torch draws the masks of the same modules."""
    if any(site.p < 1 for site in sites.live_dropouts) and any(deviation(samples[0], x) < 1e-9 for x in samples[1:]):
        result.faults.append("wrong: samples of dropout are equal")
    layers = {_layer(site.name) for site in sites.live_dropouts}
    twin = copy.deepcopy(network)
    modules = dict(twin.named_modules())
    leaves = {name for name in layers & drawing.keys() if name and not [*modules[name].children()]}
    dropout = bnuq.Dropout(1, seed=3)
    with _changed(twin) as changing:
        PlainLoop(twin, find_sites(twin, points, compare_with_training=False), dropout=dropout).passes(points)
    if idle := sorted(leaves - changing):
        result.faults.append(f"silent: {idle[0]} does nothing in a pass with dropout")
    if not layers <= modules.keys() or "" in layers:
        return  # functions of the network itself: it has no module to put in training mode alone
    for name in layers:
        modules[name].training = True
    with _aside():
        expected = torch.stack([main_output(twin(points.clone())).view_as(samples[0]) for _ in samples])
    spread, other = (float(values.var(0).mean().sqrt()) for values in (samples, expected))
    if not (spread <= 2.5 * other and other <= 2.5 * spread):
        result.faults.append(f"wrong: samples of dropout have the deviation {spread:.3g}, torch's have {other:.3g}")
    apart = (samples.mean(0) - expected.mean(0)).square().mean().sqrt()
    if not float(apart) <= 4 * other * (2 / len(samples)) ** 0.5 + 1e-9 * float(samples.abs().max()):
        result.faults.append(f"wrong: samples of dropout have another mean than torch's, by {float(apart):.2g}")


@contextmanager
def _changed(network: nn.Module) -> Iterator[set[str]]:
    """The modules whose output is another tensor of the shape of their input."""
    changing, given = set[str](), list[Any]()

    def leave(path: str, output: Any) -> None:
        values = given.pop()
        if isinstance(values, Tensor) and isinstance(output, Tensor) and values.shape == output.shape:
            changing.update([path] * (not torch.equal(values, output)))

    def enter(_: str, args: Any) -> None:
        given.append(args[0].clone() if args and isinstance(args[0], Tensor) else None)

    with hooked(network, enter, leave):
        yield changing


# The engine, and what is left behind


def _check_engine(
    result: Checked, network: nn.Module, points: Tensor, sites: Sites, omega: Any, *, drops: bool
) -> None:
    """A plan of the operations, where there is one, gives what the plain loop gives."""
    dropout = bnuq.Dropout(DRAWS, seed=4) if drops else None
    if omega is None and dropout is None:
        return
    engine = Stochastic(network, sites, omega=omega, dropout=dropout)
    outputs = engine.passes(points)
    apart = deviation(outputs, engine.plain.passes(points))
    result.loop = engine.why_plain
    if not apart <= TOLERANCES[_made_in(network, points)]:
        result.faults.append(f"wrong: the plan deviates from the plain loop by {apart:.2g}")


def snapshot(network: nn.Module) -> dict[str, Any]:
    """All that sampling must leave alone: tensors, modes, hooks, generators and torch's flags."""
    tensors = {name: value.detach().clone() for name, value in (*network.named_parameters(), *network.named_buffers())}
    return tensors | {
        "modes": [module.training for module in network.modules()],
        "hooks": [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in network.modules()],
        "gradients": [parameter.requires_grad for parameter in network.parameters()],
        "torch's generator": torch.get_rng_state(),
        "other generators": _generators(),
        "flags": (torch.is_grad_enabled(), torch.backends.mha.get_fastpath_enabled(), torch.get_default_dtype()),
    }


def _same(value: Any, before: Any) -> bool:
    return torch.equal(value, before) if isinstance(value, Tensor) else value == before


# Networks worth looking at


def settled(network: nn.Module, batch: Tensor, *, seed: int = 0) -> nn.Module:
    """The network in evaluation mode, in which no layer is as it was made: all parameters are disturbed, and running
    statistics are about, but not quite, those of random points."""
    generator = torch.Generator().manual_seed(seed)

    def noise(value: Tensor) -> Tensor:
        return torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value.dtype)

    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for value in network.parameters():
            size = 0.2 if value.ndim < 2 else 0.02 if not value.any() else 0.0
            value.add_(size * noise(value))
        network.train()
        for _ in range(2):
            network(batch.clone())
        for name, value in network.named_buffers():
            if name.endswith("running_mean"):
                value.add_(0.1 * noise(value))
            elif name.endswith("running_var"):
                value.mul_((0.2 * noise(value)).exp())
        network.eval()(batch[:3].clone())
    return network
