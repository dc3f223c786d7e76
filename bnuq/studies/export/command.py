"""`bnuq export`: writes a network and its draws as one program, which runs with torch alone."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer

from bnuq import catalogue
from bnuq.cli.derived import SectionOptions, with_options
from bnuq.cli.options import Models
from bnuq.cli.output import Printing, print_result
from bnuq.cli.paths import split_values
from bnuq.cli.progress import progress_of
from bnuq.cli.streams import print_line
from bnuq.config import Options, resolve_ensemble
from bnuq.config.resolving import resolve_again
from bnuq.config.schema import DataSection, GivenOptions, ModelSection, SamplingSection
from bnuq.errors import RequestError
from bnuq.evaluation.completeness import reported_at_once
from bnuq.files.folders import expanded
from bnuq.methods import method_named
from bnuq.metrics import POST_HOC_SCORES

_HELP = {"test": "A few examples of this set are passed to compare the program with the network."}


def _option(*names: str, text: str, metavar: str, default: str = "none") -> Any:
    return typer.Option(*names, help=text, metavar=metavar, show_default=default, rich_help_panel="Common options")


@with_options(
    options=(
        SectionOptions(DataSection, help=_HELP, without="ood perturb validation train_size"),
        SectionOptions(ModelSection),
        SectionOptions(SamplingSection, "samples batch_size seed"),
        SectionOptions(GivenOptions, "threads data_root download trust_pickle trust_code"),
    ),
    printing=SectionOptions(Printing, "json quiet debug"),
)
def command(
    out: Annotated[str, _option("--out", "-o", text="File of the program: NAME.pt2.", metavar="FILE")],
    model: Models = None,
    result: Annotated[
        Path | None,
        _option(
            "--from",
            text="Export exactly what this result file evaluated: its draws, temperature and noise level.",
            metavar="RESULT",
        ),
    ] = None,
    method: Annotated[
        str | None,
        _option(
            text="mcbn, mcdo, learned or a combination, tta, mcbn+tta, laplace, ensemble, deterministic; with --from "
            "also METHOD+temperature and METHOD+vector.",
            metavar="METHOD",
            default="the first that draws",
        ),
    ] = None,
    monitor: Annotated[
        Path | None,
        _option(
            "--monitor",
            text="Baseline of bnuq monitor: the program also gives the distance of its inputs, as one batch, from it.",
            metavar="FILE",
        ),
    ] = None,
    ood_score: Annotated[
        list[str] | None,
        _option(
            text=f"OOD scores that the program also gives ({', '.join(POST_HOC_SCORES)}), fitted as in an evaluation. "
            "Repeat it, or use commas.",
            metavar="NAME",
        ),
    ] = None,
    *,
    options: Options,
    printing: Printing,
) -> None:
    """Write a network with its draws as one program: for inputs of the network it gives the mean prediction and its
    uncertainty, with torch alone."""
    folder = Path.cwd()
    if result is not None and model is not None:
        raise RequestError(f"{model[0]} and --from {result}: the result names its network. Leave one of them out.")
    source = None
    if result is None:
        with reported_at_once(()):
            run = resolve_ensemble(model or (), options, folder=folder)
    else:
        from bnuq.records.evaluation_file import read

        # The exported draws are those that were scored; others would have other estimates.
        if set(options) & {"samples", "batch_size", "seed"}:
            raise RequestError("--from takes the draws of the result; leave --samples, --batch-size and --seed out.")
        source = read(folder / expanded(result))
        run = resolve_again(dict(source.run), folder / expanded(result), options, folder=folder)
    from bnuq.studies.export.request import check_export

    path, scores = folder / expanded(Path(out)), split_values(ood_score or [])
    for name in scores:
        if name not in POST_HOC_SCORES:
            raise RequestError(f"--ood-score {name}: expected one of {', '.join(POST_HOC_SCORES)}.")
    check_export(run, method=method, result=source, path=path, reading=False)  # before torch is imported
    progress = progress_of(printing, needs_torch=True)
    from bnuq.evaluation.setup import threads
    from bnuq.studies.export.compute import Exported, export

    with threads(run.threads):
        baseline = None if monitor is None else folder / expanded(monitor)
        exported = export(run, path, method=method, result=source, monitor=baseline, scores=scores, progress=progress)

    def show(record: Exported, _: Any) -> None:
        for line in _lines(record):
            print_line("\n".join(textwrap.wrap(line, 80, subsequent_indent="  ", break_long_words=False)))

    print_result(exported, printing, summary=_summary, show=show)


def _summary(exported: Any) -> dict[str, Any]:
    return {
        "path": str(exported.path),
        "bytes": exported.bytes,
        **exported.metadata,
        "compared": {"points": exported.points, "largest_difference": exported.difference},
        **catalogue.summary(exported.findings),
    }


def _lines(exported: Any) -> tuple[str, ...]:
    about = exported.metadata
    shape = ", ".join(("examples", *map(str, about["inputs"]["shape"])))
    name, samples = exported.path.name, about["samples"]
    call = f'torch.export.load("{name}").module()(x)'
    cross = (
        f"The evaluation fitted the {method_named(about['method']).recalibration} of each half of its test set to the "
        "other half; the program has one for all examples, and scores on that test set differ from those reported.",
    )
    return (
        f"{name} was written ({exported.bytes / 1e6:.1f} MB): {samples} sample{'s' * (samples != 1)} by "
        f"{about['method']} of {', '.join(about['checkpoints'])}. On {exported.points} examples it differs from the "
        f"network by at most {exported.difference:.1g} of the values.",
        f"Run it: {call}",
        f"It takes x of shape ({shape}), normalised as the network's inputs, and gives {', '.join(about['outputs'])}.",
        *(cross if about["cross_fitted"] else ()),
        *(f"Unfamiliar by the report: {k} above {v:g}." for k, v in about["ood_scores"].items() if v is not None),
        *(_of_monitor(about["monitor"]) if "monitor" in about else ()),
        *catalogue.texts(exported.findings),
    )


def _of_monitor(monitor: Any) -> tuple[str, ...]:
    limits = ", ".join(f"{limit:.2f} at {100 * float(level):g} %" for level, limit in monitor["thresholds"].items())
    return (
        f"drift is one number for all examples of a call: above {limits}, they are not drawn like "
        f"{monitor['reference']}, for calls of at least {monitor['least_points']} examples.",
    )
