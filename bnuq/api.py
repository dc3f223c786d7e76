"""bnuq from Python: the commands on a network and data in memory, and the result that they return."""

from __future__ import annotations

import copy
import io
import json
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bnuq.config import (
    SWEEP_SAMPLES,
    CertificateSection,
    CheckSection,
    GateSection,
    InspectSection,
    MonitorSection,
    Options,
    SamplingSection,
    ScoreSection,
    ScoringSection,
    SweepSection,
    only_network,
    resolve_live,
    resolve_sweep,
    section_from,
)
from bnuq.config.schema import settings_of
from bnuq.config.shorthand import read_families
from bnuq.errors import RequestError, ResultError
from bnuq.evaluation.completeness import reported_at_once
from bnuq.files.writing import alone, within, write_bytes
from bnuq.progress import Progress, silent
from bnuq.report.kinds import Kind, kind_named
from bnuq.store.codec import kind_of_result

if TYPE_CHECKING:
    from torch import nn

    from bnuq.records.pixel_maps import SavedMaps


_OF_REPORTS = (".html", ".md", ".json", ".csv", ".txt")


class Result:
    """The result of a command, with its file: the record's fields (`result.methods`, `result.findings`, …), and forms
    to look at it. A notebook shows the decisions and the table of `bnuq report --html`, `print` the terminal report.

    Without `out`, its file is temporary and is deleted with the object; `save` keeps it.
    """

    def __init__(self, record: Any, kind: Kind, *, folder: Path | None = None) -> None:
        self.record, self._kind, self._folder = record, kind, folder
        if folder is not None:
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "record":  # not there yet, as in copying
            raise AttributeError(name)
        return getattr(self.record, name)

    def __repr__(self) -> str:
        return f"<bnuq.Result of {self._kind.of}>"

    def __str__(self) -> str:
        return self.text()

    def text(self, *, full: bool = False) -> str:
        """The terminal report; with `full`, all scores and curves."""
        from bnuq.report.render import print_record

        stream = io.StringIO()
        print_record(self._kind.report, self._shown(), stream, full=full)
        return stream.getvalue()

    def summary(self) -> dict[str, Any]:
        """What `--json` prints; infinities and NaN are the texts "inf", "-inf" and "nan"."""
        return json.loads(json.dumps(self._kind.summary(self._shown()), allow_nan=False))

    def to_pandas(self) -> Any:
        """Every estimate as a row: its coordinates (method, set, score, metric, …), unit, value, standard errors `se`
        and `mc_se`, and interval; of a check, every comparison. Needs pandas."""
        pandas = _library("pandas")
        if hasattr(self.record, "comparisons"):
            return pandas.DataFrame(self.summary()["comparisons"])
        from bnuq.store.table import rows_of

        names = ("value", "se", "mc_se", "low", "high")
        rows = [
            {**row.coordinates, "unit": row.unit, **{name: getattr(row.estimate, name) for name in names}}
            for row in rows_of(self.record)
        ]
        return pandas.DataFrame(rows)

    def to_xarray(self) -> Any:
        """The result file as an `xarray.DataTree`, read into memory. Needs xarray and h5netcdf."""
        xarray = _library("xarray", "h5netcdf")
        with xarray.open_datatree(self._file(), engine="h5netcdf") as tree:
            return tree.load()

    def save(self, path: str | Path) -> Path:
        """Copy the result file to `path`, completely or not at all; RequestError for the name of a report."""
        from bnuq.store.codec import check_replaceable

        target = Path(path)
        if target.suffix.lower() in _OF_REPORTS:
            raise RequestError(
                f"{path} is named like a report, but save() writes the result file; expected a name such as "
                f"{target.with_suffix('.h5')}. `bnuq report` makes reports from it."
            )
        check_replaceable(target)
        write_bytes(target, self._file().read_bytes())
        return target

    @property
    def figures(self) -> tuple[str, ...]:
        """The names of the report's figures, for `figure`."""
        return tuple(" ".join(picture.kind) for picture in self._kind.report(self._shown()).pictures)

    def figure(self, name: str) -> Figure:
        """A figure of the report; RequestError for a name that is not in `figures`."""
        pictures = {" ".join(picture.kind): picture for picture in self._kind.report(self._shown()).pictures}
        if name not in pictures:
            raise RequestError(f"there is no figure {name!r}; this result has {', '.join(pictures) or 'none'}.")
        return Figure(pictures[name].draw)

    def _repr_html_(self) -> str:
        from bnuq.report.render import excerpt

        return excerpt(self._kind.report(self._shown(), columns=100))

    def _shown(self) -> Any:
        """The record, without the path of a temporary file."""
        return self.record if self._folder is None else replace(self.record, path=None)

    def _file(self) -> Path:
        if (path := getattr(self.record, "path", None)) is None:
            raise ResultError(f"a result of {self._kind.of} has no file.")
        return path


