"""Observes a network and makes it stochastic: intercepts its operations below autograd.

A dispatch mode below autograd sees each BatchNorm and each evaluation-mode dropout as one operation, whether
`nn.BatchNorm2d`, a fused layer, `F.dropout` or a scripted module called it. Nothing in the network is replaced. torch
does not document that composite operations arrive undecomposed, so `_self_test` checks it once per process. They do so
in `torch.inference_mode()` too, but what a network makes there and keeps, such as a table, cannot be trained with
afterwards: no forward of a network runs in it.

Under autograd they arrive in parts. A network whose forward differentiates (`torch.autograd.grad`) runs with autograd,
and `AboveAutograd` gives the modes its BatchNorms and dropouts whole, before autograd takes them apart.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import cache, partial
from itertools import chain
from types import FunctionType
from typing import Any, Literal, TypeVar
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode, has_torch_function
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack, _pop_mode_temporarily

import bnuq.nn.noise  # noqa: F401 - registers the operation of its layers
from bnuq import devices
from bnuq.arithmetic import Rounding
from bnuq.errors import BnuqError, SamplingError
from bnuq.forms import check_form, into_evaluation_mode, strided_parts, uncompiled
from bnuq.frozen import frozen
from bnuq.randomness import generators_restored, one_thread
from bnuq.sampling.inputs import form_of
from bnuq.sampling.outputs import as_rows, scored_output
from bnuq.user_code import user_code

aten = torch.ops.aten


class Mode(TorchDispatchMode):
    """A dispatch mode that does not import torch's compiler, which takes over a second."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


_DROPOUTS = {
    getattr(aten, name + suffix): name
    for name in ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
    for suffix in ("", "_")
}


@frozen
class BatchNormCall:
    """One call of a BatchNorm, by any module or function."""

    input: Tensor
    weight: Tensor | None
    bias: Tensor | None
    running_mean: Tensor | None
    running_var: Tensor | None
    training: bool
    momentum: float
    eps: float

    @property
    def address(self) -> int:
        """Identifies the layer: the memory address of its running mean, else of its scale; 0 where it has neither, or
        where its scale is computed in the forward and lies elsewhere in the next one."""
        if self.running_mean is not None:
            return self.running_mean.data_ptr()
        return self.weight.data_ptr() if isinstance(self.weight, nn.Parameter) else 0

    def normalized(self, mean: Tensor, var: Tensor) -> Tensor:
        """The layer's output with these statistics in place of its running ones; the layer's ε is added here, once."""
        return torch.batch_norm(
            self.input, self.weight, self.bias, mean, var, False, 0.0, self.eps, torch.backends.cudnn.enabled
        )


@frozen
class DropoutCall:
    """One call of a dropout; `variety` is "dropout", "feature_dropout", "alpha_dropout" or "feature_alpha_dropout"."""

    input: Tensor
    p: float
    variety: str
    in_place: bool
    training: bool


_NOISE: dict[Any, Literal["normal", "uniform", "bernoulli"]] = {
    torch.ops.bnuq.standard_normal: "normal",
    aten.randn: "normal",
    aten.randn_like: "normal",
    aten.normal: "normal",
    aten.normal_: "normal",
    aten.rand: "uniform",
    aten.rand_like: "uniform",
    aten.uniform_: "uniform",
    aten.bernoulli: "bernoulli",
    aten.bernoulli_: "bernoulli",
}


@frozen
class NoiseCall:
    """One request for independent random numbers: normal ones of mean `first` and standard deviation `second`, uniform
    ones between `first` and `second`, or ones and zeros, ones with probability `first`. `into` is the tensor that they
    are written into, if any."""

    family: Literal["normal", "uniform", "bernoulli"]
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    first: Tensor | float
    second: Tensor | float
    into: Tensor | None
    name: str  # of the operation
    is_complex: bool = False  # the numbers are real and imaginary parts, on a last axis

    def means(self) -> Tensor:
        """The result of the operation where every number is its mean."""
        zero = torch.zeros(self.shape, dtype=self.dtype, device=self.device)
        return self.result(self.first + zero if self.family != "uniform" else (self.first + self.second) / 2 + zero)

    def result(self, numbers: Tensor) -> Tensor:
        """The result of the operation that gives these numbers."""
        values = (numbers if self.dtype.is_floating_point else numbers.round()).to(self.dtype).expand(self.shape)
        values = torch.view_as_complex(values.contiguous()) if self.is_complex else values
        return values if self.into is None else self.into.copy_(values)


