"""The contestants of the benchmark: bnuq, typical hand-written loops, and TorchUncertainty, each with the same job."""

from __future__ import annotations

import copy
import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Protocol

import torch
from networks import AbsentError
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from bnuq.arithmetic import Precision, arithmetic_named
from bnuq.sampling.dropout import Dropout
from bnuq.sampling.engine import Stochastic
from bnuq.sampling.plain_loop import PlainLoop
from bnuq.sampling.site_search import find_sites
from bnuq.sampling.statistics import statistics_of


@dataclass(frozen=True)
class Job:
    """T samples of `model` (in evaluation mode, not modified) at `points` (n, *input), on the model's device.

    `batches` (T, b, *input) are the mini-batches of a BatchNorm job, None for dropout; `wide` (T, 128, *input) are
    larger ones for the loop that recomputes its statistics. `batch` is the number of points of a plain forward, `chunk`
    that of a call of bnuq.
    """

    model: nn.Module
    points: Tensor
    samples: int
    batch: int
    chunk: int
    batches: Tensor | None = None
    wide: Tensor | None = None


class Running(Protocol):
    """A contestant at work on one job."""

    def draw(self) -> None:
        """Compute the statistics of all T mini-batches; does nothing where nothing is drawn in advance."""
        ...

    def passes(self) -> Tensor:
        """The raw outputs (T, n, outputs) for all points."""
        ...


