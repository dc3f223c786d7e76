"""What `bnuq precise-bn` refuses before anything is read or computed, without torch."""

from __future__ import annotations

from functools import partial

from bnuq.config import PreciseBnSection, Run, section_from
from bnuq.errors import RequestError
from bnuq.evaluation.request_checks import check_folder, check_request
from bnuq.files.content import exists, is_checkpoint, kind_of
from bnuq.files.writing import check_writable

_NOT_FILES = {
    "folder": "it is a folder",
    "special": "it is a device, a pipe or a socket",
    "unreadable": "it cannot be opened",
}


def check_precise_bn(run: Run, points: int, batch_size: int | None, *, reading: bool = True) -> None:
    """As `check_evaluation`, of a copy with other statistics."""
    given = {"points": points, "batch_size": batch_size}
    others = (partial(section_from, PreciseBnSection, given), partial(_check_copy, run))
    sets = ("train",) if run.task == "segmentation" else ("train", "test")
    check_request(run, *others, needs=("train",), sets=sets, reading=reading)


def _check_copy(run: Run) -> None:
    """Raise RequestError where `run.out` is a file that this run reads, or exists and is not a checkpoint."""
    out, kind = run.out, kind_of(run.out)
    if kind in ("folder", "special", "unreadable"):
        raise RequestError(f"--out {out} cannot be written: {_NOT_FILES[kind]}. Name a file to write.")
    check_folder(out)
    for source in (run.checkpoint, run.run_file):
        if source is not None and exists(out) and out.samefile(source):
            raise RequestError(
                f"--out {out} is a file that this run reads ({source.name}); name another file to write."
            )
    if kind not in ("missing", "empty") and not is_checkpoint(out):
        raise RequestError(f"--out {out} exists and is not a checkpoint; name another file to write.")
    suffix = run.checkpoint.suffix
    if ".safetensors" in (out.suffix, suffix) and out.suffix != suffix:
        raise RequestError(
            f"--out {out}: the file is written in the format that was read; name it {out.with_suffix(suffix).name}."
        )
    check_writable(out)