def noise_call(func: Any, args: tuple, kwargs: dict) -> NoiseCall | None:
    """The `noise_request` that this operation of a forward is; None where the forward has seeded torch's generator."""
    call = noise_request(func, args, kwargs)
    return None if call is None or is_seeded() else call


def noise_request(func: Any, args: tuple, kwargs: dict) -> NoiseCall | None:
    """The request for random numbers that this dispatched operation is; None for any other operation, and where the
    network draws from its own generator, which may be seeded so that the numbers are always the same."""
    packet = func.overloadpacket
    family = _NOISE.get(packet)
    if family is None:
        return None
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, positional(func, args, kwargs), strict=True))
    if given.get("generator") is not None:
        return None
    tensors = [value for name in ("self", "like", "mean", "std") if isinstance(value := given.get(name), Tensor)]
    shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors)) if tensors else given["size"]
    default = tensors[0].dtype if tensors else torch.get_default_dtype()
    device = tensors[0].device if tensors else torch.get_default_device()
    first, second = {
        "normal": (given.get("mean", 0.0), given.get("std", 1.0)),
        "uniform": (given.get("from", 0.0), given.get("to", 1.0)),
        "bernoulli": (given.get("p", given.get("self")), 0.0),
    }[family]
    dtype = given.get("dtype") or default
    if is_complex := dtype.is_complex:
        if family != "normal" or isinstance(first, Tensor) or isinstance(second, Tensor):
            raise SamplingError(f"the network draws complex random numbers ({packet.__name__}). Draw real ones.")
        # of each part the variance is a half
        shape, dtype, second = (*shape, 2), dtype.to_real(), second * 0.5**0.5
    return NoiseCall(
        family=family,
        shape=tuple(shape),
        dtype=dtype,
        device=given.get("device") or device,
        first=first,
        second=second,
        into=given["self"] if packet.__name__.endswith("_") else None,
        name=packet.__name__,
        is_complex=is_complex,
    )


_SEED = 0x6A09E667 << 32  # bits of √2, which nobody else begins a seed with


def is_seeded() -> bool:
    """Whether a forward that may be noisy has seeded torch's generator, in the block of `undisturbed`."""
    return torch.default_generator.initial_seed() >> 32 != _SEED >> 32


