"""`bnuq evaluate`: draw samples of a trained network, score them, and tell the OOD sets apart."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from bnuq.cli.gate import Gate
from bnuq.cli.options import (
    Arch,
    Arithmetic,
    AsJson,
    BatchesOf,
    ChunkSize,
    CountsOf,
    CovarianceOf,
    CrpsOf,
    DataRoot,
    Debug,
    Device,
    FitBy,
    Full,
    Group,
    LawDraws,
    Layers,
    Limit,
    Ood,
    PerQuery,
    PllOf,
    QueryInBatch,
    Quiet,
    Replacement,
    Seed,
    Strict,
    Tau,
    Test,
    Train,
    TrustCode,
    TrustPickle,
    Validation,
    VarianceOf,
    chosen,
    listed,
    positive,
    samples_of,
)
from bnuq.cli.output import tell
from bnuq.config import (
    Batches,
    Counts,
    Criterion,
    Crps,
    Likelihood,
    Options,
    Precision,
    Run,
    Runs,
    Variance,
    resolve,
    resolve_again,
    resolve_all,
    resolve_all_again,
)
from bnuq.errors import RequestError
from bnuq.records import Estimator


def command(
    model: Annotated[
        str | None,
        typer.Argument(help="A checkpoint (model.pt) or a run file (model.toml); without one, bnuq.toml here."),
    ] = None,
    train: Train = None,
    test: Test = None,
    ood: Ood = None,
    validation: Validation = None,
    group: Group = None,
    arch: Arch = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="mcbn, mcdo, mcbn+mcdo, deterministic; or a model of MCBN's noise: mcbn-chi2, mcbn-gaussian, "
            "mcbn-empirical. Repeat it, or use commas."
        ),
    ] = None,
    samples: Annotated[
        str | None,
        typer.Option(
            "--samples", "-T", help="Stochastic passes T, or auto.", show_default="64", metavar="INTEGER|auto"
        ),
    ] = None,
    bank: Annotated[
        int | None,
        typer.Option(
            help="Draw so many mini-batches, at least T, of which every 64 points use their own T: a smaller Monte "
            "Carlo error of means, but no one function for all points.",
            show_default="off",
        ),
    ] = None,
    mc_error: Annotated[
        float | None,
        typer.Option(
            help="With --samples auto: the Monte Carlo error to reach, of mean MI relative to it; a tenth of it in "
            "PLL and AUROC.",
            show_default="0.02",
        ),
    ] = None,
    max_samples: Annotated[
        int | None, typer.Option(help="With --samples auto: at most so many passes.", show_default="1024")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", "-b", help="Size b of MCBN's mini-batches.", show_default="training's")
    ] = None,
    layers: Layers = None,
    variance: VarianceOf = None,
    batches: BatchesOf = None,
    replacement: Replacement = None,
    query_in_batch: QueryInBatch = None,
    per_query: PerQuery = None,
    counts: CountsOf = None,
    covariance: CovarianceOf = None,
    law_draws: LawDraws = None,
    seed: Seed = None,
    mutual_information: Annotated[
        str | None,
        typer.Option(
            help="How MI is estimated from T passes: plug-in, corrected (× T/(T−1)) or jackknife.",
            show_default="plug-in",
            metavar="NAME",
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
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Result file.", show_default="MODEL.bnuq.h5")] = None,
    save_samples: Annotated[bool, typer.Option("--save-samples", help="Keep the raw outputs (T, n, K).")] = False,
    data_root: DataRoot = None,
    again: Annotated[
        Path | None, typer.Option("--from", help="Run again what this result file holds.", metavar="RESULT")
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(
            help="A result that this one must not be worse than, as bnuq check has it, by [check] of the run file: "
            "exit code 1 where it is.",
            metavar="RESULT",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
    full: Full = False,
    quiet: Quiet = False,
    strict: Strict = False,
    trust_pickle: TrustPickle = False,
    trust_code: TrustCode = False,
    debug: Debug = False,  # noqa: ARG001 - read by main
) -> None:
    """Evaluate the uncertainty of a trained network: how large it is, whether it means anything, and whether it tells
    unfamiliar data apart. Writes one HDF5 file and prints a report."""
    options = Options(
        arch=arch,
        train=train,
        test=test,
        ood=listed(ood),
        validation=validation,
        group=group,
        methods=listed(method),
        samples=samples_of(samples),
        bank=bank,
        mc_error=mc_error,
        max_samples=max_samples,
        batch_size=batch_size,
        layers=listed(layers),
        seed=seed,
        mutual_information=chosen("mutual-information", mutual_information, Estimator),
        sampler={
            "variance": chosen("variance", variance, Variance),
            "batches": chosen("batches", batches, Batches),
            "replacement": replacement,
            "query_in_batch": query_in_batch,
            "per_query": per_query,
            "counts": chosen("counts", counts, Counts),
            "covariance": covariance,
            "law_draws": law_draws,
        },
        pll=chosen("pll", pll, Likelihood),
        crps=chosen("crps", crps, Crps),
        fit=chosen("fit", fit, Criterion),
        tau=positive("tau", tau),
        device=device,
        precision=chosen("precision", precision, Precision),
        chunk_size=chunk_size,
        limit=limit,
        out=out,
        save_samples=save_samples,
        data_root=data_root,
        trust_pickle=trust_pickle,
        trust_code=trust_code,
    )
    from bnuq.cli.progress import Bars
    from bnuq.progress import silent

    bars = Bars()
    progress, foresight = (silent, None) if quiet else (bars, bars.foresight)
    if (runs := _runs(model, again, options)) is not None:
        from bnuq.report.multirun import print_several
        from bnuq.results import multirun
        from bnuq.workflows.multirun import evaluate_several

        if baseline is not None:
            raise RequestError(f"--baseline {baseline} is held against one result, and several runs were asked for.")
        aggregate = evaluate_several(runs, progress=progress, foresight=foresight)
        tell(aggregate, summary=multirun.summary, show=print_several, as_json=as_json, quiet=quiet, strict=strict)
        return
    run = _run(model, again, options)
    gate = None if baseline is None else Gate(baseline, run, full=full, quiet=quiet)
    from bnuq.report.terminal import print_report
    from bnuq.results.summary import summary
    from bnuq.workflows.evaluate import evaluate

    result = evaluate(run, progress=progress, look=None if gate is None else gate.look, foresight=foresight)
    if gate is None:
        show = partial(print_report, full=full)
        tell(result, summary=summary, show=show, as_json=as_json, quiet=quiet, strict=strict)
    else:
        gate.end(result, as_json=as_json, strict=strict)


def _runs(model: str | None, again: Path | None, options: Options) -> Runs | None:
    """The runs of a run file with [runs], or of the aggregate of such; None where one run is asked for."""
    if again is None:
        return resolve_all(model, options, folder=Path.cwd())
    from bnuq.results.multirun import read
    from bnuq.store.codec import kind_of_result

    if model is not None or kind_of_result(again) != "several":
        return None
    kept = [(run.split, run.seed, dict(run.record)) for run in read(again).runs]
    return resolve_all_again(kept, again.resolve(), options, folder=Path.cwd())


def _run(model: str | None, again: Path | None, options: Options) -> Run:
    if again is None:
        return resolve(model, options, folder=Path.cwd())
    if model is not None:
        raise RequestError(f"--from {again} runs a result file again; it takes no model ({model}) beside it.")
    from bnuq.results.file import read

    return resolve_again(dict(read(again).run), again.resolve(), options, folder=Path.cwd())