class Evaluation(Result):
    """The result of an evaluation of one network, with its points."""

    @property
    def decisions(self) -> list[dict[str, Any]]:
        """What to do by this result, at most three decisions: a code ("use", "defer", "foreign" or "undecided"), its
        values, and the sentence that the report begins with."""
        return self.summary()["decisions"]

    def points(self, set: str = "test", method: str | None = None) -> Any:  # noqa: A002 - as on the command line
        """A DataFrame of the points of a set under a method, the first sampled one by default: their numbers in the
        source (`index`), their names there, what is known and predicted of them, and their scores. RequestError for a
        set or a method that the result lacks. Needs pandas."""
        from bnuq.records.points import points_table

        return _library("pandas").DataFrame(dict(points_table(self.record, set=set, method=method)))

    def maps(self, set: str = "test", method: str | None = None) -> SavedMaps:  # noqa: A002 - as on the command line
        """The maps of the pixels of a segmentation that was evaluated with `save_maps=True`: of each image of a set, in
        order or by its name, its predicted class and its scores, (H, W) each, by a method, the first sampled one by
        default. Each is read from the file lazily. RequestError if there are none."""
        from bnuq.records.pixel_maps import maps_of

        return maps_of(self.record, set=set, method=method)


class Figure:
    """A figure, which a notebook shows; `save` writes it as SVG or PNG."""

    def __init__(self, draw: Any) -> None:
        self._draw = draw

    def save(self, path: str | Path) -> Path:
        """Draw it into a file, SVG or PNG by its name."""
        if Path(path).suffix not in (".svg", ".png"):
            raise RequestError(f"{path}: figures are .svg or .png files.")
        self._draw(Path(path))
        return Path(path)

    def _repr_svg_(self) -> str:
        with tempfile.TemporaryDirectory() as folder:
            return self.save(Path(folder) / "figure.svg").read_text(encoding="utf-8")


def evaluate(
    model: nn.Module | str | Path | Sequence[nn.Module | str | Path],
    *,
    train: Any = None,
    test: Any = None,
    ood: Any = None,
    validation: Any = None,
    out: str | Path | None = None,
    progress: bool = False,
    **settings: Any,
) -> Evaluation:
    """Evaluate the uncertainty of `model`: `bnuq evaluate` on a network in memory, which is left as it was, or on a
    checkpoint or a run file. A list of them is an ensemble, whose first network is evaluated by all other methods, too.

    `train` (the reference), `test` and `validation` are each a DataLoader, a Dataset, arrays or tensors (x, y), or a
    reference as on the command line; `ood` holds such sets by name, or a single one. A tuple of arrays is (inputs,
    targets); batches of inputs alone are a list or an iterator. Data in memory are taken as the network takes them,
    normalised and augmented, unless `normalize` or `augment` are given; uint8 is scaled to 0–1.
    Several inputs are a dictionary or a tuple in the place of x, and nothing of them is scaled. A
    DataLoader is read once: each point then has one random augmentation. `settings` are the keys of a run file:
    methods, samples, batch_size, layers, seed, task, precision, …

    A network is evaluated on its device and in its precision, unless `device` or `precision` name others; it is copied
    for that. Raises BnuqError if the request cannot be carried out.
    """
    from bnuq.workflows.evaluate import evaluate as run_evaluation

    sets = {"train": train, "test": test, "ood": ood, "validation": validation}
    with _placed(out) as (target, folder), _at_rest(model, settings) as (network, placed):
        with reported_at_once():
            run = resolve_live(network, sets, placed, folder=Path.cwd())
        run = replace(run, out=target)
        return Evaluation(run_evaluation(run, progress=_progress(progress)), kind_named("evaluate"), folder=folder)