class _Means(Mode):
    """Gives the means of all noise in place of random numbers."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        call = noise_call(func, args, kwargs or {})
        return func(*args, **(kwargs or {})) if call is None else call.means()


_NOISELESS: WeakSet[nn.Module] = WeakSet()


def remember_noise(model: nn.Module, *, is_noisy: bool) -> None:
    """Remember whether the forward of `model` draws random numbers: `undisturbed` need not look for them in a
    network that does not, and looking costs 10 µs an operation."""
    (_NOISELESS.discard if is_noisy else _NOISELESS.add)(model)


_KNOWN: WeakSet[nn.Module] = WeakSet()  # networks whose form was checked, and that have an evaluation mode
_DIFFERENTIATING: WeakSet[nn.Module] = WeakSet()
T = TypeVar("T")


class AutogradNeededError(SamplingError):
    """A forward without autograd differentiates; from now on this network runs with it."""


def with_autograd_if_needed(run: Callable[[], T]) -> T:
    """`run()`, which is to be the first forward of a network; again where that network turns out to differentiate."""
    try:
        return run()
    except AutogradNeededError:
        return run()


def differentiates(model: nn.Module) -> bool:
    """Whether the forward of `model` was seen to differentiate."""
    return model in _DIFFERENTIATING


def copied(model: nn.Module) -> nn.Module:
    """A deep copy of `model`, of which is known what is known of `model`."""
    with torch.inference_mode(False), warnings.catch_warnings():  # False: autograd refuses tensors of inference mode
        warnings.simplefilter("ignore", FutureWarning)  # of torch about the forms that an exported program holds
        twin = copy.deepcopy(model)
    if differentiates(model):
        _DIFFERENTIATING.update((twin, *twin.modules()))
    return twin


_FUNCTIONS: dict[Any, Any] = {
    functional.dropout: aten.dropout,
    functional.dropout1d: aten.feature_dropout,
    functional.dropout2d: aten.feature_dropout,
    functional.dropout3d: aten.feature_dropout,
    functional.alpha_dropout: aten.alpha_dropout,
    functional.feature_alpha_dropout: aten.feature_alpha_dropout,
    functional.linear: aten.linear,
    torch.batch_norm: aten.batch_norm,
} | {getattr(torch, packet.__name__): packet for packet in _DROPOUTS}
_OPERATIONS = {packet.default for packet in _FUNCTIONS.values()}


class AboveAutograd(TorchFunctionMode):
    """Gives BatchNorms, dropouts and linear layers to the dispatch modes as whole operations, before autograd, so that
    gradients flow through what the modes put in their place. Scripted modules are out of its reach."""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        operation = _whole(func, args, kwargs or {}) if callable(func) and func.__hash__ is not None else None
        if operation is None or not _get_current_dispatch_mode_stack():
            return func(*args, **(kwargs or {}))
        whole, arguments = operation
        with _pop_mode_temporarily() as mode, self:  # the modes below get what this one makes of it
            assert mode is not None
            return mode.__torch_dispatch__(whole, (), arguments, {})


def _whole(func: Any, args: tuple, kwargs: dict) -> tuple[Any, tuple] | None:
    """The operation that a function of torch is, and its arguments; None where a dispatch mode sees it as well."""
    if func is functional.batch_norm:
        bound = _bound(func, args, kwargs)
        names = ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")
        return aten.batch_norm.default, (*map(bound.get, names), torch.backends.cudnn.enabled)
    if func in _OPERATIONS:
        return func, tuple(positional(func, args, kwargs))
    packet = _FUNCTIONS.get(func)
    if packet is None:
        return None
    if isinstance(func, FunctionType):
        bound = _bound(func, args, kwargs)
        if bound.get("inplace"):
            packet = getattr(aten, f"{packet.__name__}_")
        return packet.default, (bound["input"], bound["p"], bound["training"])
    return packet.default, tuple(positional(packet.default, args, kwargs))


def _bound(func: Any, args: tuple, kwargs: dict) -> dict[str, Any]:
    bound = inspect.signature(func).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def stochastic_call(func: Any, args: tuple, kwargs: dict) -> BatchNormCall | DropoutCall | None:
    """The BatchNorm or dropout call that this dispatched operation is; None for any other operation."""
    packet = func.overloadpacket
    if packet is aten.batch_norm:
        return BatchNormCall(*positional(func, args, kwargs)[:8])
    if packet in _DROPOUTS:
        values, p, training = positional(func, args, kwargs)[:3]
        return DropoutCall(values, float(p), _DROPOUTS[packet], packet.__name__.endswith("_"), bool(training))
    return None


def positional(func: Any, args: tuple, kwargs: dict) -> list:
    """All arguments of an operation in the order of its schema, defaults filled in."""
    rest = func._schema.arguments[len(args) :]
    return [*args, *(kwargs.get(a.name, a.default_value) for a in rest)]


def tensors_in(values: Any) -> Iterator[Tensor]:
    """Every tensor in the arguments or the result of an operation."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, (tuple, list)):
        for value in values:
            yield from tensors_in(value)
    elif isinstance(values, dict):
        yield from tensors_in(tuple(values.values()))


def written_by(func: Any, args: tuple, kwargs: dict) -> Iterator[Tensor]:
    """The tensors that this operation writes into."""
    for argument, value in zip(func._schema.arguments, positional(func, args, kwargs), strict=True):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from tensors_in(value)