class Plain:
    """The deterministic network, T times: the reference of all ratios."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def draw(self) -> None:
        pass

    def passes(self) -> Tensor:
        job = self._job
        with torch.inference_mode():
            return torch.stack([_in_batches(job.model, job.points, job.batch) for _ in range(job.samples)])


def _in_batches(model: nn.Module, points: Tensor, size: int) -> Tensor:
    return torch.cat([model(chunk) for chunk in points.split(size)])


class Bnuq:
    """bnuq as in `bnuq evaluate`: one engine for all points, called chunk by chunk."""

    def __init__(self, job: Job, *, precision: Precision = "float32", interception: bool = False) -> None:
        self._job, self._precision, self._interception = job, precision, interception
        self._sites = find_sites(job.model, job.points[:3], compare_with_training=False)
        self._omega: Any = None
        self._dropout = Dropout(job.samples) if job.batches is None else None
        self._engine: Any = None  # made at the first pass and reused, so that later draws are timed alone

    @property
    def note(self) -> str:
        """Why bnuq fell back to its plain loop; empty where it did not."""
        return getattr(self._engine, "why_plain", "")

    def draw(self) -> None:
        if self._job.batches is not None:
            self._omega = statistics_of(self._job.model, self._job.batches, layers=self._sites.live_batchnorms)

    def passes(self) -> Tensor:
        return self.passes_over(self._job.points)

    def passes_over(self, points: Tensor) -> Tensor:
        """The same over other points, with the same engine."""
        if self._engine is None:
            self._engine = self._new_engine()
        size = self._job.chunk
        return torch.cat([self._engine.passes(points[i : i + size], i) for i in range(0, len(points), size)], dim=1)

    def _new_engine(self) -> Any:
        """The engine of this contestant."""
        sources: dict[str, Any] = {"omega": self._omega, "dropout": self._dropout}
        if self._interception:
            return PlainLoop(self._job.model, self._sites, **sources)
        return Stochastic(self._job.model, self._sites, arithmetic=arithmetic_named(self._precision), **sources)


class SwapLoop:
    """A loop that swaps the running statistics before each pass.

    The statistics are computed in the common way: a mini-batch in training mode with momentum 1, after which the
    running statistics are those of the batch; the variance is converted to the biased one, by which training mode
    normalises.
    """

    def __init__(self, job: Job) -> None:
        assert job.batches is not None
        self._job, self._batches = job, job.batches
        self._model = copy.deepcopy(job.model)
        self._layers = _batchnorms(self._model)
        self._statistics: list[list[tuple[Tensor, Tensor]]] = []

    def draw(self) -> None:
        self._statistics = []
        with torch.inference_mode():
            for batch in self._batches:
                counts = _normalize_by_batch(self._model, self._layers, batch)
                self._statistics.append(
                    [
                        (layer.running_mean.clone(), layer.running_var * ((count - 1) / count))
                        for layer, count in zip(self._layers, counts, strict=True)
                    ]
                )

    def passes(self) -> Tensor:
        outputs = []
        with torch.inference_mode():
            for drawn in self._statistics:
                for layer, (mean, var) in zip(self._layers, drawn, strict=True):
                    layer.running_mean.copy_(mean)
                    layer.running_var.copy_(var)
                outputs.append(_in_batches(self._model, self._job.points, self._job.batch))
        return torch.stack(outputs)


class RedoneLoop:
    """A loop that recomputes the statistics of a training mini-batch for every pass over every test batch of 128."""

    TEST_BATCH = 128

    def __init__(self, job: Job, *, wide: bool = False) -> None:
        assert job.batches is not None
        batches = job.wide if wide else job.batches
        if len(job.points) % self.TEST_BATCH or batches is None:
            raise AbsentError(f"it is timed only with whole test batches of {self.TEST_BATCH}.")
        self._job, self._batches = job, batches
        self._model = copy.deepcopy(job.model)
        self._layers = _batchnorms(self._model)

    def draw(self) -> None:
        pass

    def passes(self) -> Tensor:
        blocks = []
        with torch.inference_mode():
            for points in self._job.points.split(self.TEST_BATCH):
                outputs = []
                for batch in self._batches:
                    _normalize_by_batch(self._model, self._layers, batch)
                    outputs.append(self._model(points))
                blocks.append(torch.stack(outputs))
        return torch.cat(blocks, dim=1)


def _batchnorms(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def _normalize_by_batch(model: nn.Module, layers: list[Any], batch: Tensor) -> list[int]:
    """Set the running statistics to those of `batch`, and return the number of values per channel of every layer."""
    counts: dict[int, int] = {}

    def look(layer: nn.Module, args: tuple[Tensor]) -> None:
        counts[id(layer)] = args[0].numel() // args[0].shape[1]

    hooks = [layer.register_forward_pre_hook(look) for layer in layers]
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.train()
        layer.momentum = 1.0
    model(batch)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.eval()
        layer.momentum = momentum
    for hook in hooks:
        hook.remove()
    return [counts[id(layer)] for layer in layers]


class DropoutLoop:
    """A loop of forwards with only the dropout layers in training mode."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._model = copy.deepcopy(job.model)
        for module in self._model.modules():
            if isinstance(module, _DropoutNd):
                module.train()

    def draw(self) -> None:
        pass

    def passes(self) -> Tensor:
        job = self._job
        with torch.inference_mode():
            return torch.stack([_in_batches(self._model, job.points, job.batch) for _ in range(job.samples)])


class TorchUncertaintyMCBN:
    """TorchUncertainty's MCBatchNorm, fitted on the same mini-batches. It normalises by the unbiased variance."""

    def __init__(self, job: Job) -> None:
        assert job.batches is not None
        method = _torch_uncertainty("torch_uncertainty.post_processing.mc_batch_norm").MCBatchNorm
        layers = _batchnorms(job.model)
        if odd := {type(layer).__name__ for layer in layers} - {"BatchNorm2d"}:
            raise AbsentError(_why_not_converted(odd))
        batches, device = job.batches, job.points.device
        self._job = job
        self._wrapper = method(num_estimators=job.samples, mc_batch_size=batches.shape[1], device=device)
        self._wrapper.mc_batch_norm_layers = []  # otherwise all instances of the class share a single list
        self._wrapper.set_model(job.model)
        images = batches.flatten(0, 1)
        data = torch.utils.data.TensorDataset(images, torch.zeros(len(images)))
        self._loader = torch.utils.data.DataLoader(data, batch_size=batches.shape[1])

    def draw(self) -> None:
        with torch.inference_mode():
            self._wrapper.fit(self._loader)

    def passes(self) -> Tensor:
        with torch.inference_mode():
            return _estimates(self._wrapper, self._job)


