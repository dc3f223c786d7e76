"""Resolves a run whose network and data may be in memory."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_origin

from bnuq.config.merging import SAMPLES, SECTION_OF, merged
from bnuq.config.request import Member, Named, Options, Run
from bnuq.config.resolving import resolve_ensemble
from bnuq.config.schema import Request, RunFile, parts_of, settings_of
from bnuq.errors import MistakenError, Mistakes, RequestError
from bnuq.trust import BY_USER


def resolve_live(
    model: Any, sets: Mapping[str, Any], settings: Mapping[str, Any], *, folder: Path, samples: int = SAMPLES
) -> Run:
    """The run of `model`, a network in memory or the path of a checkpoint or a run file, with `settings` by their keys
    in a run file; a list is an ensemble, of networks or of paths.

    `sets` holds "train", "test" and "validation", each a reference or data in memory, and "ood", which holds those by
    name; None if the run file decides. Raises RequestError as `resolve` does, and for a setting that is not known.
    """
    mistakes = Mistakes()
    mistakes.of(_check_known, settings)
    settings = {key: value for key, value in settings.items() if key in SECTION_OF}
    sources = {key: source for key, source in sets.items() if source is not None and key != "ood"}
    references = {key: source for key, source in sources.items() if _is_reference(source)}
    options = Options({key: _listed(key, value) for key, value in {**settings, **references}.items()})
    networks = model if isinstance(model, list | tuple) else [model]
    if not networks or len({isinstance(network, str | Path) for network in networks}) > 1:
        raise RequestError("no models, or networks mixed with paths; expected networks in memory, or paths.")
    if isinstance(networks[0], str | Path):
        paths = tuple(map(str, networks))
        run = mistakes.of(resolve_ensemble, paths, options, folder=folder, samples=samples)
    else:
        # A network in memory has no file: its class names it in messages and gives the result file its name.
        names = [Path(type(network).__name__) for network in networks]
        places = {"checkpoints": names, "base": folder, "folder": folder, "named_by": BY_USER, "run_file": None}
        run = mistakes.of(merged, RunFile(), options, **places, samples=samples, in_memory=True)
        first, *others = [Member(name, network=network) for name, network in zip(names, networks, strict=True)]
        run = replace(run, checkpoint=first.checkpoint, network=first.network, members=tuple(others))
    data = {key: source for key, source in sources.items() if key not in references}
    live: dict[str, Any] = {key: Named(key, folder, data=source) for key, source in data.items()}
    if (ood := sets.get("ood")) is not None:
        live["ood"] = tuple(_named_ood(ood, folder))
    if run is not None:
        run = replace(run, given=None, **live)
    mistakes.report(run)
    assert run is not None
    return run


def _listed(key: str, value: Any) -> Any:
    """A text as the list of it alone, for a setting that takes a list and no text."""
    hint = settings_of(settings_of(Request)[SECTION_OF[key]].type)[key].type
    kinds = {get_origin(part) or part for part in parts_of(hint)}
    return (value,) if isinstance(value, str) and tuple in kinds and str not in kinds else value


def _check_known(settings: Mapping[str, Any]) -> None:
    """Raise MistakenError for settings that no run file has."""
    unknown = []
    for key in settings:
        if key not in SECTION_OF:
            close = difflib.get_close_matches(key, SECTION_OF, n=1)
            hint = f"Did you mean {close[0]}?" if close else f"Known are: {', '.join(sorted(SECTION_OF))}."
            unknown.append(f"{key} is not a setting. {hint}")
    if unknown:
        raise MistakenError(*unknown)


def _is_reference(source: Any) -> bool:
    """Whether this names a set, or a part of one, rather than being its data."""
    return isinstance(source, str | Path) or (isinstance(source, Mapping) and "split_of" in source)


def _named_ood(ood: Any, folder: Path) -> Iterator[Named]:
    """OOD sets by name, references without a name, or a single set, which is then called "ood"."""
    if isinstance(ood, Mapping) and "x" not in ood:
        for name, source in ood.items():
            if isinstance(source, str | Path):
                yield Named(f"{name}={os.fspath(source)}", folder)
            else:
                yield Named(str(name), folder, data=source)
    elif isinstance(ood, list | tuple) and all(isinstance(source, str | Path) for source in ood):
        yield from (Named(os.fspath(source), folder) for source in ood)
    elif isinstance(ood, str | Path):
        yield Named(os.fspath(ood), folder)
    else:
        yield Named("ood", folder, data=ood)
