"""Says at once everything that a request lacks: the options to add, and the lines of a run file that completes it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bnuq.config import DEFAULT_BATCH_SIZE, Named, Run, Split
from bnuq.config.runfile_writing import Line, table
from bnuq.config.schema import DataSection, ModelSection, settings_of
from bnuq.errors import BnuqError, MistakenError, RequestError, UntrustedCodeError, failures
from bnuq.frozen import frozen
from bnuq.methods import method_named

if TYPE_CHECKING:
    from bnuq.models.checkpoint import Checkpoint

Need = Literal["test", "train", "ood", "reference"]  # the last is a test set whose labels are not read


def check_complete(run: Run, *, needs: Collection[Need], reading: bool = True) -> None:
    """Raise RequestError that lists all that `run` lacks, where it lacks the architecture of its weights or one of the
    sets in `needs`; a reference that it would use is listed with them, unless it needs no set. The checkpoint is read
    for this only where something is missing, and ModelError says why it cannot be. Without `reading`, which imports
    torch, only what can be seen without it is refused."""
    if run.network is not None:
        _check_complete_in_memory(run, needs)
        return
    checkpoint = untrusted = None
    if run.arch is None:
        if not reading:
            return
        try:
            checkpoint = _read(run)
        except UntrustedCodeError as error:  # a pickled network, or what loading it will say
            untrusted = None if run.trust_pickle else error
    without_arch = checkpoint is not None and checkpoint.state is not None and checkpoint.hub is None
    if without_arch and checkpoint is not None and checkpoint.state is not None:
        from bnuq.models.recognition import recognised

        network = recognised(checkpoint.state)
        without_arch = network is None or network.one is None
    if not without_arch and all(_has(run, need) for need in needs):
        return
    # The message depends on it.
    if checkpoint is None and untrusted is None and (run.train is None or not _is_toml(run.run_file)):
        if not reading:
            return
        with suppress(BnuqError):  # what loading it will say
            checkpoint = _read(run)
    lacks = [*_lacks(run, checkpoint if without_arch else None, needs, batchnorms(checkpoint))]
    if untrusted is not None:
        sentence = f"no leave to run code: the file {str(untrusted).partition(': ')[2].rstrip('.')}"
        lacks = [_Lack("options", "trust_pickle", None, "--trust-pickle", sentence), *lacks]
    raise RequestError(_message(run, lacks, checkpoint))


@contextmanager
def reported_at_once(needs: Collection[Need] = ("test",)) -> Iterator[None]:
    """Inside the block, a request with settings that are wrong is refused with all that the rest of it lacks, see
    `check_complete`."""
    try:
        yield
    except MistakenError as error:
        rest = error.rest if isinstance(error.rest, tuple) else (error.rest,)
        checks = (partial(check_complete, run, needs=needs) for run in rest if isinstance(run, Run))
        lacks = (lack for lack in failures(*checks) if isinstance(lack, RequestError))  # not what loading it will say
        raise RequestError("\n".join(map(str, (error, *lacks)))) from None


def _has(run: Run, need: Need) -> bool:
    return bool(getattr(run, "test" if need == "reference" else need))


def _check_complete_in_memory(run: Run, needs: Collection[Need]) -> None:
    if absent := [need for need in needs if not _has(run, need)]:
        layers = sum(name.rpartition(".")[2] == "running_mean" for name in run.network.state_dict())
        if run.train is None and "train" not in absent and [*_uses_of_reference(run, layers)]:
            absent = ["train", *absent]
        raise RequestError(
            f"missing: {', '.join(f'{need}=…' for need in absent)} (in memory, or a file or a known set)."
        )


def _read(run: Run) -> Checkpoint:
    from bnuq.models.checkpoint import read_checkpoint  # here, since it imports torch

    return read_checkpoint(run.checkpoint, entry=run.entry, only_finite=False)


def _is_toml(run_file: Path | None) -> bool:
    return run_file is not None and run_file.suffix.lower() == ".toml"


@frozen
class _Lack:
    """A part that is missing: its section and key in a run file, a value to start from, its option, and what it is."""

    section: Literal["model", "data", "options"]
    key: str
    value: Any
    option: str
    sentence: str


def _lacks(run: Run, weights: Checkpoint | None, needs: Collection[Need], batchnorms: int) -> Iterator[_Lack]:
    absent = {need for need in needs if not _has(run, need)}
    if weights is not None:
        from bnuq.models.suggestions import described, suggested_architectures

        sentence = f"no architecture: the file {described(weights)}"
        archs = suggested_architectures(weights)
        yield _Lack("model", "arch", archs[0], f"--arch {' or '.join(archs)}", sentence)
    drawing = replace(run, methods=()) if "reference" in needs else run  # which `monitor` does not
    uses = [*_uses_of_reference(drawing, batchnorms)] if needs else []
    if "train" in absent or (run.train is None and uses):
        sentence = f"no training set{f': {uses[0]}' if uses else ''}"
        yield _Lack("data", "train", beside(run.test, "test", "train"), "--train REF", sentence)
    for need, what in (("test", "labelled test set to evaluate on"), ("reference", "test set to compare with")):
        if need in absent:
            yield _Lack("data", "test", beside(run.train, "train", "test"), "--test REF", f"no {what}")
    if "ood" in absent:
        yield _Lack("data", "ood", ["other.npz"], "--ood REF", "no OOD set, which --criterion auroc needs")


def beside(known: Named | Any, kind: str, wanted: str) -> str:
    """A reference to start from: the name of the other set with its part exchanged, such as cifar10:test beside
    cifar10:train; a file where there is none. The part is a whole word, and of a path in its last name."""
    text = known.text if isinstance(known, Named) else ""
    letter, to_end = r"[^\W\d_]", r"[^/\\:]*[/\\]?(?::|$)"
    exchanged, count = re.subn(rf"(?<!{letter}){kind}(?!{letter})(?={to_end})", wanted, text)
    return exchanged if count else f"{wanted}.npz"


def _uses_of_reference(run: Run, batchnorms: int) -> Iterator[str]:
    """What a reference would be used for."""
    methods = [method_named(name) for name in run.methods or ()]
    draws = any(method.draws_mini_batches or method.is_fitted_to_mini_batches for method in methods)
    if batchnorms and (run.methods is None or draws):
        yield f"mini-batches for its {batchnorms} BatchNorm layer{'s' * (batchnorms > 1)} are drawn from it"
    if any("weights" in method.differs_by for method in methods):
        yield "the posterior of the last layer is fitted to it"
    if "train" in (run.normalize, run.normalize_targets):
        yield 'inputs or targets are normalised by its mean and std ("train")'
    if isinstance(run.validation, Split) and run.validation.split_of == "train":
        yield "the validation examples are a part of it"


def batchnorms(checkpoint: Checkpoint | None) -> int:
    """The number of layers with running statistics in a checkpoint."""
    state = None if checkpoint is None else checkpoint.state
    if state is None and checkpoint is not None and checkpoint.module is not None:
        state = checkpoint.module.state_dict()
    return sum(name.rpartition(".")[2] == "running_mean" for name in state or ())


def recorded_lines(run: Run, checkpoint: Checkpoint | None) -> Iterator[Line]:
    """The lines of [model] that a checkpoint determines: its entry with the weights, where it has several, and the
    batch size of the training, if it is recorded."""
    entries = () if checkpoint is None or checkpoint.key is None else checkpoint.entries
    if run.entry is not None or len(entries) > 1:
        entry = run.entry or (None if checkpoint is None else checkpoint.key)
        others = ", ".join(other for other in entries if other != entry)
        yield Line("entry", entry, f"or {others}" if others else "")
    recorded = None if checkpoint is None else checkpoint.train_batch_size
    if (size := run.train_batch_size or recorded) is not None:
        yield Line("train_batch_size", size, "" if run.train_batch_size else "as the checkpoint records")
    else:
        comment = f"batch size of the training; without it, {DEFAULT_BATCH_SIZE} is assumed"
        yield Line("train_batch_size", DEFAULT_BATCH_SIZE, comment, active=False)


def _message(run: Run, lacks: Sequence[_Lack], checkpoint: Checkpoint | None) -> str:
    """What is missing, the options to add to the command, and the lines of the run file."""
    code = ""
    if checkpoint is not None and any(lack.key == "arch" for lack in lacks):
        from bnuq.models.suggestions import factory_file

        code = "" if (file := factory_file(checkpoint)) is None else f"Save this as net.py:\n\n{file}\n\n"
    if len(lacks) == 1:
        head = f"{run.checkpoint}: there is {lacks[0].sentence}."
    else:
        listed = "\n".join(f"  - {lack.sentence}" for lack in lacks)
        head = f"{run.checkpoint}: {len(lacks)} things are missing:\n{listed}"
    options = " ".join(lack.option for lack in lacks)
    message = f"{head}\n{code}Add to the command: {options}"
    if "REF" in options:
        message += (
            "\n(REF: a file such as data.npz, a folder of class folders, file.py:function, or a name of `bnuq data`)"
        )
    if run.run_file is None:
        name = run.checkpoint.with_suffix(".toml").name
        return f"{message}\nor write {name} beside the checkpoint:\n\n{_lines(run, lacks, checkpoint)}"
    if _is_toml(run.run_file):
        return f"{message}\nor to {run.run_file.name}:\n\n{_lines(None, lacks, None)}"
    return message


def _lines(run: Run | None, lacks: Sequence[_Lack], checkpoint: Checkpoint | None) -> str:
    """The lines of a run file: what is missing and, where `run` is given, what was requested of it and what the
    checkpoint records."""
    requested: dict[str, Any] = {} if run is None else run.record()
    if run is not None and run.normalize_name is not None:
        requested["data"]["normalize"] = run.normalize_name
    text = []
    for name, section in (("model", ModelSection), ("data", DataSection)):
        missing = {lack.key: lack.value for lack in lacks if lack.section == name}
        values = {**requested.get(name, {}), **missing}
        if not values:
            continue
        lines = [
            Line(key, values[key], _COMMENTS.get(key, "") if key in missing else "")
            for key in settings_of(section)
            if key in values and not (run is not None and key in ("entry", "train_batch_size"))
        ]
        if run is not None and name == "model":
            lines += recorded_lines(run, checkpoint)
        elif run is not None:
            lines += [line for line in _OPTIONAL if line.key not in values]
        text.append(table(name, lines, None if run is None else run.checkpoint.parent))
    return "\n\n".join(text)


_COMMENTS = {"arch": 'or "package.module:factory", "timm:NAME", "torchvision:NAME"'}
_OPTIONAL = (  # lines of [data] that most run files have, and that cannot be known here
    Line("normalize", "imagenet", "as in training, where inputs were normalised", active=False),
    Line("augment", "pad=4,crop=32,flip", "as in training, where inputs were augmented", active=False),
)
