"""Passes points through engines, chunk by chunk as memory allows; and how long that took."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from bnuq import devices
from bnuq.arithmetic import Arithmetic
from bnuq.data import Points
from bnuq.errors import is_out_of_memory
from bnuq.evaluation import memory
from bnuq.evaluation.augmentation import Augmented
from bnuq.evaluation.pipeline import Pipeline
from bnuq.evaluation.tasks.class_tensors import bytes_of_scoring
from bnuq.findings import Finding, note
from bnuq.sampling import counter_rng
from bnuq.sampling.bank_tiles import BankEngine
from bnuq.sampling.deviation import Deviation
from bnuq.sampling.engine import Stochastic, chunks, default_chunk
from bnuq.sampling.plain_loop import BySet, Engine, Ensemble, Evaluation
from bnuq.sampling.recorded_calls import OtherCallsError

_DENSE, _AT_LEAST = 2**24, 8  # outputs of a segmentation that pass at once, as if there were at least so many draws
_OUTPUTS = 2**22  # outputs of all samples in main memory at once: points of many classes pass in smaller chunks

Feed = Callable[[slice], Tensor]  # rows of a set as network input


class ChunkedPasses:
    """The passes of a run: `findings` on them, the `seconds` that they took, without loading, and the `arithmetic` of
    its samples, the exact one as long as there are none. A point has so many `outputs`, all its pixels together where
    they are `dense`, and an `auto_limit` of samples where their number is "auto"."""

    def __init__(self, pipeline: Pipeline, outputs: int, *, dense: bool = False, auto_limit: int | None = None) -> None:
        self.findings: list[Finding] = []
        self.seconds = 0.0
        self.arithmetic = pipeline.arithmetic.exact
        self._given_up = False  # whether the arithmetic that is there by default is
        self._pipeline, self._outputs, self._dense, self._auto_limit = pipeline, outputs, dense, auto_limit
        self._requested = pipeline.settings.chunk_size
        self._largest: int | None = None  # chunk size, where memory does not allow the default

    def prepare(self, engines: Iterable[Engine], points: Points) -> int:
        """Make the engines' plans with the first of these points, within the free memory; the bytes that a chunk
        takes."""
        engines, requested, device = list(engines), self._requested, self._pipeline.device
        free = memory.available(device)
        samplers = [*filter(None, map(stochastic_of, engines))]
        for stochastic in samplers:
            if self._given_up:
                stochastic.compute_exactly()
            stochastic.prepare(self._pipeline.evaluated(points, slice(0, 8 if self._dense else 64)), free=free)
        self._settle_arithmetic(samplers)
        if self._dense:  # of whose outputs a tile is in memory at once, whatever the chunk
            return max(3 * 8 * max(_DENSE, 4 * self._outputs) + self._bytes_of_work(engine) for engine in engines)
        usual = min(self._chunk(points, engine) for engine in engines)
        free = memory.available(device)
        fitting = fitting_chunk(engines, self._outputs, usual, device)
        size = requested or fitting
        need = max(bytes_taken(engine, size, self._outputs, device) for engine in engines)
        samples = max(engine.samples for engine in engines)
        if samples > 1 and free is not None and size < usual:
            self._largest = size
            free_in_words, needed = memory.in_words(free), memory.in_words(need)
            self.add(note("chunk-reduced", points=size, samples=samples, free=free_in_words, needed=needed))
        return need

    def _settle_arithmetic(self, engines: Sequence[Stochastic]) -> None:
        """All samples of a run are computed in one arithmetic, that of its first ones: the exact one where an engine
        has no other, or deviates in it by more than the Monte Carlo error of all draws."""
        default = self._pipeline.arithmetic
        if default.by_default and self.arithmetic.is_exact:
            self._given_up = self._given_up or any(self._why_exact(engine) for engine in engines)
        for engine in engines:
            if self._given_up:
                engine.compute_exactly()
            if not engine.arithmetic.is_exact:
                self.arithmetic = engine.arithmetic

    def _why_exact(self, engine: Stochastic) -> str:
        """Why the samples of this engine are computed exactly where another arithmetic is there by default."""
        if engine.why_plain:
            return f"there is no plan of the network: {engine.why_plain}"
        if engine.deviation is None:  # a single sample, which is always exact
            return ""
        draws = self._auto_limit or engine.samples
        below = engine.deviation.is_below_monte_carlo_error(draws)
        return "" if below else f"it deviates by more than the Monte Carlo error of {draws} samples"

    def _bytes_of_work(self, engine: Engine) -> int:
        """What the passes of the images of a tile take inside an engine."""
        stochastic = stochastic_of(engine)
        images = max(1, _DENSE // self._outputs // max(_AT_LEAST, engine.samples))
        work = None if stochastic is None else stochastic.work(images)
        return 0 if work is None else work.bytes

    def tile(self, engine: Engine, points: Points, *, keeps_samples: bool) -> int:
        """The points of a unit of work: the requested chunk, or the default one whatever the free memory, and fewer
        where a unit keeps the raw samples of its points; on an accelerator these are as many as pass at once."""
        if keeps_samples and not devices.is_host(self._pipeline.device):
            return self._chunk(points, engine)
        default = default_chunk(points.point_shape, self._pipeline.device)
        return self._requested or (min(default, self._most_on_host(engine)) if keeps_samples else default)

    @contextmanager
    def feeding(self, points: Points, engine: Engine | None = None) -> Iterator[Feed]:
        """Loads rows of a set, see `loading`. Of an engine that loads them by itself, their numbers."""
        if isinstance(engine, BySet):
            yield lambda rows: torch.arange(rows.start, rows.stop)
            return
        with loading(self._pipeline, points) as load:
            yield load

    def blocks(self, engine: Engine, points: Points, rows: range, feed: Feed) -> Iterator[Tensor]:
        """The outputs (T, chunk, K) for these rows of a set, chunk by chunk."""
        device, loading = self._pipeline.device, 0.0

        def timed(part: slice) -> Tensor:
            nonlocal loading
            before = time.perf_counter()
            loaded = feed(part)
            loading = time.perf_counter() - before
            return loaded

        size = self._chunk(points, engine)
        if self._largest is not None:  # parts of equal size
            size = -(-len(rows) // -(-len(rows) // size))
        outputs = chunks(engine, rows.stop, timed, size=size, first=rows.start, on_halved=self._halved)
        while True:
            before = time.perf_counter()
            block = next(outputs, None)
            devices.synchronize(device)
            if block is None:
                return
            self.seconds += time.perf_counter() - before - loading
            yield block

    def dense_blocks(self, engine: Engine, points: Points, rows: range, feed: Feed) -> Iterator[Tensor]:
        """The outputs (t, images, K, H, W) of a segmentation for these rows of a set: all draws of some images, a few
        at a time, before those of the next ones."""
        at_once = max(1, _DENSE // self._outputs)
        images = self._requested or min(max(1, at_once // max(_AT_LEAST, engine.samples)), len(points))
        draws = max(1, at_once // images)
        for start in range(rows.start, rows.stop, images):
            inputs = feed(slice(start, min(rows.stop, start + images)))
            for first in range(0, engine.samples, draws):
                numbers = range(first, min(engine.samples, first + draws))
                before = time.perf_counter()
                if len(numbers) == engine.samples:
                    outputs = engine.passes(inputs, start)
                else:
                    assert isinstance(engine, Stochastic | Ensemble | Augmented)
                    outputs = engine.passes(inputs, start, numbers)
                devices.synchronize(inputs.device)
                self.seconds += time.perf_counter() - before
                yield outputs

    def warm_up(self, engine: Engine, points: Points) -> None:
        """Make a GPU load its libraries and kernels, and choose algorithms, in a pass that is not timed."""
        if devices.is_host(self._pipeline.device):
            return
        stochastic = stochastic_of(engine)
        inputs = self._pipeline.evaluated(points, slice(0, min(len(points), self._chunk(points, engine))))
        try:
            if stochastic is None:
                engine.passes(inputs)
            else:
                work = stochastic.work(len(inputs))
                stochastic.passes(inputs, 0, range(min(stochastic.samples, 1 if work is None else work.stacked)))
        except (MemoryError, RuntimeError, OtherCallsError) as error:
            if not (is_out_of_memory(error) or isinstance(error, OtherCallsError)):
                raise  # otherwise the timed passes halve their chunks
        devices.synchronize(self._pipeline.device)

    def add(self, finding: Finding) -> None:
        """Add a finding, once."""
        if finding not in self.findings:
            self.findings.append(finding)

    def note_arithmetic(self, method: str, engine: Engine) -> None:
        """Note how far the samples are from exact ones, where the arithmetic is another, or why it is not the one that
        is there by default; and a kernel that the device lacks."""
        stochastic = stochastic_of(engine)
        if stochastic is None:
            return
        if not stochastic.arithmetic.is_exact and stochastic.deviation is not None:
            self.add(precision_note(method, stochastic.arithmetic, stochastic.deviation))
        if self._given_up and (why := self._why_exact(stochastic)):
            given_up, exact = self._pipeline.arithmetic.name, stochastic.arithmetic.name
            self.add(note("exact-samples", method=method, arithmetic=given_up, exact=exact, reason=why))
        if stochastic.why_unfused:
            self.add(note("unfused", reason=stochastic.why_unfused))

    def _chunk(self, points: Points, engine: Engine) -> int:
        most = self._most_on_host(engine) if devices.is_host(self._pipeline.device) else sys.maxsize
        default = default_chunk(points.point_shape, self._pipeline.device)
        return self._requested or min(default, self._largest or sys.maxsize, most)

    def _most_on_host(self, engine: Engine) -> int:
        return max(counter_rng.TILE, _OUTPUTS // (engine.samples * self._outputs))

    def _halved(self, why: str, size: int) -> None:
        self._largest = size
        self.add(note("chunk-halved", reason=why, points=size))


@contextmanager
def loading(pipeline: Pipeline, points: Points) -> Iterator[Feed]:
    """Loads rows of a set, the next ones meanwhile where the pipeline `makes_ahead`."""
    load = partial(pipeline.evaluated, points)
    with ExitStack() as closing:
        queue = devices.queue_of_this_thread(pipeline.device)
        yield Prefetch(load, len(points), queue, closing) if pipeline.makes_ahead(points) else load


def deterministic_outputs(model: nn.Module, pipeline: Pipeline, points: Points) -> Iterator[Tensor]:
    """The outputs (1, chunk, K) of the deterministic network, chunk by chunk."""
    size = pipeline.settings.chunk_size or default_chunk(points.point_shape, pipeline.device)
    with loading(pipeline, points) as feed:
        yield from chunks(Evaluation(model), len(points), feed, size=size)


def fitting_chunk(engines: Sequence[Engine], outputs: int, size: int, device: torch.device) -> int:
    """`size` points, halved until their passes take no more than half of the free memory, or halving saves nothing.

    Stacks of draws and tiles are bounded first: otherwise fewer points would only lead to larger stacks.
    """
    free = memory.available(device)
    for stochastic in filter(None, map(stochastic_of, engines)):
        stochastic.fit(free)

    def need(points: int) -> int:
        return max(bytes_taken(engine, points, outputs, device) for engine in engines)

    while free is not None and need(size) > free / 2 and need(size // 2) < 0.9 * need(size):
        size //= 2
    return size


def precision_note(method: str, arithmetic: Arithmetic, deviation: Deviation) -> Finding:
    """The note on how far results in another arithmetic differ from those in float32."""
    return note(
        "reduced-precision",
        method=method,
        precision=arithmetic.name,
        points=deviation.points,
        samples=deviation.draws,
        measure=deviation.measure,
        shift=float(deviation.uncertainty),
        shift_error=float(deviation.uncertainty_error),
        mean=float(deviation.mean),
        largest=float(deviation.largest),
    )


def bytes_taken(engine: Engine, size: int, outputs: int, device: torch.device) -> int:
    """The approximate bytes of passes of `size` points and their scoring, without the network."""
    if size < 1:
        return sys.maxsize
    stochastic = stochastic_of(engine)
    work = None if stochastic is None else stochastic.work(size)
    scored = bytes_of_scoring(engine.samples, size, outputs, device)
    return 3 * 8 * engine.samples * size * outputs + scored + (0 if work is None else work.bytes)


class Prefetch:
    """Loads the next chunk of points in a thread, within its `queue`, while the device works on the current chunk."""

    def __init__(
        self, load: Feed, count: int, queue: Callable[[], AbstractContextManager[object]], closing: ExitStack
    ) -> None:
        self._load, self._count, self._queue = load, count, queue
        self._thread = closing.enter_context(ThreadPoolExecutor(max_workers=1))
        self._next: tuple[slice, Future[Tensor]] | None = None

    def __call__(self, rows: slice) -> Tensor:
        expected, future = self._next or (None, None)
        points = future.result() if future is not None and expected == rows else self._load(rows)
        next_rows = slice(rows.stop, min(self._count, rows.stop + rows.stop - rows.start))
        self._next = None
        if next_rows.start < next_rows.stop:
            self._next = next_rows, self._thread.submit(self._loaded, next_rows)
        return points

    def _loaded(self, rows: slice) -> Tensor:
        with self._queue():
            return self._load(rows)


def stochastic_of(engine: Engine) -> Stochastic | None:
    """The engine that draws, also where a bank hands out its draws, and under an augmentation."""
    while isinstance(engine, Augmented | BankEngine):
        engine = engine.engine
    return engine if isinstance(engine, Stochastic) else None