@contextmanager
def undisturbed(model: nn.Module, *, evaluation: bool = True, gradients: bool = False) -> Iterator[None]:
    """Run `model` in evaluation mode, without gradients unless these are asked for, and restore its modes and buffers,
    torch's flags and the global generators afterwards. Compiled parts run uncompiled. One thread at a time is inside.

    The fused fast path of Transformers, which hides its dropouts, is not taken, and TF32 is switched off. Noise that
    the network draws is replaced by its mean, unless a mode inside draws it. The generators are left alone where the
    network is known to draw nothing: other threads may be drawing from them.
    """
    _self_test()
    with one_thread(), ExitStack() as restoring:
        if not (is_known := model in _KNOWN):
            check_form(model)
        if not (evaluation and model in _NOISELESS):
            restoring.enter_context(generators_restored())
        if model not in _NOISELESS:  # by its own seed a later one is noticed
            torch.default_generator.manual_seed(_SEED + int(torch.randint(2**32, (), device="cpu")))
        modes = restoring.enter_context(left_as_it_was(model))
        if evaluation and not (is_known and not any(training for _, training in modes)):
            into_evaluation_mode(model)
            _KNOWN.add(model)
        with (
            float32_as("ieee"),
            uncompiled(),
            torch.set_grad_enabled(gradients),
            nullcontext() if gradients else torch._C._AutoDispatchBelowAutograd(),
            _SlowPath(),
            nullcontext() if model in _NOISELESS else _Means(),
        ):
            yield


@contextmanager
def left_as_it_was(model: nn.Module) -> Iterator[list[tuple[nn.Module, bool]]]:
    """Restore the modes and the buffers of a network, and the parameters of layers whose own `train` writes into them,
    as those do that merge two weights for evaluation. Gives every module and whether it is in training mode."""
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(module, name, buffer) for module, _ in modes for name, buffer in module._buffers.items()]
    merging = (m.parameters() for m, training in modes if training and type(m).train is not nn.Module.train)
    tensors = {id(t): t for t in chain((b for _, _, b in buffers), *merging) if t is not None and not is_lazy(t)}
    values = _SavedValues(tensors.values())
    try:
        yield modes
    finally:
        for module, training in modes:
            if module.training != training:  # to set it takes longer than to read it
                if type(module).train is not nn.Module.train:
                    module.train(training)
                module.training = training
        for module, name, buffer in buffers:
            module_buffers = module._buffers  # that of a scripted module has no `get`
            if name not in module_buffers or module_buffers[name] is not buffer:  # a layer may replace the tensor
                module_buffers[name] = buffer
        values.restore()  # a layer may count its calls, or update its statistics in every mode


class _SlowPath(TorchFunctionMode):
    """Keeps this thread from the fused fast path of Transformers, which is not taken where such a mode sees calls."""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return func(*args, **(kwargs or {}))


class _SavedValues:
    """The saved values of tensors, restored where they have changed.

    Tensors are compared by value: version counters do not register the writes of batch normalisation. Contiguous ones
    of an accelerator are not compared, for which the host would wait: they are written, past their version counters.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        groups: dict[Any, list[Tensor]] = {}
        for tensor in chain.from_iterable(map(strided_parts, tensors)):
            is_single = tensor.is_quantized or not (devices.is_host(tensor.device) or tensor.is_contiguous())
            groups.setdefault(id(tensor) if is_single else (tensor.device, tensor.dtype), []).append(tensor)
        with torch.inference_mode():
            self._saved = [(group, _joined(group), [tensor.shape for tensor in group]) for group in groups.values()]

    @torch.inference_mode()
    def restore(self) -> None:
        for group, saved, shapes in self._saved:
            parts = [saved] if len(group) == 1 else saved.split([shape.numel() for shape in shapes])
            before = parts if len(group) == 1 else [part.view(size) for part, size in zip(parts, shapes, strict=True)]
            if not devices.is_host(saved.device) and group[0].is_contiguous():
                torch._foreach_copy_([tensor.data for tensor in group], before)
            elif not torch.equal(_joined(group), saved):
                for tensor, values in zip(group, before, strict=True):
                    if not torch.equal(tensor, values):
                        tensor.copy_(values)


def addresses_of(model: nn.Module) -> set[int]:
    """The memory addresses of the network's parameters and buffers."""
    tensors = chain(model.parameters(), model.buffers())
    return {part.data_ptr() for tensor in tensors for part in strided_parts(tensor)}


