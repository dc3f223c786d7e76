"""`bnuq reproduce uci`: the regression experiment of the MCBN paper, trained anew."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Annotated

import typer

from bnuq.cli.output import say, stdout
from bnuq.cli.reproduce.asking import sizes_of
from bnuq.errors import RequestError
from bnuq.files.content import is_file
from bnuq.files.folders import expanded
from bnuq.files.writing import check_writable, write_bytes


def command(
    protocol: Annotated[
        str,
        typer.Option(
            help="quick (reduced grids, unpromising settings given up early) or paper (the whole grid, T = 500 "
            "throughout: by estimate 15 hours of one core without Protein, 80 with it).",
            metavar="quick|paper",
        ),
    ] = "quick",
    sets: Annotated[
        list[str] | None,
        typer.Option(
            help="boston, concrete, energy, kin8nm, power, protein, wine, yacht, with commas; all; or smoke, a minute "
            "on two of them: Boston and Yacht.",
            show_default="boston,yacht,energy,concrete,wine",
        ),
    ] = None,
    paper_batches: Annotated[
        bool | None,
        typer.Option(
            "--paper-batches/--no-paper-batches",
            help="Try batch sizes above half a fold too. From a whole fold on, MC variance is next to "
            "zero in cross-validation.",
            show_default="with quick for energy alone, with paper for all",
        ),
    ] = None,
    batch_sizes: Annotated[
        str | None,
        typer.Option(
            help="Mini-batch sizes to choose among, with commas, for every set: 32 alone holds it there.",
            show_default="the protocol's",
            metavar="LIST",
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    workers: Annotated[
        int | None, typer.Option(help="Processes of one thread each, on a CPU.", show_default="a core each")
    ] = None,
    seed: Annotated[int, typer.Option(help="Same seed, same figures.")] = 0,
    data_root: Annotated[Path | None, typer.Option(help="Where the sets lie, before $BNUQ_DATA.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Result file.")] = Path("reproduce-uci.h5"),
    markdown: Annotated[Path | None, typer.Option(help="Write the report as Markdown too.", metavar="FILE")] = None,
    work: Annotated[
        Path | None,
        typer.Option(
            help="Folder of finished parts: an interrupted run goes on from them. Removed when the result is written.",
            show_default="OUT.work",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON, and nothing else.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,  # noqa: ARG001 - read by main
) -> None:
    """Train the networks of the UCI regression experiment of Teye, Azizpour and Smith 2018 anew, with BatchNorm and
    with dropout, and print their Table 1 beside the published one: which scores come out again, and what explains them.

    Needs the eight UCI sets as uci/NAME/data.csv, target last, below --data-root or $BNUQ_DATA.
    """
    if seed < 0:
        raise RequestError(f"--seed is {seed}; expected a whole number of at least 0.")
    if workers is not None and workers < 1:
        raise RequestError(f"--workers is {workers}; expected a whole number of at least 1.")
    if markdown is not None and not markdown.absolute().parent.is_dir():
        raise RequestError(f"--markdown {markdown}: its folder does not exist. Make the folder first.")
    if not out.absolute().parent.is_dir():
        raise RequestError(f"--out {out}: its folder does not exist. Make the folder first.")
    if markdown is not None and (markdown.resolve() == out.resolve() or not _may_be_replaced(markdown)):
        raise RequestError(f"--markdown {markdown} is another file than a report of this command; name another.")
    if markdown is not None:
        check_writable(markdown)
    replaces = is_file(out)

    from bnuq.cli.progress import bars
    from bnuq.progress import silent
    from bnuq.reproduce.uci.experiment import Request, reproduce
    from bnuq.reproduce.uci.protocol import chosen_sets

    chosen, names = chosen_sets([word for text in sets or [] for word in text.split(",")], protocol)
    request = Request(
        protocol=chosen,
        sets=names,
        out=out,
        paper_batches=paper_batches,
        batch_sizes=sizes_of(batch_sizes),
        device=device,
        seed=seed,
        data_root=data_root and expanded(data_root),
        work=work,
        workers=workers,
        notes=(f"an earlier result was replaced: {out}",) if replaces else (),
    )
    result = reproduce(request, progress=silent if quiet else bars)

    from bnuq.report.reproduction import markdown as as_markdown
    from bnuq.report.reproduction import print_reproduction
    from bnuq.results.reproduction import summary

    if markdown is not None:
        write_bytes(markdown, as_markdown(result).encode())
    if as_json:
        say(json.dumps(summary(result), allow_nan=False, indent=2))
    elif not quiet:
        print_reproduction(result, stdout())


def _may_be_replaced(markdown: Path) -> bool:
    """Whether there is nothing at this path, or a report in Markdown."""
    if not markdown.exists():
        return True
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return markdown.read_text(encoding="utf-8").startswith("# Teye, Azizpour and Smith 2018")
    return False
