"""Whether a batch of unlabelled points is still drawn like the reference, and a stream of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bnuq.config import DEFAULT_BATCH_SIZE, MonitorSection, Named, PointSettings, Run, data_without_effect, typed
from bnuq.data import Points, in_colour, parse_reference
from bnuq.errors import DataError, RequestError, ResultError
from bnuq.evaluation.datasets import check_grouped, fetch_missing, limited, read_named, read_reference, takes_rgb_alone
from bnuq.evaluation.pipeline import Pipeline, device_and_notes, input_normalize
from bnuq.evaluation.provenance import Stopwatch, provenance
from bnuq.evaluation.request_checks import notes_on_request
from bnuq.evaluation.setup import as_taken, network_of
from bnuq.evaluation.task import Task, task_named, task_of
from bnuq.files.content import exists
from bnuq.files.folders import expanded
from bnuq.files.writing import alone, within
from bnuq.findings import Finding, listed, note, warning
from bnuq.frozen import frozen
from bnuq.models.loading import LoadedModel
from bnuq.progress import READING, Progress, silent, stage
from bnuq.records.identity import of_inputs
from bnuq.sampling.digests import fingerprint, is_of
from bnuq.sampling.outputs import as_logits
from bnuq.sampling.plain_loop import Evaluation
from bnuq.studies.monitor import baseline as baselines
from bnuq.studies.monitor.features import LAST_LAYER, Watch, features_of
from bnuq.studies.monitor.record import Baseline, Monitored, Stream, WatchedBlock, read_baseline, read_stream, write
from bnuq.studies.monitor.request import check_monitor
from bnuq.studies.monitor.testing import Wealth, absorbed, compared

GROWTH = 4  # times the points of a baseline that a stream keeps


def _written_alone(run: Run, section: MonitorSection, *, folder: Path, **_: Any) -> AbstractContextManager[None]:
    """The block in which no other process adds to the stream, makes the baseline or writes the result."""
    named = (None if name is None else folder / expanded(name) for name in (section.stream, section.baseline))
    return alone(run.out, *named)


@within(_written_alone)
def monitor(run: Run, section: MonitorSection, *, folder: Path, progress: Progress = silent) -> Monitored | Baseline:
    """Compare the batch of `section` with the baseline and with the stream so far, write what was found to `run.out`,
    and return it; without a batch, make the baseline alone.

    The baseline is read from its file, or made of the reference of `run` and written there. Paths are relative to
    `folder`. Raises BnuqError with one message where the request cannot be carried out; no file is then touched but
    that of a new baseline.
    """
    watch = Stopwatch()
    check_monitor(run, section, folder=folder)
    batch = None if section.batch is None else Named(section.batch, folder)
    fetch_missing(run, progress, () if batch is None else (batch,))
    path = None if section.baseline is None else folder / expanded(section.baseline)
    known = read_baseline(path) if path is not None and exists(path) else None
    stream_path = None if section.stream is None else folder / expanded(section.stream)
    stream = read_stream(stream_path) if stream_path is not None and exists(stream_path) else None
    points = None if batch is None else read_named(run, batch, "test")
    if known is not None and points is not None:
        check_grouped(run, [points])
    with stage(progress, READING if known else "Reading the network, and making the baseline"):
        session = Session(run, known, stream, level=section.level, resamples=section.resamples)
    if known is None:
        session.save(path)
    watch.lap("baseline")
    if points is None:
        return session.baseline
    replaces = run.out.exists()
    with stage(progress, "Comparing the batch with the baseline"):
        found = session.take(points)
    watch.lap("batch")
    idle = [*data_without_effect(run, [points])]
    if run.test is not None and run.normalize != "train" and typed(run, ["train"]):
        idle.append(note("without-effect", key="--train", needs="--normalize train, or no test set"))
    findings = (*notes_on_request([run], replaces=run.out if replaces else None), *idle, *found.findings)
    found = replace(found, findings=findings, seconds=watch.seconds(), path=run.out)
    write(found, run.out)
    session.save(stream=stream_path)
    return found


class Session:
    """A network with its baseline, made of the reference of `run` where there is none yet, and the stream of batches
    that it has taken; ResultError where these are of other networks, or of each other's."""

    def __init__(
        self, run: Run, baseline: Baseline | None = None, stream: Stream | None = None, *, level: float, resamples: int
    ) -> None:
        if 1 / (resamples + 1) > level:
            raise RequestError(
                f"--level is {level:g}, and p-values of {resamples} resamples are at least 1/{resamples + 1}; expected "
                f"--resamples {math.ceil(1 / level - 1e-9) - 1} or more."
            )
        self.resamples = resamples
        self._ignored: tuple[Finding, ...] = ()
        if baseline is not None:
            run, self._ignored = _as_its_baseline(run, baseline)
        self.run, self.loaded = run, network_of(run)
        self._opened: _Opened | None = None
        baseline = self._made(_reference(run)) if baseline is None else baseline
        self.baseline = baseline
        self.stream = stream or Stream(
            baseline=baseline.digest,
            level=level,
            bag=baseline.bag,
            bets=np.array(Wealth().bets),
            names=(),
            p_values=np.zeros(0),
            e_values=np.zeros(0),
            findings=(),
            provenance=baseline.provenance,
        )
        if self.stream.baseline != baseline.digest:
            raise ResultError(f"{self.stream.path} is the stream of another baseline; name a new file for --stream.")
        if self.stream.level != level:
            raise ResultError(
                f"{self.stream.path} is a stream at the level {self.stream.level:g}, and --level is {level:g}; "
                "expected the same for all batches of a stream."
            )

    @property
    def e_value(self) -> float:
        """The evidence of all batches so far; 1 before the first."""
        return float(self.stream.e_values[-1]) if len(self.stream.e_values) else 1.0

    def save(self, baseline: Path | None = None, stream: Path | None = None) -> None:
        """Write what stands for the reference, and the batches so far."""
        if baseline is not None:
            self.baseline = replace(self.baseline, path=baseline)
            write(self.baseline, baseline)
        if stream is not None:
            written = read_stream(stream).p_values if exists(stream) else np.zeros(0)
            if not np.array_equal(written, self.stream.p_values[: len(written)]):
                raise ResultError(f"{stream} has other batches by now; open that stream again, or name a new file.")
            write(self.stream, stream)

    def taken(self, batch: Any, *, name: str, folder: Path) -> Monitored:
        """`take` points in memory of this name, or those that a reference names."""
        is_named = isinstance(batch, str | Path)
        named = Named(str(batch), folder) if is_named else Named(name, folder, data=batch)
        return self.take(read_named(self.run, named, "test"))

    def take(self, points: Points) -> Monitored:
        """Compare a batch with the reference, and, unless the stream has had its alarm, add it to the stream."""
        watch, baseline, stream = Stopwatch(), self.baseline, self.stream
        if takes_rgb_alone(self.loaded.module, points):
            points = in_colour(points)
        self._check_form(points)
        if len(points) < 2:
            raise DataError(
                f"the batch ({points.reference}) has {len(points)} example; batch statistics need at least 2. Wait for "
                "more examples, and give them together."
            )
        opened = self._opened = self._opened or _Opened.of(self.run, self.loaded, points, baseline)
        features = features_of(opened.watch, opened.pipeline, points)
        columns = {block.name: block.columns for block in opened.watch.blocks}
        of_blocks = [features[:, columns[block.name]] for block in baseline.blocks]
        pairs = zip(of_blocks, baseline.blocks, strict=True)
        rows = np.concatenate([baselines.codes(values, block) for values, block in pairs], axis=1)
        number = len(stream.names) + 1

        def test(bag: np.ndarray) -> Any:
            asked = {"resamples": self.resamples, "seed": baseline.seed, "step": number}
            return compared(rows, bag, baseline.starts, baseline.layers, **asked)

        found = test(baseline.bag)
        if stream.alarm is None:
            p_value = found.p_value if number == 1 else test(stream.bag).p_value
            wealth = Wealth(len(stream.names), tuple(stream.bets.tolist())).after(p_value)
            bag = absorbed(stream.bag, rows, most=GROWTH * len(baseline.bag), seed=baseline.seed, step=number)
            self.stream = stream = replace(
                stream,
                bag=bag,
                bets=np.array(wealth.bets),
                names=(*stream.names, points.name),
                p_values=np.append(stream.p_values, p_value),
                e_values=np.append(stream.e_values, wealth.e_value),
            )
            findings: tuple[Finding, ...] = ()
        else:
            findings = (note("stream-stopped", batch=stream.alarm, name=stream.names[stream.alarm - 1]),)
        unit = self.run.train_batch_size or self.loaded.checkpoint.train_batch_size or DEFAULT_BATCH_SIZE
        if unit == DEFAULT_BATCH_SIZE and not (self.run.train_batch_size or self.loaded.checkpoint.train_batch_size):
            findings += (note("shift-unit-assumed", batch_size=unit),)
        kept = int(baseline.reference["kept"])
        return Monitored(
            run=self.run.record(),
            model=dict(baseline.model) | {"path": str(self.run.checkpoint)},
            reference=dict(baseline.reference) | {"points": len(baseline.bag)},
            batch=points.reference,
            points=len(points),
            p_value=found.p_value,
            resamples=self.resamples,
            together=found.together,
            blocks=tuple(
                baselines.block_test(block, values, float(p), unit=unit, kept=kept)
                for block, values, p in zip(baseline.blocks, of_blocks, found.blocks, strict=True)
            ),
            scores=baselines.mean_scores(baseline.blocks, of_blocks, kept),
            unit=unit,
            level=stream.level,
            names=stream.names,
            p_values=stream.p_values,
            e_values=stream.e_values,
            alarm=stream.alarm,
            findings=(*self.loaded.findings, *opened.findings, *baseline.findings, *self._ignored, *findings),
            seconds=watch.seconds(),
            provenance=provenance(self.run, device=opened.pipeline.device, train=None),
        )

    def _made(self, reference: Points) -> Baseline:
        """The baseline of these points."""
        run = self.run
        if takes_rgb_alone(self.loaded.module, reference):
            reference = in_colour(reference)
        opened = self._opened = _Opened.of(run, self.loaded, reference)
        watch, pipeline, task = opened.watch, opened.pipeline, opened.task
        rows, others = baselines.split(len(reference), run.seed)
        fitted, kept = (features_of(watch, pipeline, reference.subset(part)) for part in (rows, others))
        blocks, bag = baselines.watched_blocks(fitted, kept, watch.blocks, run.seed)
        if not blocks:
            raise DataError(
                f"nothing varies between the examples of the reference ({reference.reference}) in any layer or score; "
                "expected different examples, and a network that distinguishes them."
            )
        normalize = pipeline.normalize
        return Baseline(
            model={
                "path": str(run.checkpoint),
                "fingerprint": fingerprint(self.loaded.module),
                "task": task.name,
                "outputs": task.outputs,
                "batchnorm_layers": watch.batchnorms,
            },
            inputs={
                "shape": list(reference.point_shape),
                "layout": str(reference.layout or ""),
                "normalize": None if normalize is None else msgspec.to_builtins(normalize),
                "settings": of_inputs(run.record()),
            },
            reference={"reference": reference.reference, "n": len(reference), "fitted": len(rows), "kept": len(others)},
            blocks=blocks,
            bag=bag,
            seed=run.seed,
            findings=tuple(_on_baseline(run, reference, watch, blocks, len(rows))),
            provenance=provenance(run, device=pipeline.device, train=None),
        )

    def _check_form(self, points: Points) -> None:
        """Raise ResultError for a baseline of another network, DataError for points of another form."""
        baseline = self.baseline
        if not is_of(baseline.model["fingerprint"], self.loaded.module):
            where = "the baseline" if baseline.path is None else str(baseline.path)
            raise ResultError(
                f"{where} was made with other weights than those of {self.run.checkpoint.name}. Make one of this "
                "network: --baseline FILE with a new name, and the reference with --test REF."
            )
        form = points.point_shape, str(points.layout or "")
        expected = tuple(baseline.inputs["shape"]), str(baseline.inputs["layout"])
        if form != expected:
            raise DataError(
                f"the batch ({points.reference}) has examples of shape {form[1] or form[0]}, the reference "
                f"({baseline.reference['reference']}) of {expected[1] or expected[0]}; expected the same."
            )


