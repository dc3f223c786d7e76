"""Checks of the network before anything is drawn: its forward is repeatable, points do not depend on each other, and
with the statistics of a mini-batch its outputs are those of the training-mode forward of that mini-batch."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bnuq import devices
from bnuq.errors import SamplingError, is_out_of_memory
from bnuq.forms import strided_parts
from bnuq.frozen import frozen
from bnuq.sampling.deviation import Discrepancy, difference, tolerance
from bnuq.sampling.dropout import Dropout
from bnuq.sampling.interception import (
    BatchNormCall,
    DropoutCall,
    Mode,
    aten,
    copied,
    forward,
    stochastic_call,
    tensors_in,
    undisturbed,
)
from bnuq.sampling.measure import Measurement, MeasurementMode
from bnuq.sampling.noise import Noise
from bnuq.sampling.plain_loop import PlainLoop, SamplePass, Statistics, output_rows, tensor_output
from bnuq.sampling.recorded_calls import OtherCallsError, hooked, other_calls
from bnuq.sampling.site_search import find_sites
from bnuq.sampling.sites import BatchNormSite, Sites
from bnuq.sampling.trace import uneven_parts

_DOUBTFUL = 1e-4  # beyond this, float64 decides where it can: what rounding alone may leave hides weak dependence
_FEW = 4  # inputs with which float64 decides what float32 leaves in doubt: two parts of two
_MAX_EVALUATION_MODULES = 64  # modules, or kinds of modules, that may stay in evaluation mode


def training_copy(model: nn.Module) -> tuple[nn.Module | None, str]:
    try:
        return copied(model).train(), ""
    except Exception as error:  # networks of any make
        if is_out_of_memory(error):
            raise
        return None, f"the network cannot be copied and put in training mode ({type(error).__name__})"


class TrainingForward:
    """The training-mode forward of a copy of the network, its dropouts and the BatchNorms that are not sampled being as
    in evaluation mode."""

    def __init__(self, model: nn.Module, twin: nn.Module, sites: Sites, layers: Sequence[BatchNormSite]) -> None:
        self._twin = twin
        tensors = zip(_tensors_of(model), _tensors_of(twin), strict=True)
        self._addresses = {copied.data_ptr(): original.data_ptr() for original, copied in tensors}
        fixed = [site for site in sites.batchnorms if site.stochastic or site.is_differentiated]
        self._kept = {site.key for site in fixed} - {site.key for site in layers}
        self._model = model
        self.calls: list[tuple[tuple[int, int], int]] = []
        """The calls of the last forward that normalised by their batch: site and values a channel."""
        self.is_bound = False
        """Whether a forward ran layers of the network that was copied, as a function that holds on to it does."""

    def outputs(self, batch: Tensor) -> tuple[Tensor | None, str]:
        """The outputs; None, and why, where the forward fails or gives something else than one tensor."""
        try:
            with undisturbed(self._model), undisturbed(self._twin, evaluation=False), self._mode():
                return tensor_output(_main(forward(self._twin, batch.clone()))).clone(), ""
        except SamplingError as error:
            return None, str(error)

    def otherwise(self, counts: Mapping[tuple[int, int], int]) -> str:
        """How the last forward normalised sampled sites differently than `counts` says; empty if it did not."""
        sampled = {address for address, _ in counts}
        for key, count in self.calls:
            if key[0] in sampled and key not in self._kept and counts.get(key) != count:
                return f"{count} values per channel where it normalises {counts.get(key, 'none')} in evaluation mode"
        called = {key for key, _ in self.calls}
        if any(address == 0 for address, _ in called - counts.keys()) and counts.keys() - called:
            return "by another call than in evaluation mode"
        return ""

    def modules(self, batch: Tensor) -> list[_ModuleCall]:
        """What every module of it was given and gave."""
        with undisturbed(self._model), undisturbed(self._twin, evaluation=False):
            with recorded_modules(self._twin) as calls, self._mode():
                forward(self._twin, batch.clone())
            return calls

    def _mode(self) -> Mode:
        calls: Counter[int] = Counter()
        training, addresses = self, set(self._addresses.values())
        self.calls = []

        class EvaluationSites(Mode):
            def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
                call = stochastic_call(func, args, kwargs or {})
                if isinstance(call, DropoutCall):
                    return call.input
                if isinstance(call, BatchNormCall):
                    address = training._addresses.get(call.address, 0)
                    training.is_bound |= bool(call.address) and call.address in addresses
                    key = address, calls[address]
                    calls[address] += 1
                    if call.training:
                        training.calls.append((key, call.input.numel() // call.input.shape[1]))
                    if call.training and key in training._kept:
                        assert call.running_mean is not None and call.running_var is not None
                        return call.normalized(call.running_mean, call.running_var)
                return func(*args, **(kwargs or {}))

        return EvaluationSites()


def _main(output: Any) -> Any:
    """The first entry of a dict: auxiliary heads of training come behind it."""
    return next(iter(output.values())) if isinstance(output, dict) and output else output


def _tensors_of(model: nn.Module) -> list[Tensor]:
    return [part for tensor in (*model.parameters(), *model.buffers()) for part in strided_parts(tensor)]


_ModuleCall = tuple[str, str, list[Tensor], list[Tensor]]  # path, path of the caller, digests of inputs and outputs


@contextmanager
def recorded_modules(model: nn.Module) -> Iterator[list[_ModuleCall]]:
    """Every call of a module of `model` meanwhile, in the order in which they end."""
    calls: list[_ModuleCall] = []
    inside: list[tuple[str, list[Tensor]]] = []

    def enter(path: str, args: Any) -> None:
        inside.append((path, _digests(args)))

    def leave(path: str, output: Any) -> None:
        _, received = inside.pop()
        calls.append((path, inside[-1][0] if inside else "", received, _digests(output)))

    with hooked(model, enter, leave):
        yield calls


def _digests(values: Any) -> list[Tensor]:
    """A sample of each tensor's values: of up to 32 rows and as many columns."""
    dense = [tensor.detach() for tensor in tensors_in(values) if not tensor.is_nested]
    tensors = [tensor for tensor in dense if tensor.is_floating_point() and tensor.numel()]
    tables = [tensor.reshape(len(tensor) if tensor.ndim > 1 else 1, -1) for tensor in tensors]
    return [table[:: max(1, len(table) // 32), :: max(1, table.shape[1] // 32)].cpu() for table in tables]


def first_difference(calls: Sequence[_ModuleCall], training_calls: Sequence[_ModuleCall]) -> str:
    """The first module to give something else for the same inputs, or else the one whose own operations do."""
    numbered: Counter[str] = Counter()
    training_values = {}
    for path, _, received, returned in training_calls:
        training_values[path, numbered[path]] = received, returned
        numbered[path] += 1
    numbered.clear()
    for path, caller, received, returned in calls:
        call = path, numbered[path]
        numbered[path] += 1
        if call in training_values and _differ(returned, training_values[call][1]):
            return _above(caller, calls, training_values) if _differ(received, training_values[call][0]) else path
    return ""


def _above(path: str, calls: Sequence[_ModuleCall], training_values: Mapping[Any, Any]) -> str:
    """The module at `path`, or the nearest one around it that was given the same inputs."""
    for module, caller, received, _ in calls:
        if path and module == path and (path, 0) in training_values and _differ(received, training_values[path, 0][0]):
            return _above(caller, calls, training_values)
    return path


def _differ(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    return len(first) != len(second) or any(
        not difference(a, b).is_within(tolerance(a) / 10) for a, b in zip(first, second, strict=True)
    )


def _unlike_training(twin: nn.Module, path: str) -> dict[str, nn.Module]:
    """The module at `path`, and all others of its class where that is none of torch's; empty where it cannot, or must
    not, be put in evaluation mode."""
    module = twin.get_submodule(path)
    if isinstance(module, _BatchNorm) or not module.training:
        return {}
    if type(module).__module__.startswith("torch.") or not path:
        return {path: module}
    return {name: other for name, other in twin.named_modules() if type(other) is type(module) and other.training}


@frozen
class Exactness:
    """How closely MCBN of one mini-batch of `points` reproduces the training-mode forward of that mini-batch.

    `deviation` is the largest difference between their outputs, in units of the spread of its output over the points;
    None where there is no training-mode forward to compare with, for the reason `why_not`.
    `fixed` names modules, each with the reason, that behave differently in training mode and cannot be sampled: both
    forwards have them in evaluation mode.
    """

    points: int
    deviation: float | None
    why_not: str = ""
    fixed: tuple[tuple[str, str], ...] = ()


def check_each_point(model: nn.Module, inputs: Tensor, *, where: str = "") -> Tensor:
    """The outputs of the network in evaluation mode, which `check_repeatable` and `check_independent` let pass."""
    outputs = check_repeatable(model, inputs, where=where)
    check_independent(model, inputs, where=where, outputs=outputs)
    return outputs


def check_repeatable(model: nn.Module, inputs: Tensor, *, where: str = "") -> Tensor:
    """The outputs of the network in evaluation mode; SamplingError with the cause where a second forward of the same
    inputs gives others, or where none is finite. `where` names the inputs."""
    with undisturbed(model):
        first = output_rows(model, inputs)
        states = random.getstate(), _numpys_state(), torch.get_rng_state()
        again = output_rows(model, inputs)
        if first.numel() and not bool(first.isfinite().any()):
            raise _not_finite(model, inputs, first, where)
        change, generator = difference(again, first), _generator_used(states)
        if not change.relative or (not generator and change.is_within(tolerance(first) / 100)):
            return first
        raise _not_repeatable(f"{where} when it is called again", generator)


def check_unchanged(model: nn.Module, inputs: Tensor, outputs: Tensor, *, where: str = "") -> None:
    """Raise SamplingError where the network in evaluation mode no longer gives these `outputs` for these inputs."""
    change = difference(_evaluated(model)(inputs, 0), outputs)
    # accelerators may choose another algorithm as their memory fills
    if not change.is_within(tolerance(outputs) / (100 if devices.is_host(inputs.device) else 1)):
        raise SamplingError(
            f"the network changed during the run: its outputs{where} are no longer those that it gave for the same "
            f"inputs at the start (they differ by {_percent(change)}). Its forward keeps "
            "something between calls, reads the time, or has its own random generator; take that out."
        )


def _not_repeatable(when: str, generator: str = "") -> SamplingError:
    cause = generator or ("its forward keeps something between calls, reads the time, or has its own random generator")
    return SamplingError(
        f"the network gives other outputs{when} with the same inputs: {cause}. Its estimates would not be reproducible."
    )


def check_finite(model: nn.Module, batch: Tensor, sites: Sites, layers: Sequence[BatchNormSite]) -> None:
    """Raise SamplingError with the cause where this mini-batch's statistics are finite and, with them, no output is."""
    with undisturbed(model):
        statistics = {key: (mean[None], var[None]) for key, (mean, var, _) in _statistics(model, batch, layers).items()}
        if not all(bool(value.isfinite().all()) for pair in statistics.values() for value in pair):
            return
        outputs = _sampled(model, sites, statistics, None)(batch, 0)
        if outputs.numel() and not bool(outputs.isfinite().any()):
            raise _not_finite(model, batch, outputs, "")


def _not_finite(model: nn.Module, inputs: Tensor, outputs: Tensor, where: str) -> SamplingError:
    problem = f"the network's outputs{where} are NaN for every example"
    if not bool(outputs.isnan().all()):
        problem = f"none of the network's outputs{where} is finite"
    return SamplingError(f"{problem}: {_why_not_finite(model, inputs)}.")


def _generator_used(states: tuple[Any, Any, Any]) -> str:
    """The generator that the last forward drew from, by the states before it; empty where it drew from none."""
    python, numpy, torchs = states
    if random.getstate() != python:
        return "it draws from Python's `random` in evaluation mode"
    if _numpys_state() != numpy:
        return "it draws from numpy's generator in evaluation mode"
    if not torch.equal(torch.get_rng_state(), torchs):
        return (
            "it draws random numbers in evaluation mode (F.dropout always does, unless it is given "
            "training=self.training)"
        )
    return ""


def _numpys_state() -> tuple[bytes, int]:
    state: Any = np.random.get_state()
    return state[1].tobytes(), state[2]


def _why_not_finite(model: nn.Module, inputs: Tensor) -> str:
    for name, buffer in model.named_buffers():
        if name.rpartition(".")[2] == "running_var" and bool((buffer < 0).any()):
            return f"{name} is negative ({float(buffer.min()):.3g}), and a variance cannot be"
    with recorded_modules(model) as calls:
        forward(model, inputs.clone())
    for path, _, received, returned in calls:
        if all(value.isfinite().all() for value in received) and not all(value.isfinite().all() for value in returned):
            return f"{path or 'its forward'} is the first to make such numbers, of finite ones"
    return "some weights, or the inputs, are not finite"


def check_independent(model: nn.Module, inputs: Tensor, *, where: str = "", outputs: Tensor | None = None) -> float:
    """How far the outputs (n, …) of `model` in evaluation mode lie from those of the same points in smaller chunks,
    in units of their spread over the points; SamplingError where that is more than rounding. `where` names the inputs,
    whose `outputs` are computed where they are not known."""

    def check(network: nn.Module, inputs: Tensor) -> tuple[float, bool]:
        known = outputs if network is model else None
        change, _ = _independent(network, _evaluated(network), inputs, where, together=known)
        return change.relative, change.proves(_DOUBTFUL)

    return _or_in_float64(check, model, inputs)


def check_samples_independent(loop: PlainLoop, inputs: Tensor, *, start: int = 0) -> None:
    """Raise SamplingError where the first draw's outputs for `inputs`, points number `start` and following, are others
    in smaller chunks, by more than rounding. Unlike `check_independent`, it needs no running statistics."""

    def check(network: nn.Module, inputs: Tensor) -> tuple[None, bool]:
        of_network = loop
        if network is not loop.model:
            of_network = loop.in_float64(network, find_sites(network, inputs[:3], compare_with_training=False))
        sites, statistics = of_network.sites, of_network.statistics
        run = _sampled(network, sites, statistics, loop.dropout, loop.noise)
        means = None if loop.dropout is loop.noise is None else _sampled(network, sites, statistics, None)
        return None, _independent(network, run, inputs, "", start=start, means=means)[0].proves(_DOUBTFUL)

    _or_in_float64(check, loop.model, inputs)


_Run = Callable[[Tensor, int], Tensor]  # inputs and the number of the first of them → outputs


def _evaluated(model: nn.Module) -> _Run:
    def outputs(inputs: Tensor, start: int) -> Tensor:  # noqa: ARG001 - the points' numbers do not matter here
        with undisturbed(model):
            return output_rows(model, inputs).clone()

    return outputs


def _sampled(
    model: nn.Module, sites: Sites, statistics: Statistics, dropout: Dropout | None, noise: Noise | None = None
) -> _Run:
    def outputs(inputs: Tensor, start: int) -> Tensor:
        with undisturbed(model), SamplePass(sites, statistics, dropout, noise, draw=0, start=start):
            return output_rows(model, inputs).clone()

    return outputs


def _independent(
    model: nn.Module,
    run: _Run,
    inputs: Tensor,
    where: str,
    *,
    start: int = 0,
    together: Tensor | None = None,
    means: _Run | None = None,
) -> tuple[Discrepancy, Tensor]:
    """How far the outputs of these points lie from those in smaller chunks, and the outputs `together`. Where `run`
    draws masks or noise, `means` is the same without them."""
    together = run(inputs, start) if together is None else together
    change = difference(_in_parts(run, inputs, start), together)
    if not change.is_within(tolerance(together)):
        check_repeatable(model, inputs, where=where)
        if not difference(run(inputs, start), together).is_within(tolerance(together) / 100):
            raise _not_repeatable(f"{where} when it is called again")
        what, cause = "output", "bnuq needs a network that treats each example by itself in evaluation mode."
        if means is not None:
            without = difference(_in_parts(means, inputs, start), means(inputs, start))
            if without.is_within(tolerance(together)):
                what = "dropout or noise"
                cause = (
                    "Where it is drawn, the network has sorted its examples, as a packed sequence with "
                    "enforce_sorted=False does, or has selected some: draw it before, or afterwards."
                )
        raise InexactError(
            f"the {what} for an example{where} depends on which examples pass with it: outputs of {len(inputs)} "
            f"examples together differ from those in smaller parts by {_percent(change)}. {cause}"
        )
    return change, together


def _in_parts(run: _Run, inputs: Tensor, start: int) -> Tensor:
    """The outputs of these points in uneven parts."""
    sizes = uneven_parts(len(inputs))
    firsts = accumulate(sizes, initial=start)
    return torch.cat([run(part, first) for part, first in zip(inputs.split(sizes), firsts, strict=False)])


def _percent(change: Discrepancy) -> str:
    return f"{100 * change.relative:.3g} % of their spread"


def check_exact(model: nn.Module, sites: Sites, batch: Tensor, layers: Sequence[BatchNormSite]) -> Exactness:
    """How closely MCBN is exact on this network: by ω from `batch`, a real mini-batch, of `layers`.

    f_ω(batch), with the batch in smaller chunks, is compared with the training-mode forward of the batch by a copy of
    the network, whose dropouts and other BatchNorms stay as in evaluation mode. Modules other than these BatchNorms
    that behave differently in training mode are found by their outputs and named in `fixed`.

    Raises SamplingError where more than rounding is left that no such module explains; where float32 is too coarse to
    say, float64 decides. Source: Teye et al. 2018, Algorithm 1: f_ω(B) with ω of B is what training computes.
    """
    selected = {site.name for site in layers}
    if unsteady := [site.name for site in sites.live_batchnorms if not site.tracked and site.name not in selected]:
        return Exactness(len(batch), None, f"BatchNorm {unsteady[0]} keeps no running statistics and is not sampled")

    def compared(network: nn.Module, batch: Tensor) -> tuple[Exactness, bool]:
        if network is model:
            return _compared(model, sites, batch, layers)
        network_sites = find_sites(network, batch[:3], compare_with_training=False)
        return _compared(
            network, network_sites, batch, [site for site in network_sites.batchnorms if site.name in selected]
        )

    try:
        return _or_in_float64(compared, model, batch, preferred=_naming_all)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return Exactness(len(batch), None, "memory ran out")


class InexactError(SamplingError):
    """The outputs differ by more than rounding."""


T = TypeVar("T")


def _naming_all(exactness: Exactness, wide: Exactness) -> Exactness:
    """The second, that in float64, where it alone names what training does otherwise."""
    return wide if wide.deviation is not None and wide.fixed != exactness.fixed else exactness


def _or_in_float64(
    check: Callable[[nn.Module, Tensor], tuple[T, bool]],
    model: nn.Module,
    inputs: Tensor,
    preferred: Callable[[T, T], T] = lambda result, _: result,
) -> T:
    """The result of `check`, which also says whether rounding hides nothing. Where `check` refuses, a copy in float64
    decides; where rounding may hide something, a copy does by a few of the inputs, in which whatever it hides is as
    large. Without such a copy the first result stands. Where there are two results, `preferred` chooses."""
    result, refusal = None, None
    try:
        result, is_proven = check(model, inputs)
        if is_proven:
            return result
    except InexactError as error:
        refusal = error
    narrow = Narrow()
    try:
        twin, wide = float64_copy(model, inputs if result is None else inputs[:_FEW])
        with narrow:
            wide_result = check(twin, wide)[0]
        return wide_result if result is None else preferred(result, wide_result)
    except InexactError as error:
        refusal = refusal if refusal is not None or narrow.seen else error
    except Exception:  # there is no such copy
        pass
    if refusal is not None:
        raise refusal from None
    return cast(T, result)


def float64_copy(model: nn.Module, inputs: Tensor) -> tuple[nn.Module, Tensor]:
    """A copy of the network, and these inputs, in float64."""
    return copied(model).double(), inputs.double() if inputs.is_floating_point() else inputs


_VIEWS = (aten.view.dtype, aten.slice.Tensor)  # of packed inputs: nothing is computed yet


class Narrow(Mode):
    """Watches whether anything is computed in less than float64, as a forward does that casts."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in _VIEWS:
            self.seen |= any(t.is_floating_point() and t.dtype != torch.float64 for t in tensors_in(result))
        return result


def _compared(model: nn.Module, sites: Sites, batch: Tensor, layers: Sequence[BatchNormSite]) -> tuple[Exactness, bool]:
    """What `check_exact` finds, and whether rounding hides nothing from it."""
    with undisturbed(model):
        try:
            measured = _statistics(model, batch, layers)
        except OtherCallsError:
            raise other_calls(model, sites.batchnorms, batch) from None

        statistics = {key: (mean[None], var[None]) for key, (mean, var, _) in measured.items()}

        predicted = _sampled(model, sites, statistics, None)
        change, outputs = _independent(model, predicted, batch, "")
    counts = {key: count for key, (_, _, count) in measured.items()}
    exactness, is_proven = _compared_with_training(model, sites, batch, layers, outputs, statistics, counts)
    return exactness, is_proven and change.proves(_DOUBTFUL)


def _compared_with_training(
    model: nn.Module,
    sites: Sites,
    batch: Tensor,
    layers: Sequence[BatchNormSite],
    outputs: Tensor,
    statistics: Statistics,
    counts: Mapping[tuple[int, int], int],
) -> tuple[Exactness, bool]:
    """How close f_ω(batch), these `outputs`, is to the training-mode forward, and whether rounding hides nothing."""

    def unknown(why_not: str) -> tuple[Exactness, bool]:
        return Exactness(len(batch), None, why_not), True

    twin, why_not = training_copy(model)
    if twin is None:
        return unknown(why_not)
    training = TrainingForward(model, twin, sites, layers)
    fixed: dict[str, str] = {}
    # Modules that differ in training mode are put in evaluation mode one kind after the other, until both forwards
    # agree or nothing is left that explains the difference.
    while True:
        expected, failure = training.outputs(batch)
        change = None if expected is None else difference(outputs, expected)
        if change is not None and change.is_within(tolerance(outputs)):
            return Exactness(len(batch), change.relative, fixed=tuple(fixed.items())), change.proves(_DOUBTFUL)
        if not fixed and (otherwise := training.otherwise(counts)):
            raise InexactError(
                f"MCBN of this network would not be exact: in training mode a BatchNorm normalises {otherwise}. The "
                "noise of its training is that of such parts of a mini-batch."
            )
        if training.is_bound:
            return unknown("a copy of it runs layers of the original")
        if expected is not None and not training.calls and isinstance(model, torch.jit.ScriptModule):
            return unknown("its evaluation mode is written into it")
        # The forward runs once more, as recording every module's outputs costs more than most networks need.
        with undisturbed(model), recorded_modules(model) as calls, SamplePass(sites, statistics, None, draw=0, start=0):
            forward(model, batch.clone())
        culprit = "" if expected is None else first_difference(calls, training.modules(batch))
        more = _unlike_training(twin, culprit)
        if not more or len(set(fixed.values())) > _MAX_EVALUATION_MODULES:
            if change is None:
                return unknown(f"its training-mode forward fails ({failure})")
            raise InexactError(
                f"MCBN of this network would not be exact: with the statistics of {len(batch)} examples "
                f"its outputs differ from those of its training-mode forward by {_percent(change)}, first in "
                f"{culprit or 'the network itself'}."
            )
        for path, module in more.items():
            module.training = False
            fixed[path] = (
                f"{type(module).__name__} computes something else in training mode than BatchNorm and dropout explain "
                "(custom batch normalization, noise); it stays in evaluation mode"
            )


def _statistics(model: nn.Module, batch: Tensor, layers: Sequence[BatchNormSite]) -> Measurement:
    if not layers:
        return {}
    with MeasurementMode(layers) as mode:
        forward(model, batch.clone())
    return mode.measurement()