def score(
    predictions: Any,
    labels: Any = None,
    *,
    ood: Mapping[str, Any] | None = None,
    validation: Any = None,
    groups: Any = None,
    ids: Any = None,
    out: str | Path | None = None,
    **settings: Any,
) -> Evaluation:
    """Score predictions that any software made: `bnuq score` on arrays or files, without torch.

    `predictions` are an array of logits or probabilities (n, K), or of samples (T, n, K), a DataFrame or a file; or a
    dict of such by the names of their methods, where a dict of arrays (`mean` and `sigma`, or `quantiles` and `levels`)
    is a distribution. `ood` holds predictions of other points by the names of their sets, and `validation` those of
    held-out points with their `label`, as a file, a DataFrame, a dict or (array, labels); of several methods each is a
    list. `labels`,
    `groups` and `ids` are arrays, or as on the command line. `settings` are the options of `bnuq score`: classes,
    calibrate, risk, seed, … Raises BnuqError if the request cannot be carried out.
    """
    from bnuq.studies.score.compute import score as run_scoring
    from bnuq.studies.score.request import ScoreRequest, in_memory, is_of_one_method, method_name

    if not isinstance(predictions, Mapping) or is_of_one_method(predictions):
        is_file = isinstance(predictions, str | Path)
        predictions = {method_name(str(predictions))[0] if is_file else "predictions": predictions}
    sources = {method_name(f"{name}=")[0]: in_memory(of, name) for name, of in predictions.items()}
    beside = {key: values for key, values in (("group", groups), ("id", ids)) if values is not None}
    if labels is not None and not isinstance(labels, str | Path | Mapping):
        labels = {"label": labels} | {key: of for key, of in beside.items() if not isinstance(of, str)}
        beside = {key: of for key, of in beside.items() if isinstance(of, str)}
    if not all(isinstance(of, str) for of in beside.values()):
        raise RequestError("groups and ids are arrays beside an array of labels; name columns of a file instead.")

    def taken(section: Any, *names: str, **known: Any) -> Any:
        keys = [key for key in names or settings_of(section) if key in settings]
        return section_from(section, known | {key: settings.pop(key) for key in keys})

    sections = {
        "section": taken(ScoreSection, **{f"{key}s": of for key, of in beside.items()}),
        "sampling": taken(SamplingSection, "seed", "mutual_information", "calibrate"),
        "scoring": taken(ScoringSection),
        "certificate": taken(CertificateSection),
    }
    if settings:
        raise RequestError(f"{next(iter(settings))} is not an option of bnuq score.")
    with _placed(out) as (target, folder):
        request = ScoreRequest(
            sources,
            target,
            None if labels is None else in_memory(labels, "labels"),
            {name: _each(of, name) for name, of in (ood or {}).items()},
            () if validation is None else _each(validation, "validation"),
            **sections,
        )
        return Evaluation(run_scoring(request), kind_named("score"), folder=folder)


def _each(values: Any, name: str) -> list[Any]:
    """The predictions of a set, of several methods as a list; (predictions, labels) of one are a pair."""
    from bnuq.studies.score.request import in_memory

    return [
        in_memory({"": of[0], "label": of[1]} if isinstance(of, tuple) and len(of) == 2 else of, name)
        for of in (values if isinstance(values, list) else [values])
    ]


def shift(
    model: nn.Module | str | Path | Sequence[nn.Module | str | Path],
    *,
    families: Sequence[str] = (),
    severities: Sequence[float] = (1, 2, 3, 4, 5),
    window: int = 100,
    loss: float | None = None,
    **settings: Any,
) -> Evaluation:
    """Evaluate `model` on its test set under corruptions of rising severity: `bnuq shift`. `families` are names of
    `bnuq shift`, or `file.py:function`; by default all that fit the inputs. An alarm is raised by the mean score of
    `window` points; a `loss` is one of accuracy (by default 0.05), or relatively of RMSE (0.1). Other arguments are
    those of `evaluate`; the result's `shift` has the curves, the alarms and their lead."""
    changes = read_families(families, [f"{number:g}" for number in severities])
    return evaluate(model, perturb=changes, shift_window=window, shift_loss=loss, **settings)