@frozen
class _Opened:
    """A network on its device, what is made of points for it, and what is watched in it."""

    pipeline: Pipeline
    task: Task
    watch: Watch
    findings: tuple[Finding, ...]

    @staticmethod
    def of(run: Run, loaded: LoadedModel, points: Points, baseline: Baseline | None = None) -> _Opened:
        """As the baseline says, or, without one, as the run and these points do."""
        device, passed_over = device_and_notes(run.device)
        if baseline is not None:
            normalize = baseline.normalize
        else:
            train = read_reference(run) if run.normalize == "train" and run.train is not None else None
            normalize = input_normalize(run, train, points)
        pipeline = Pipeline(PointSettings.of(run), device, normalize)
        model, pipeline, taken = as_taken(loaded.module.to(device, pipeline.dtype), pipeline, [points])
        model = as_logits(model, run.outputs)
        example = pipeline.evaluated(points, slice(0, 3))
        if baseline is None:
            outputs = Evaluation(model).passes(example)[0]
            task, seed = task_of(run, outputs.shape[1], points, dense=outputs.ndim > 2), run.seed
        else:
            several = baseline.model["outputs"] == "labels"
            task, seed = task_named(str(baseline.model["task"]), several_labels=several), baseline.seed
        return _Opened(pipeline, task, Watch(model, task, example, seed=seed), (*passed_over, *taken))


