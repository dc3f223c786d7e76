"""Resolves a run file that requests several runs: for every split, every seed."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from bnuq.config.merging import is_given
from bnuq.config.request import Options, RunOfSeveral, Runs
from bnuq.config.resolving import named_files, resolve_again, resolved
from bnuq.config.runfile import as_toml, read_run_file
from bnuq.config.schema import RunFile
from bnuq.errors import Mistakes, RequestError
from bnuq.findings import note

MAX_RUNS = 100_000


def resolve_all(models: Sequence[str], options: Options, *, folder: Path) -> Runs | None:
    """The runs of a run file with [runs]: for every split, every seed. None if the run file requests a single run.

    Options apply to every run. Without `{seed}` in the file, the listed seeds are the sampling seeds. The aggregate
    goes to --out, or to the run file's stem with `.bnuq.h5` in `folder`. Raises RequestError as `resolve` does, and for
    lists and placeholders that do not match.
    """
    path, checkpoint, is_implicit = named_files(models[0] if models else None, folder)
    mistakes = Mistakes()
    content = RunFile() if path is None else mistakes.of(read_run_file, path)
    if path is None or content.runs is None:
        return None  # of a single run, `resolve` says what is wrong
    if models[1:]:
        raise RequestError(f"{path.name} requests several runs ([runs]); name the other checkpoints in it.")
    if checkpoint is not None:
        raise RequestError(
            f"{path.name} beside {checkpoint.name} requests several runs ([runs]), and one checkpoint was named. Name "
            f"{path.name} to evaluate them all."
        )
    alike = mistakes.of(resolved, content, options, path=path, checkpoint=None, is_implicit=is_implicit, folder=folder)
    mistakes.report(alike)
    numbers = {name: values for name in _PLACEHOLDERS if (values := getattr(content.runs, name)) is not None}
    used = _used_placeholders(content, options, numbers, path)
    _check_listed(numbers, used, path)
    samples_by_seed = "seed" in numbers and "seed" not in used
    if samples_by_seed and is_given(options, "seed"):
        raise RequestError(
            f"--seed {options['seed']} would give every run the same sampling seed, and {path.name} lists one for each "
            "under [runs]. Leave the option out."
        )
    out = folder / (options.get("out") or f"{path.stem}.bnuq.h5")
    if (count := math.prod(map(len, numbers.values()))) > MAX_RUNS:
        raise RequestError(f"{path}: [runs] requests {count:,} runs; expected at most {MAX_RUNS:,}.")
    runs = []
    for split, seed in itertools.product(numbers.get("split", (None,)), numbers.get("seed", (None,))):
        fill = partial(_filled, numbers={"split": split, "seed": seed})
        filled = _with_texts(msgspec.structs.replace(content, runs=None), lambda _, text, fill=fill: fill(text))
        if samples_by_seed:
            filled = msgspec.structs.replace(filled, sampling=msgspec.structs.replace(filled.sampling, seed=seed))
        run = resolved(filled, options, path=path, checkpoint=None, is_implicit=is_implicit, folder=folder)
        runs.append(_with_own_file(RunOfSeveral(replace(run, given=None), split, seed), out))
    return Runs(tuple(runs), out, (note("seeds-of-sampling"),) if samples_by_seed else ())


def resolve_all_again(
    recorded: Sequence[tuple[int | None, int | None, dict[str, Any]]], source: Path, options: Options, *, folder: Path
) -> Runs:
    """The runs (split, seed, record) of the aggregate `source`, with `options` applied, see `resolve_again`."""
    out = folder / (options.get("out") or source.name)
    runs = tuple(
        _with_own_file(RunOfSeveral(resolve_again(record, source, options, folder=folder), split, seed), out)
        for split, seed, record in recorded
    )
    before = {record.get("sampling", {}).get("seed") for _, _, record in recorded}
    if is_given(options, "seed") and len(before) > 1:
        raise RequestError(f"--seed {options['seed']} would give every run of {source} the same sampling seed.")
    return Runs(runs, out)


_PLACEHOLDERS = ("split", "seed")  # the placeholders of a run file's texts


def _with_own_file(run: RunOfSeveral, out: Path) -> RunOfSeveral:
    """`run` with a result file named after the aggregate's."""
    stem = out.name.removesuffix(".bnuq.h5") if out.name.endswith(".bnuq.h5") else out.stem
    return replace(run, run=replace(run.run, out=out.with_name(f"{stem}.{run.label}.bnuq.h5")))


def _with_texts(content: Any, change: Callable[[str, str], str], key: str = "") -> Any:
    """The content of a run file, every text of which is what `change` makes of its key and of it."""
    if isinstance(content, str):
        return change(key, content)
    if isinstance(content, msgspec.Struct):
        fields = ((name, f"{key}.{name}".lstrip(".")) for name in content.__struct_fields__)
        changed = {name: _with_texts(getattr(content, name), change, inner) for name, inner in fields}
        return msgspec.structs.replace(content, **changed)
    if isinstance(content, Mapping):
        return {name: _with_texts(value, change, key) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return type(content)(_with_texts(value, change, key) for value in content)
    return content


_FILES = ("model.checkpoint", "data.train", "data.test", "data.validation", "data.ood")


def _used_placeholders(content: RunFile, options: Options, numbers: Mapping[str, Any], path: Path) -> set[str]:
    """The placeholders in the texts that no option replaces; RequestError for one that [runs] does not list."""
    used = set()

    def noted(key: str, text: str) -> str:
        for name in () if is_given(options, [*key.split("."), ""][1]) else re.findall(r"\{(\w+)\}", text):
            if name in numbers:
                used.add(name)
            elif name in _PLACEHOLDERS or key in _FILES:  # elsewhere, braces may be anything
                add = f"add {name} = [0, 1, 2] to it" if name in _PLACEHOLDERS else "expected {split} or {seed}"
                raise RequestError(f"{path}: {key} is {as_toml(text)}, and [runs] lists no {name}; {add}.")
        return text

    _with_texts(content, noted)
    return used


def _check_listed(numbers: Mapping[str, tuple[int, ...]], used: set[str], path: Path) -> None:
    if not numbers:
        raise RequestError(f"{path}: [runs] lists nothing; expected split = [0, 1, 2], or seed = [0, 1, 2], or both.")
    for name, values in numbers.items():
        if not values or len(set(values)) < len(values):
            problem = "lists a number twice" if values else "is empty"
            raise RequestError(f"{path}: runs.{name} {problem}; expected whole numbers, each once, such as [0, 1, 2].")
    if "split" in numbers and "split" not in used:
        raise RequestError(
            f"{path}: runs.split is {list(numbers['split'])}, but the file does not contain {{split}}, so all splits "
            'would be the same. Write it in place of the number, as in train = "uci-boston:train:{split}".'
        )


def _filled(text: str, numbers: Mapping[str, int | None]) -> str:
    """A text of one run: its placeholders are replaced by numbers."""
    for name, number in numbers.items():
        text = text if number is None else text.replace(f"{{{name}}}", str(number))
    return text