def sweep_batch_size(
    model: nn.Module | str | Path,
    *,
    train: Any = None,
    test: Any = None,
    ood: Any = None,
    validation: Any = None,
    out: str | Path | None = None,
    progress: bool = False,
    **settings: Any,
) -> Result:
    """Sweep MCBN's mini-batch size: `bnuq sweep-batch-size` for one network. Arguments are those of `evaluate`;
    `settings` may also hold keys of [sweep]: batch_sizes, draw_sets, criterion, …"""
    from torch import nn

    from bnuq.studies.sweep.compute import sweep

    sets = {"train": train, "test": test, "ood": ood, "validation": validation}
    of_sweep = {key: settings.pop(key) for key in settings_of(SweepSection) if key in settings}
    if isinstance(model, nn.Module):
        section = section_from(SweepSection, of_sweep)
    else:
        section = resolve_sweep([str(model)], Options(), of_sweep, folder=Path.cwd())[1]
    with _placed(out) as (target, folder), _at_rest(model, settings) as (network, placed):
        with reported_at_once(("test", "train")):
            run = only_network(resolve_live(network, sets, placed, folder=Path.cwd(), samples=SWEEP_SAMPLES))
        record = sweep([replace(run, out=target)], section, progress=_progress(progress))
        return Result(record, kind_named("sweep"), folder=folder)


def inspect(
    model: nn.Module | str | Path,
    *,
    train: Any = None,
    test: Any = None,
    out: str | Path | None = None,
    progress: bool = False,
    **settings: Any,
) -> Result:
    """What in `model` can be stochastic, and how healthy its BatchNorm is: `bnuq inspect`. Arguments are those of
    `evaluate`; `settings` may also hold the options of `bnuq inspect`: points, draws, suggest_pipeline, input_shape, …
    """
    from bnuq.studies.inspect.compute import Settings
    from bnuq.studies.inspect.compute import inspect as run_inspection

    keys = [key for key in settings_of(InspectSection) if key in settings]
    section = section_from(InspectSection, {key: settings.pop(key) for key in keys})
    with _placed(out) as (target, folder), _at_rest(model, settings) as (network, placed):
        with reported_at_once(()):
            run = only_network(resolve_live(network, {"train": train, "test": test}, placed, folder=Path.cwd()))
        record = run_inspection(
            replace(run, out=target),
            Settings.of(section, folder=Path.cwd(), needs_reference=train is not None),
            progress=_progress(progress),
        )
        return Result(record, kind_named("inspection"), folder=folder)


class Monitor:
    """Says of one batch of unlabelled points after another whether they are still drawn like the reference: `bnuq
    monitor` on a network in memory, which is left as it was, or on a checkpoint or a run file.

    `reference` holds points that the network was not trained on, as for `evaluate`, or `baseline` names a file that
    `save` wrote, with which no data is needed. `stream` continues the batches of such a file. `level` is the
    probability of an alarm, ever, while nothing has changed. `settings` are the keys of a run file: normalize, task,
    train_batch_size, seed, …
    """

    def __init__(
        self,
        model: nn.Module | str | Path,
        *,
        reference: Any = None,
        baseline: str | Path | None = None,
        stream: str | Path | None = None,
        level: float = MonitorSection().level,
        resamples: int = MonitorSection().resamples,
        **settings: Any,
    ) -> None:
        from bnuq.studies.monitor.compute import Session
        from bnuq.studies.monitor.record import read_baseline, read_stream

        section_from(MonitorSection, {"level": level, "resamples": resamples})
        with _at_rest(model, settings) as (network, placed):
            with reported_at_once(()):
                run = only_network(resolve_live(network, {"test": reference}, placed, folder=Path.cwd()))
            if baseline is None and run.test is None and run.train is None:
                raise RequestError("no reference is given; expected examples that the network was not trained on.")
            known = None if baseline is None else read_baseline(Path(baseline))
            begun = None if stream is None else read_stream(Path(stream))
            self._session = Session(run, known, begun, level=level, resamples=resamples)

    def take(self, batch: Any, *, name: str = "batch") -> Result:
        """Compare a batch, points as for `evaluate` or a reference as on the command line, with the reference, and add
        it to the stream. The result has `p_value`, `layers`, `e_value` and `alarm`."""
        return Result(self._session.taken(batch, name=name, folder=Path.cwd()), kind_named("monitor"))

    @property
    def e_value(self) -> float:
        """The evidence of all batches so far; 1 before the first."""
        return self._session.e_value

    @property
    def alarm(self) -> int | None:
        """The number of the batch with which the evidence was enough; None if it never was."""
        return self._session.stream.alarm

    @within(lambda _, baseline=None, *, stream=None: alone(*(each and Path(each) for each in (baseline, stream))))
    def save(self, baseline: str | Path | None = None, *, stream: str | Path | None = None) -> None:
        """Write what stands for the reference, and the batches so far."""
        self._session.save(*(None if path is None else Path.cwd() / path for path in (baseline, stream)))