def _on_baseline(
    run: Run, reference: Points, watch: Watch, blocks: tuple[WatchedBlock, ...], fitted: int
) -> Iterator[Finding]:
    """What to know of a baseline."""
    if run.test is None:
        yield warning("reference-trained-on", reference=reference.reference)
    if not watch.batchnorms:
        yield note("monitor-without-batchnorm", instead=LAST_LAYER)
    widest = max(block.columns.stop - block.columns.start for block in watch.blocks)
    if fitted < widest:
        directions = max(block.directions.shape[1] for block in blocks)
        yield note("few-reference-points", points=fitted, statistics=widest, directions=directions)
    if constant := [block.name for block in blocks if not (block.scale > 0).all()]:
        yield note("constant-statistics", layers=constant)


def _as_its_baseline(run: Run, baseline: Baseline) -> tuple[Run, tuple[Finding, ...]]:
    """The run with the settings of the baseline that it leaves out, and notes. ResultError for one that it has
    otherwise; only points that were neither resized nor cropped leave it to a batch how it gets their shape."""
    known, asked, usual = baseline.inputs.get("settings", {}), of_inputs(run.record()), of_inputs({})
    shape = ("data.resize", "data.crop", "data.interpolation")
    open_to = shape if all(known.get(address) is None for address in shape[:2]) else ()
    others = {name: value for name, value in known.items() if asked.get(name, value) != value and name not in open_to}
    for name, value in others.items():
        if asked[name] != usual[name]:
            raise ResultError(
                f"{baseline.path or 'the baseline'} was made with {name} = {json.dumps(value)}, and here it is "
                f"{json.dumps(asked[name])}; expected the same. Leave it out, or make another baseline: --baseline "
                "FILE with a new name."
            )
    taken: dict[str, Any] = {
        name.partition(".")[2]: tuple(v) if isinstance(v, list) else v for name, v in others.items()
    }
    told = [note("monitor-settings-taken", settings=[f"{name} = {json.dumps(v)}" for name, v in others.items()])]
    return replace(run, **taken), (*(told if taken else ()), *_ignored(run, baseline))


