"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bnuq.cli.derived import option
from bnuq.cli.output import Printing
from bnuq.config.schema import GivenOptions

_MODEL = (
    "A checkpoint (model.pt), a network of the Hugging Face hub (hf:owner/name[@revision]), or a run file "
    "(model.toml); default: bnuq.toml in this folder."
)
Model = Annotated[str | None, typer.Argument(help=_MODEL, metavar="MODEL")]
Models = Annotated[
    list[str] | None,
    typer.Argument(help=f"{_MODEL} Further checkpoints are the other networks of an ensemble.", metavar="MODEL"),
]
Figures = Annotated[
    Path | None, typer.Option(help="Also draw the figures into this folder.", metavar="DIR", rich_help_panel="Output")
]
Work = Annotated[
    Path | None,
    typer.Option(
        help="Folder of finished parts, from which an interrupted run continues; removed when the run completes.",
        show_default="OUT.work",
        metavar="DIR",
        rich_help_panel="Output",
    ),
]
WorkPlace = Annotated[
    str | None,
    typer.Option(
        help="Folder, or URL such as s3://bucket/name, of finished parts, from which an interrupted run continues; "
        "several processes may share it. Removed when the run completes.",
        show_default="OUT.work",
        metavar="DIR|URL",
        rich_help_panel="Output",
    ),
]
DataRoot = Annotated[Path | None, option(GivenOptions, "data_root")]
Quiet = Annotated[bool, option(Printing, "quiet")]
