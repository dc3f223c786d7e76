"""Writes the lines of a run file: values as TOML, with paths relative to its folder, and comments; and the command that
a warning suggests: another bnuq command on the model and reference of a run."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from bnuq.config.merging import SECTION_OF
from bnuq.config.request import Run
from bnuq.config.schema import Request, Section, option_name, settings_of
from bnuq.files.content import exists
from bnuq.files.fetching import named_or_path
from bnuq.frozen import frozen


@frozen
class Line:
    """A key with its value, a comment beside it, and one `above` it. One that is not `active` is itself a comment."""

    key: str
    value: Any
    comment: str = ""
    active: bool = True
    above: str = ""

    def text(self, folder: Path | None) -> str:
        value = as_value(self.value, folder if self.key in _PATHS else None)
        head = f"{'' if self.active else '# '}{self.key} = {value}"
        above = f"# {_on_one_line(self.above)}\n" if self.above else ""
        return above + (f"{head}      # {_on_one_line(self.comment)}" if self.comment else head)


def _on_one_line(comment: str) -> str:
    return "".join(character if character.isprintable() else " " for character in " ".join(comment.split()))


# Keys whose texts may be paths.
_PATHS = ("checkpoint", "arch", "train", "test", "ood", "validation", "predictions", "palette", "classes")


def table(name: str, lines: Iterable[Line], folder: Path | None) -> str:
    """A table of a run file in `folder`; None if that is not known."""
    return "\n".join([f"[{name}]", *(line.text(folder) for line in lines)])


def as_value(value: Any, folder: Path | None = None) -> str:
    """A value as TOML on one line, with everything that cannot be seen written out; a path is written relative to
    `folder` where it lies near it."""
    if isinstance(value, Section):
        return as_value(msgspec.to_builtins(value), folder)
    if isinstance(value, Mapping):
        items = [f"{as_key(key)} = {as_value(inner, folder)}" for key, inner in value.items() if inner is not None]
        return f"{{ {', '.join(items)} }}" if items else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(as_value(inner, folder) for inner in value)}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str) and folder is not None:
        value = _relative(value, folder)
    text = json.dumps(value, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)


def as_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else as_value(key)


def _relative(text: str, folder: Path) -> str:
    """`text`, with its absolute path (after NAME=, before :function or :selection) relative to `folder` if that leads
    there by at most two folders up."""
    name, path_text = re.fullmatch(r"((?:[\w-]+=)?)(.*)", text, flags=re.DOTALL).groups()  # pyrefly: ignore
    ends = [len(path_text), *(at for at in reversed(range(len(path_text))) if path_text[at] == ":")]
    starts = (path_text[:end] for end in ends)
    path = next((start for start in starts if Path(start).is_absolute() and exists(Path(start))), path_text)
    if not Path(path).is_absolute():
        return text
    relative = Path(os.path.relpath(path, folder))
    is_unrelated = Path(os.path.commonpath([path, folder])) == Path(folder.anchor)
    near = not is_unrelated and relative.parts[:3] != ("..",) * 3 and exists(folder / relative)
    return f"{name}{relative.as_posix() if near else path}{path_text[len(path) :]}"


_NAMED = (  # the settings of the model and of its reference that such a command takes
    "arch arch_args entry task outputs train_batch_size train train_size target group resize crop interpolation "
    "channel_order normalize augment data_root trust_pickle"
)


def other_command(run: Run, name: str, *words: str) -> str | None:
    """`bnuq NAME` with the model and the reference of `run`, quoted for a shell; None if either is in memory.

    The model and the options are those that were typed; of a run that was not typed as such (one of several, or that of
    a result file) they are the checkpoint and all its settings.
    """
    if run.network is not None or (run.train is not None and run.train.data is not None):
        return None
    given = run.given
    if given is None:
        record = run.record()
        given = {key: value for part in ("model", "data", "options") for key, value in record.get(part, {}).items()}
    has_run_file = run.given is not None and run.run_file is not None
    sidecar = run.run_file_is_implicit and run.run_file == run.checkpoint.with_suffix(".toml")
    model = run.run_file if has_run_file and not sidecar else run.checkpoint
    assert model is not None
    keys = [key for key in _NAMED.split() if given.get(key) not in (None, False, (), {})]
    options = [word for key in keys for word in option_words(key, given[key])]
    return shlex.join(["bnuq", name, _shown(model), *options, *words])


def option_words(key: str, value: Any) -> Iterator[str]:
    """A setting as its option and value on the command line."""
    option = f"--{option_name(key, settings_of(settings_of(Request)[SECTION_OF[key]].type)[key].type)}"
    if key == "arch" and not isinstance(value, str):
        value = value[0]  # of an ensemble's networks, the first
    if key == "arch_args":
        texts = [f"{k}={as_value(v)}" for k, v in value.items()] if isinstance(value, Mapping) else value
        for text in texts:
            yield from (option, str(text))
    elif value is True:
        yield option
    else:
        yield from (option, _text(key, value))


def _text(key: str, value: Any) -> str:
    """A value as typed on the command line."""
    if isinstance(value, Section):
        value = msgspec.to_builtins(value)
    if key == "normalize" and isinstance(value, Mapping):
        return "/".join(",".join(map(repr, value[part])) for part in ("mean", "std"))
    if isinstance(value, Mapping):
        if isinstance(jitter := value.get("jitter"), Mapping):
            value = {**value, "jitter": [jitter.get(k, 0) for k in ("brightness", "contrast", "saturation", "hue")]}
        return ",".join(k if part is True else f"{k}={as_value(part)}".replace('"', "") for k, part in value.items())
    return "x".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _shown(path: Path) -> str:
    folder = Path.cwd()
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else named_or_path(path)
