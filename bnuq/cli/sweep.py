"""`bnuq sweep-batch-size`: what a network's uncertainty is at every mini-batch size, and which size to use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from bnuq.cli.options import (
    Arch,
    Arithmetic,
    AsJson,
    ChunkSize,
    CrpsOf,
    DataRoot,
    Debug,
    Device,
    FitBy,
    Layers,
    Limit,
    Ood,
    PllOf,
    Quiet,
    Seed,
    Strict,
    Tau,
    Test,
    Train,
    TrustCode,
    TrustPickle,
    Validation,
    chosen,
    listed,
    positive,
    samples_of,
    whole_numbers,
)
from bnuq.cli.output import tell
from bnuq.config import (
    MOST,
    Counts,
    Criterion,
    Crps,
    Likelihood,
    Options,
    Precision,
    PriorKind,
    SizeCriterion,
    as_toml,
    resolve_sweep,
)
from bnuq.errors import RequestError
from bnuq.records import Estimator


def command(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            help="A checkpoint (model.pt) or a run file (model.toml), which is swept over --batch-sizes; or several, "
            "each at the batch size it was trained with. Without one, bnuq.toml here.",
            metavar="[MODEL]...",
            show_default=False,
        ),
    ] = None,
    batch_sizes: Annotated[
        str | None,
        typer.Option(
            help="Sizes to sweep, with commas. With several models: beside their own.",
            show_default="16,32,…,2048, up to half the reference",
            metavar="LIST",
        ),
    ] = None,
    criterion: Annotated[
        str | None,
        typer.Option(
            help="What a size is recommended by: elbo, on training points; or pll or auroc (mean over OOD sets), on "
            "validation points where there are any, else on the test set.",
            show_default="elbo",
            metavar="NAME",
        ),
    ] = None,
    train: Train = None,
    test: Test = None,
    ood: Ood = None,
    validation: Validation = None,
    arch: Arch = None,
    samples: Annotated[
        str | None,
        typer.Option("--samples", "-T", help="Draws T of a draw set.", show_default="20", metavar="INTEGER"),
    ] = None,
    draw_sets: Annotated[
        int | None,
        typer.Option(help="Independent draw sets R at each size; their spread is the error.", show_default="5"),
    ] = None,
    train_points: Annotated[
        int | None,
        typer.Option(help="Reference points that the ELBO's likelihood is taken on, as they are.", show_default="1000"),
    ] = None,
    prior: Annotated[
        str | None,
        typer.Option(
            help="p(ω) of the ELBO: unit (one value's information), gaussian, weight_decay, flat or gamma.",
            show_default="unit",
            metavar="NAME",
        ),
    ] = None,
    prior_mean: Annotated[
        str | None, typer.Option(help="gaussian: mean and variance of a channel's mean.", metavar="MEAN,VARIANCE")
    ] = None,
    prior_deviation: Annotated[
        str | None,
        typer.Option(help="gaussian: mean and variance of a channel's standard deviation.", metavar="MEAN,VARIANCE"),
    ] = None,
    prior_precision: Annotated[
        float | None, typer.Option(help="weight_decay: Nτλ, for a loss with λ‖W‖² (not λ/2).")
    ] = None,
    counts: Annotated[
        str | None,
        typer.Option(
            help="Values that a channel's statistics are of, in the KL: nominal (b times positions), or as many "
            "independent ones as the draws vary like: measured.",
            show_default="measured",
            metavar="NAME",
        ),
    ] = None,
    kl_weight: Annotated[
        float | None,
        typer.Option(help="Weight of the KL: below 1 against counting correlated channels twice.", show_default="1"),
    ] = None,
    layers: Layers = None,
    seed: Seed = None,
    mutual_information: Annotated[
        str | None,
        typer.Option(
            help="How MI is estimated: plug-in or corrected (× T/(T−1)).", show_default="plug-in", metavar="NAME"
        ),
    ] = None,
    pll: PllOf = None,
    crps: CrpsOf = None,
    fit: FitBy = None,
    tau: Tau = None,
    device: Device = None,
    precision: Arithmetic = None,
    chunk_size: ChunkSize = None,
    limit: Limit = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Result file.", show_default="MODEL.sweep.h5")] = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            help="Draw the pictures into this folder, too; needs matplotlib.", metavar="DIR", show_default="none"
        ),
    ] = None,
    work: Annotated[
        Path | None,
        typer.Option(
            help="Folder of finished parts: an interrupted sweep goes on from them. They are removed when it is done.",
            show_default="OUT.work",
        ),
    ] = None,
    data_root: DataRoot = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    strict: Strict = False,
    trust_pickle: TrustPickle = False,
    trust_code: TrustCode = False,
    debug: Debug = False,  # noqa: ARG001 - read by main
) -> None:
    """Sweep the mini-batch size of MCBN: where does the uncertainty vanish, does it still tell unfamiliar data apart,
    and which size does the ELBO pick? Writes one HDF5 file and prints a report."""
    options = Options(
        arch=arch,
        train=train,
        test=test,
        ood=listed(ood),
        validation=validation,
        samples=samples_of(samples),
        layers=listed(layers),
        seed=seed,
        mutual_information=chosen("mutual-information", mutual_information, Estimator),
        pll=chosen("pll", pll, Likelihood),
        crps=chosen("crps", crps, Crps),
        fit=chosen("fit", fit, Criterion),
        tau=positive("tau", tau),
        device=device,
        precision=chosen("precision", precision, Precision),
        chunk_size=chunk_size,
        limit=limit,
        out=out,
        data_root=data_root,
        trust_pickle=trust_pickle,
        trust_code=trust_code,
    )
    said = {
        "batch_sizes": whole_numbers("batch-sizes", batch_sizes, such_as="32,128,512"),
        "draw_sets": _at_least("draw-sets", draw_sets, 2),
        "train_points": _at_least("train-points", train_points, 1),
        "criterion": chosen("criterion", criterion, SizeCriterion),
        "prior": chosen("prior", prior, PriorKind),
        "prior_mean": _pair("prior-mean", prior_mean),
        "prior_deviation": _pair("prior-deviation", prior_deviation),
        "prior_precision": positive("prior-precision", prior_precision),
        "counts": chosen("counts", counts, Counts),
        "kl_weight": _at_least("kl-weight", kl_weight, 0),
    }
    settings = {key: value for key, value in said.items() if value is not None}
    runs, settings = resolve_sweep(models or [], options, settings, folder=Path.cwd())
    if figures is not None:
        from bnuq.report import drawing

        drawing.check()
        drawing.make_folder(figures)
    from bnuq.cli.progress import Bars
    from bnuq.progress import silent
    from bnuq.report.sweep import print_sweep, save_figures
    from bnuq.report.terminal import print_figures
    from bnuq.results.sweep import summary
    from bnuq.workflows.sweep import sweep

    bars = Bars()
    progress, foresight = (silent, None) if quiet else (bars, bars.foresight)
    result = sweep(runs, settings, work=work, progress=progress, foresight=foresight)
    drawn = () if figures is None else save_figures(result, figures, kind="svg")

    def show(found: Any, stream: TextIO) -> None:
        print_sweep(found, stream)
        if drawn:
            print_figures(drawn, stream)

    tell(result, summary=summary, show=show, as_json=as_json, quiet=quiet, strict=strict)


def _pair(option: str, text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        mean, variance = (float(word) for word in text.split(","))
    except ValueError:
        raise RequestError(f"--{option} is {text}; expected a mean and a variance, such as 0,1.") from None
    if not (abs(mean) < float("inf") and 0 < variance < float("inf")):
        raise RequestError(f"--{option} is {text}; expected a finite mean, and a variance above 0.")
    return mean, variance


def _at_least(option: str, value: Any, least: int) -> Any:
    if value is None or least <= value <= MOST:
        return value
    bound = f"most {MOST}" if value > MOST else f"least {least}"
    raise RequestError(f"--{option} is {as_toml(value)}; expected a number of at {bound}.")
