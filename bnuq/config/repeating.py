"""The command that a warning suggests: another bnuq command on the model and reference of a run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from bnuq.config.merging import SECTION_OF
from bnuq.config.request import Run
from bnuq.config.runfile_writing import as_value
from bnuq.config.schema import Request, Section, option_name, settings_of
from bnuq.files.fetching import named_or_path

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
    options = [
        word
        for key in _NAMED.split()
        if given.get(key) not in (None, False, (), {})
        for word in option_words(key, given[key])
    ]
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