def storages_of(tensors: Any) -> set[int]:
    """What identifies the memory of all tensors in the arguments or the result of an operation."""
    return {part.untyped_storage()._cdata for tensor in tensors_in(tensors) for part in strided_parts(tensor)}


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0].clone() if len(tensors) == 1 else torch.cat([tensor.reshape(-1) for tensor in tensors])


@contextmanager
def float32_as(convolutions: Rounding, products: Rounding | None = None) -> Iterator[None]:
    """Set whether CUDA rounds the factors of float32 to 10 bits (TF32) in convolutions, as is torch's default, and in
    products of matrices (None: as in convolutions).

    Since torch 2.9 there are two interfaces for this. Both are set, so that they agree; where they already disagree,
    the old one cannot be read and is not changed. All threads share them: one at a time is inside.
    """
    with one_thread():
        _exact_outside.append(is_exact_on_cpu())
        try:
            with _float32_as(convolutions, products or convolutions):
                yield
        finally:
            _exact_outside.pop()


_exact_outside: list[bool] = []  # `is_exact_on_cpu` outside the block of `float32_as` that a thread is in, if one is


@contextmanager
def _float32_as(convolutions: Rounding, products: Rounding) -> Iterator[None]:
    cudnn = torch.backends.cudnn
    old: list[tuple[Callable[[Any], object], Any]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the old interface, the only one in torch 2.6
        new = [(setting, setting.fp32_precision) for setting in _precision_settings()]
        with suppress(RuntimeError):
            old.append((torch.set_float32_matmul_precision, torch.get_float32_matmul_precision()))
            torch.set_float32_matmul_precision("highest" if products == "ieee" else "high")
        with suppress(RuntimeError):
            old.append((partial(setattr, cudnn, "allow_tf32"), cudnn.allow_tf32))
            cudnn.allow_tf32 = convolutions == "tf32"
        for (setting, _), rounding in zip(new, (products, convolutions, convolutions, products), strict=False):
            setting.fp32_precision = rounding
    try:
        yield
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for restore, value in old:
                restore(value)
            for setting, before in new:
                setting.fp32_precision = "none"  # inherit; set explicitly only where the value was another
                if setting.fp32_precision != before:
                    setting.fp32_precision = before


def is_exact_on_cpu() -> bool:
    """Whether a CPU computes float32 products exactly without `float32_as`, whose cost is noticeable in small work."""
    if outside := _exact_outside[:1]:  # whichever thread is in its block
        return outside[0]
    backends: Any = torch.backends
    new = getattr(backends.mkldnn, "matmul", None)
    return (new is not None and new.fp32_precision == "ieee") or (
        (new is None or new.fp32_precision == "none") and torch.get_float32_matmul_precision() == "highest"
    )


def _precision_settings() -> list[Any]:
    backends: Any = torch.backends
    if not hasattr(backends.cuda.matmul, "fp32_precision"):
        return []
    return [backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn, backends.mkldnn.matmul]


def forward(model: nn.Module, inputs: Tensor) -> Any:
    """The output of `located_forward`."""
    return located_forward(model, inputs)[0]


def located_forward(model: nn.Module, inputs: Tensor) -> tuple[Any, str, tuple[int, ...]]:
    """The output of `model` for `inputs`: the tensor to be scored where it is found in what the network returns, see
    `as_rows`; where in what the network returns it is; and the shape that it has there.

    Raises SamplingError where the forward fails, with the exception and the place where it was raised.
    """
    failure = f"the network's forward fails on {form_of(model, inputs)} with"
    alone = _is_below_autograd()
    with user_code(failure, advice=_advice, error=SamplingError):
        try:
            with _with_autograd(model) if alone and differentiates(model) else nullcontext():
                output = model(inputs.clone() if inputs.is_inference() or (alone and differentiates(model)) else inputs)
        except RuntimeError as error:
            if not alone or differentiates(model) or not _lacks_autograd(error):
                raise
            _DIFFERENTIATING.update((model, *model.modules()))
            raise AutogradNeededError("the network's forward differentiates, and was run without autograd.") from error
    tensor, where = scored_output(output)
    if isinstance(tensor, Tensor) and (tensor.is_nested or tensor.is_meta or tensor.layout is not torch.strided):
        raise SamplingError("the network's output is a nested, sparse or meta tensor; expected a dense one.")
    if alone and isinstance(tensor, Tensor) and tensor.requires_grad:
        tensor = tensor.detach()
    return as_rows(tensor, inputs), where, tuple(getattr(tensor, "shape", ()))


def _is_below_autograd() -> bool:
    return torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.AutogradOther)