def _why_not_converted(kinds: set[str]) -> str:
    if "BatchNorm1d" in kinds:
        return "its MCBatchNorm converts BatchNorm2d only, and this network has BatchNorm1d."
    return f"its MCBatchNorm would replace {', '.join(sorted(kinds))} and drop the activation inside: another network."


class TorchUncertaintyMCDropout:
    """TorchUncertainty's mc_dropout: a loop over passes, or (`on_batch`, its default) all passes in one batch."""

    def __init__(self, job: Job, *, on_batch: bool = False) -> None:
        wrap = _torch_uncertainty("torch_uncertainty.methods.mc_dropout").mc_dropout
        self._job = job
        self._wrapper = wrap(copy.deepcopy(job.model), num_estimators=job.samples, on_batch=on_batch).eval()

    def draw(self) -> None:
        pass

    def passes(self) -> Tensor:
        with torch.inference_mode():
            return _estimates(self._wrapper, self._job)


def _estimates(wrapper: nn.Module, job: Job) -> Tensor:
    blocks = [wrapper(chunk).unflatten(0, (job.samples, len(chunk))) for chunk in job.points.split(job.batch)]
    return torch.cat(blocks, dim=1)


def _torch_uncertainty(module: str) -> Any:
    if importlib.util.find_spec("torch_uncertainty") is None:
        raise AbsentError("torch-uncertainty is not installed here; `make bench` makes an environment that has it.")
    importlib.import_module("torchvision_operators").make_importable()
    return importlib.import_module(module)


def torch_uncertainty_version() -> str | None:
    """The version of TorchUncertainty that is timed, None where it is not installed."""
    return version("torch_uncertainty") if importlib.util.find_spec("torch_uncertainty") else None


@dataclass(frozen=True)
class Contestant:
    """A contestant: its label and how it is set up for a job; `draws_of` names a contestant with the same drawing."""

    label: str
    set_up: Callable[[Job], Running]
    draws_of: str = ""


def batchnorm_contestants(device: str) -> dict[str, Contestant]:
    """The contestants of an MCBN job."""
    lower = {"cpu": ("bfloat16",), "cuda": ("tf32", "float16", "bfloat16")}[device]
    return {
        "bnuq": Contestant("bnuq", Bnuq),
        **{f"bnuq_{name}": _bnuq_in(name) for name in lower},
        "interception": Contestant("bnuq's plain loop (fallback)", _interception, draws_of="bnuq"),
        "swap_loop": Contestant("loop that swaps statistics", SwapLoop),
        "redone": Contestant("loop, statistics redone per test batch", RedoneLoop),
        "redone_128": Contestant("the same with b = 128", lambda job: RedoneLoop(job, wide=True)),
        "torch_uncertainty": Contestant("TorchUncertainty MCBatchNorm", TorchUncertaintyMCBN),
    }


def _bnuq_in(precision: Precision) -> Contestant:
    return Contestant(f"bnuq, {precision}", lambda job: Bnuq(job, precision=precision), draws_of="bnuq")


def _interception(job: Job) -> Running:
    return Bnuq(job, interception=True)


def dropout_contestants() -> dict[str, Contestant]:
    """The contestants of an MC dropout job."""
    return {
        "bnuq": Contestant("bnuq", Bnuq),
        "interception": Contestant("bnuq's plain loop (fallback)", _interception),
        "dropout_loop": Contestant("loop with dropout in training mode", DropoutLoop),
        "torch_uncertainty": Contestant("TorchUncertainty mc_dropout, loop", TorchUncertaintyMCDropout),
        "torch_uncertainty_batch": Contestant(
            "TorchUncertainty mc_dropout, batch", lambda job: TorchUncertaintyMCDropout(job, on_batch=True)
        ),
    }
