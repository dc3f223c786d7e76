"""What `bnuq monitor` refuses before anything is read or computed, without torch."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bnuq.config import MonitorSection, Named, Run
from bnuq.errors import RequestError
from bnuq.evaluation.completeness import Need
from bnuq.evaluation.request_checks import check_folder, check_out, check_request, check_set
from bnuq.files.content import exists
from bnuq.files.folders import expanded


def check_monitor(run: Run, section: MonitorSection, *, folder: Path, reading: bool = True) -> None:
    """As `check_evaluation`, of a batch that is compared with a reference."""
    baseline = None if section.baseline is None else folder / expanded(section.baseline)
    has_baseline = baseline is not None and exists(baseline)
    checks = [partial(_check_files_of_monitor, run, section, folder)]
    if section.batch is not None:
        checks.append(partial(check_set, run, Named(section.batch, folder), "test"))
    lacks_reference = not has_baseline and run.test is None and run.train is None
    needs: tuple[Need, ...] = ("reference",) if lacks_reference else ()
    sets: tuple[Need, ...] = () if has_baseline else ("train",) if run.test is None else ("test",)
    check_request(run, *checks, needs=needs, sets=sets, reading=reading)


def _check_files_of_monitor(run: Run, section: MonitorSection, folder: Path) -> None:
    """Raise BnuqError where no batch is named and there is nothing else to do, and for what cannot be written."""
    named = (("--baseline", section.baseline), ("--stream", section.stream))
    paths = {option: folder / expanded(name) for option, name in named if name is not None}
    if section.batch is None and ("--baseline" not in paths or exists(paths["--baseline"])):
        there = "there is nothing to do" if section.baseline is None else f"{section.baseline} is there already"
        raise RequestError(f"no batch is named, and {there}. Name the examples of today: bnuq monitor MODEL BATCH.")
    if run.out.exists() or section.batch is not None:
        check_out(run)
    for option, path in paths.items():
        check_folder(path, option)
        if path.resolve() == run.out.resolve():
            raise RequestError(f"{option} {path} is also the result file; name another.")