def check(current: Result | str | Path, baseline: Result | str | Path | None = None, **settings: Any) -> Result:
    """Whether the uncertainty of `current` is worse than that of `baseline`: `bnuq check`. The verdict's `passed` says
    so; `settings` are the keys of [check], such as tolerance, and `gate`, the patterns of [gate]. ResultError if the
    two cannot be compared."""
    from bnuq.gate import GateSettings, summary
    from bnuq.gate import check as compared
    from bnuq.studies.check.view import report

    patterns = section_from(GateSection, {"estimates": settings.pop("gate", ())}).estimates
    section = section_from(CheckSection, settings)
    criteria = GateSettings.of(
        estimates=patterns,
        tolerances=[f"{key}={amount}" for key, amount in section.tolerance.items()],
        floors=section.require,
        allow=section.allow,
        inconclusive=section.inconclusive,
        power=section.power,
    )
    verdict = compared(_record(current), None if baseline is None else _record(baseline), criteria)
    return Result(verdict, Kind("bnuq check", _record, summary, report))


def open(path: str | Path) -> Result:  # noqa: A001 - bnuq.open, like PIL.Image.open
    """The result in a file that a command wrote. ResultError for any other file."""
    name = kind_of_result(Path(path))
    kind = kind_named(name)
    return (Evaluation if name in ("evaluate", "score") else Result)(kind.read(Path(path)), kind)


def _record(result: Result | str | Path) -> Any:
    record = result.record if isinstance(result, Result) else open(result).record
    return open(record.path).record if isinstance(result, Result) and record.path is not None else record


@contextmanager
def _placed(out: str | Path | None) -> Iterator[tuple[Path, Path | None]]:
    """The path that the result is written to, and the temporary folder that it is in, if it is."""
    if out is not None:
        yield Path.cwd() / out, None
        return
    folder = Path(tempfile.mkdtemp(prefix="bnuq-"))
    try:
        yield folder / "result.h5", folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


@contextmanager
def _at_rest(model: Any, settings: Mapping[str, Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The network in evaluation mode, restored afterwards, and the settings with its device and precision; a copy of it
    where a part of it has others."""
    import torch

    from bnuq.sampling.interception import left_as_it_was

    if isinstance(model, list | tuple):
        with ExitStack() as stack:
            networks, chosen = zip(
                *(stack.enter_context(_at_rest(network, settings)) for network in model), strict=True
            )
            yield networks, chosen[0]
        return
    if not isinstance(model, torch.nn.Module):
        yield model, dict(settings)
        return
    chosen, tensors = dict(settings), [t for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()]
    if tensors:
        precision = "float64" if tensors[0].dtype == torch.float64 else "auto"
        chosen = {"device": str(tensors[0].device), "precision": precision} | chosen
    dtype = torch.float64 if chosen.get("precision") == "float64" else torch.float32
    would_change = any(str(tensor.device) != chosen["device"] or tensor.dtype != dtype for tensor in tensors)
    network = copy.deepcopy(model) if would_change else model
    with left_as_it_was(model):
        yield network.eval(), chosen


def _progress(shown: bool) -> Progress:
    if not shown:
        return silent
    from bnuq.cli.progress import Bars

    return Bars()


def _library(*names: str) -> Any:
    """The first of these packages; RequestError with the command that installs them if one is missing."""
    from importlib import import_module

    try:
        modules = [import_module(name) for name in names]
    except ImportError as error:
        raise RequestError(f"this needs {' and '.join(names)}: pip install {' '.join(names)}") from error
    return modules[0]


__all__ = [
    "Evaluation",
    "Figure",
    "Monitor",
    "Result",
    "check",
    "evaluate",
    "inspect",
    "open",
    "score",
    "shift",
    "sweep_batch_size",
]