def _lacks_autograd(error: RuntimeError) -> bool:
    """Whether this is torch's error for a gradient of what was computed without autograd. An error of the network's own
    class is not converted to text, which may fail."""
    message = error.args[0] if type(error) is RuntimeError and error.args else None
    return isinstance(message, str) and "does not require grad" in message


@contextmanager
def _with_autograd(model: nn.Module) -> Iterator[None]:
    """Run the forward of a network that differentiates; the gradients that its parameters have stay as they are."""
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        with torch.inference_mode(False), torch.enable_grad(), AboveAutograd():  # False: autograd is there again
            yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient


def _advice(error_text: str) -> str:
    """The remedy for a forward that failed with this error."""
    if any(word in error_text for word in ("dtype", "scalar type", "BFloat16", "Half")):
        return (
            "The forward mixes dtypes: weights and inputs have the dtype of --precision. Remove casts to half "
            "precision, and autocast, from the forward."
        )
    return "Check that the architecture matches the data."


def fed(model: nn.Module, values: Tensor | np.ndarray) -> Tensor:
    """`values` on the device of `model` and, where they are floating-point numbers, in its dtype."""
    if not isinstance(values, Tensor | np.ndarray):
        raise SamplingError(f"the network's input is a {type(values).__name__}; expected a tensor or an array.")
    tensor = torch.as_tensor(values)
    reference = next((t for t in chain(model.parameters(), model.buffers()) if t.is_floating_point()), None)
    if reference is None:
        return tensor
    dtype = reference.dtype if tensor.is_floating_point() else tensor.dtype
    return devices.upload(tensor, reference.device, dtype)


class CallObserver(Mode):
    """Tells `seen` of every stochastic call before it runs."""

    def __init__(self, seen: Callable[[BatchNormCall | DropoutCall], object]) -> None:
        super().__init__()
        self._seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        call = stochastic_call(func, args, kwargs or {})
        if call is not None:
            self._seen(call)
        return func(*args, **(kwargs or {}))


@cache
def _self_test() -> None:
    seen_calls: list[type] = []
    with (
        torch.no_grad(),
        torch._C._AutoDispatchBelowAutograd(),
        _SlowPath(),
        CallObserver(lambda call: seen_calls.append(type(call))),
    ):
        ones = torch.ones(2, 1)
        kept = torch.batch_norm(ones, None, None, None, None, True, 0.1, 1e-5, False)
        torch.dropout(kept, 0.5, False)
        held = _is_below_autograd(), has_torch_function((ones,)), not kept.is_inference()
        with torch.inference_mode(False):
            held += (not _is_below_autograd(),)
    if seen_calls != [BatchNormCall, DropoutCall] or not all(held) or _is_below_autograd():
        raise BnuqError(
            f"torch {torch.__version__} does not pass BatchNorm and dropout to dispatch modes as whole operations "
            f"(seen: {[kind.__name__ for kind in seen_calls]}, {held}). Use another release of torch, and report this "
            "one."
        )
