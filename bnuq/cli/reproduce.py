"""`bnuq reproduce`: run a published experiment end to end and print its table beside the published one."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from bnuq.errors import RequestError
from bnuq.files.content import is_file
from bnuq.files.folders import expanded

HELP = "Run a published experiment end to end and print its table beside the published one."


def uci(
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
        batch_sizes=_sizes(batch_sizes),
        device=device,
        seed=seed,
        data_root=data_root and expanded(data_root),
        work=work,
        workers=workers,
        notes=(f"an earlier result was replaced: {out}",) if replaces else (),
    )
    result = reproduce(request, progress=silent if quiet else bars)

    from bnuq.files.writing import write_bytes
    from bnuq.report.reproduction import markdown as as_markdown
    from bnuq.report.reproduction import print_reproduction
    from bnuq.results.reproduction import summary

    if markdown is not None:
        write_bytes(markdown, as_markdown(result).encode())
    if as_json:
        typer.echo(json.dumps(summary(result), allow_nan=False, indent=2))
    elif not quiet:
        print_reproduction(result, sys.stdout)


def _sizes(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) >= 2 for word in words):
        raise RequestError(f"--batch-sizes is {text}; expected whole numbers of at least 2, such as 32,128.")
    return tuple(sorted({int(word) for word in words}))


def _may_be_replaced(markdown: Path) -> bool:
    """Whether there is nothing at this path, or a report in Markdown."""
    if not markdown.exists():
        return True
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return markdown.read_text(encoding="utf-8").startswith("# Teye, Azizpour and Smith 2018")
    return False


def toy(
    samples: Annotated[int, typer.Option(help="Stochastic passes a point.")] = 500,
    batch_size: Annotated[
        int, typer.Option(help="Mini-batch size of training and MCBN; a second BatchNorm network has 4 times that.")
    ] = 32,
    seed: Annotated[int, typer.Option(help="Same seed, same figures.")] = 0,
    out: Annotated[Path, typer.Option("--out", "-o", help="Result file.")] = Path("reproduce-toy.h5"),
    figures: Annotated[
        Path | None, typer.Option(help="Folder for the picture, toy.svg and toy.png; made if need be.", metavar="DIR")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON, and nothing else.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,  # noqa: ARG001 - read by main
) -> None:
    """Draw a toy regression in the manner of Figure 1 of Teye, Azizpour and Smith 2018: what MCBN and MC dropout say
    among the data, in a gap between them, and outside. The data are bnuq's own, and drawn from the seed.

    Trains three small networks, a few seconds each.
    """
    from bnuq.results import toy as toy_file

    if not out.absolute().parent.is_dir():
        raise RequestError(f"--out {out}: its folder does not exist. Make the folder first.")
    toy_file.check_replaceable(out)
    if figures is not None:
        from bnuq.report import drawing

        drawing.check()
        try:
            figures.mkdir(exist_ok=True)
        except OSError as error:
            raise RequestError(f"--figures {figures}: cannot be made a folder: {error.strerror}.") from error

    from bnuq.cli.progress import bars
    from bnuq.progress import silent
    from bnuq.report.toy import print_toy, save_figure
    from bnuq.reproduce.toy import reproduce

    progress = silent if quiet else bars
    made = toy_file.write(reproduce(samples=samples, batch_size=batch_size, seed=seed, progress=progress), out)
    if figures is not None:
        save_figure(made, figures, kind="svg")
        save_figure(made, figures, kind="png")
    if as_json:
        typer.echo(json.dumps(toy_file.summary(made), allow_nan=False, indent=2))
    elif not quiet:
        print_toy(made, sys.stdout)


COMMANDS = {"uci": uci, "toy": toy}
