"""`bnuq merge`: makes the result of an evaluation whose units were computed in parts."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from bnuq.cli.derived import SectionOptions, with_options
from bnuq.cli.output import Printing, print_result
from bnuq.config import Options
from bnuq.config.schema import GivenOptions

_HELP = {"out": ("Result file.", "as given to the shards, if it is in this folder")}


@with_options(
    options=(SectionOptions(GivenOptions, "out data_root trust_pickle trust_code", _HELP),),
    printing=SectionOptions(Printing),
)
def command(
    work: Annotated[str, typer.Argument(help="The --work of the shards: a folder or a URL.", metavar="WORK")],
    run_file: Annotated[
        str | None,
        typer.Argument(help="The run file that it was made from: the code that this names runs.", metavar="RUN.toml"),
    ] = None,
    *,
    options: Options,
    printing: Printing,
) -> None:
    """Write the result of `bnuq evaluate --shard` once all shards are finished, just as one process would. Where units
    are missing, it names them and writes nothing."""
    from bnuq.workflows.requests import unmerged

    unmerged(work)  # before torch is imported
    from bnuq.cli.progress import progress_of
    from bnuq.records.summary import summary
    from bnuq.report.evaluation import report
    from bnuq.report.render import print_record
    from bnuq.workflows.shards import merge

    progress = progress_of(printing)
    result = merge(work, Options(options), folder=Path.cwd(), progress=progress, run_file=run_file)
    print_result(result, printing, summary=summary, show=partial(print_record, report, full=printing.full))