def _ignored(run: Run, baseline: Baseline) -> Iterator[Finding]:
    """What a request says otherwise than a baseline that is there already."""
    known, made_of, asked = baseline.normalize, str(baseline.reference["reference"]), run.test or run.train
    keys = ["normalize"] if run.normalize not in (None, "train", known) else []
    # Of data in memory nothing says whether they are those of the baseline
    if asked is not None and asked.data is None and Path(parse_reference(asked.text)[1]).name != Path(made_of).name:
        keys.append("train" if run.test is None else "test")
    if keys:
        by = "nothing" if known is None else f"mean {listed(known.mean)} and std {listed(known.std)}"
        yield note("monitor-settings-ignored", keys=keys, reference=made_of, normalize=by)


def _reference(run: Run) -> Points:
    """The points that later ones are to be drawn like: the test set, or else the training set."""
    named = run.test or run.train
    assert isinstance(named, Named)
    points = read_named(run, named, "test" if run.test is not None else "train")
    check_grouped(run, [points])
    if len(points) < baselines.LEAST:
        raise DataError(
            f"the reference ({points.reference}) has {len(points)} examples; expected at least {baselines.LEAST}, and "
            "better some thousand."
        )
    return limited(points, run.limit or baselines.FITTED + baselines.KEPT, run.seed)
