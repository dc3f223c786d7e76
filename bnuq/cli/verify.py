"""`bnuq verify`: computes some units of a result again, and says whether they are bitwise the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from bnuq.cli.derived import SectionOptions, with_options
from bnuq.cli.output import Printing
from bnuq.cli.streams import print_line
from bnuq.config import Options
from bnuq.config.schema import GivenOptions
from bnuq.errors import RequestError

DIFFERENT = 1  # exit code


@with_options(
    options=(SectionOptions(GivenOptions, "data_root trust_pickle trust_code"),),
    printing=SectionOptions(Printing, "json quiet debug"),
)
def command(
    result: Annotated[Path, typer.Argument(help="A result of bnuq evaluate.", metavar="RESULT")],
    run_file: Annotated[
        str | None,
        typer.Argument(help="The run file that it was made from: the code that this names runs.", metavar="RUN.toml"),
    ] = None,
    units: Annotated[
        int,
        typer.Option(
            help="Number of randomly chosen units to compute again, with the units that they depend on.",
            metavar="INTEGER",
            rich_help_panel="Common options",
        ),
    ] = 5,
    *,
    options: Options,
    printing: Printing,
) -> None:
    """Compute some units of a result again from its request, and compare them bitwise with the digests in the file.
    Exit code 1 if one differs. Needs the same checkpoint, data and software."""
    if units < 1:
        raise RequestError(f"--units is {units}; expected a whole number of at least 1.")
    from bnuq.cli.progress import progress_of
    from bnuq.files.folders import expanded
    from bnuq.store.codec import kind_of_result

    path, progress = expanded(result), progress_of(printing)
    kind_of_result(path, ("evaluate",))  # before torch is imported
    from bnuq.workflows.verify import verify

    given = {"folder": Path.cwd(), "progress": progress, "run_file": run_file}
    outcome = verify(path, Options(options), units=units, **given)
    record = outcome.result
    if printing.json:
        parts = {"chosen": outcome.chosen, "computed": outcome.computed, "differing": outcome.differing}
        print_line(json.dumps({"result": str(path), "root": record.provenance["units"], **parts}, indent=2))
    elif not printing.quiet:
        print_line(
            f"{len(outcome.chosen)} of {len(record.units)} units chosen, {len(outcome.computed)} computed again."
        )
        for name in outcome.differing:
            print_line(f"Different: {name}")
        if not outcome.differing:
            print_line(f"Bitwise those of {path}. Root of all units: {record.provenance['units']}")
        # A difference is a fault only on the same kind of processor.
        elif made := record.provenance.get("platform"):
            print_line(f"It was made on {made}, {record.provenance.get('device')}; other processors round differently.")
    if outcome.differing:
        raise typer.Exit(DIFFERENT)
