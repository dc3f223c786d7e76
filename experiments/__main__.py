"""`python -m experiments`: run a published experiment end to end, or show its result file again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from bnuq.cli import report as showing
from bnuq.cli.main import program, run
from bnuq.cli.options import (
    Arch,
    AsJson,
    DataRoot,
    Debug,
    Device,
    Quiet,
    Seed,
    Test,
    Train,
    TrustCode,
    TrustPickle,
    whole_numbers,
)
from bnuq.cli.output import print_result
from bnuq.cli.report import AsMarkdown, AsPage, Form, Kind
from bnuq.config import Options, resolve
from bnuq.errors import RequestError, ResultError
from bnuq.files.content import is_file
from bnuq.files.folders import expanded
from bnuq.files.writing import check_writable, write_bytes
from bnuq.findings import Finding, note
from bnuq.store import codec

Out = Annotated[Path, typer.Option("--out", "-o", help="Result file.")]
Pictures = Annotated[
    Path | None,
    typer.Option(help="Folder for the experiment's picture, as SVG and PNG; made if need be.", metavar="DIR"),
]
OnDevice = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
SeedNumber = Annotated[int, typer.Option(help="Same seed, same estimates.")]
Workers = Annotated[
    int | None, typer.Option(help="Processes of one thread each that train, on a CPU.", show_default="a core each")
]
Work = Annotated[
    Path | None,
    typer.Option(
        help="Folder of what is finished: an interrupted run goes on from it. Removed when the result is written.",
        show_default="OUT.work",
    ),
]
Model = Annotated[
    str | None,
    typer.Argument(help="A checkpoint (model.pt) or a run file (model.toml); without one, bnuq.toml here."),
]


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
    device: OnDevice = "auto",
    workers: Workers = None,
    seed: SeedNumber = 0,
    data_root: DataRoot = None,
    out: Out = Path("reproduce-uci.h5"),
    markdown: Annotated[Path | None, typer.Option(help="Write the report as Markdown too.", metavar="FILE")] = None,
    work: Work = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,  # noqa: ARG001 - read by run
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
    findings = _check_places(out)
    if markdown is not None and (markdown.resolve() == out.resolve() or not _may_be_replaced(markdown)):
        raise RequestError(f"--markdown {markdown} is another file than a report of this command; name another.")
    if markdown is not None:
        check_writable(markdown)

    from experiments.uci.experiment import Request, reproduce
    from experiments.uci.protocol import chosen_sets
    from experiments.uci.report import markdown as as_markdown

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
        findings=findings,
    )
    record = reproduce(request, progress=_progress(quiet))
    if markdown is not None:
        write_bytes(markdown, as_markdown(record).encode())
    _tell(record, _uci(), None, as_json=as_json, quiet=quiet)


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
    seed: SeedNumber = 0,
    out: Out = Path("reproduce-toy.h5"),
    figures: Pictures = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,  # noqa: ARG001 - read by run
) -> None:
    """Draw a toy regression in the manner of Figure 1 of Teye, Azizpour and Smith 2018: what MCBN and MC dropout say
    among the data, in a gap between them, and outside. The data are bnuq's own, and drawn from the seed.

    Trains three small networks, a few seconds each.
    """
    _check_places(out, figures)
    codec.check_replaceable(out)

    from experiments.toy import reproduce

    record = reproduce(samples=samples, batch_size=batch_size, seed=seed, progress=_progress(quiet))
    _tell(_written(record, out), _toy(), figures, as_json=as_json, quiet=quiet)


def batch_size(
    full: Annotated[
        bool,
        typer.Option(
            "--full",
            help="ResNet-50 and VGG-16 on all of Fashion-MNIST, M = 32 … 2048, 100 epochs: for a GPU. Goes on after "
            "the last whole epoch.",
        ),
    ] = False,
    epochs: Annotated[
        int | None, typer.Option(help="Passes over the images.", show_default="60; with --full 100")
    ] = None,
    images: Annotated[
        int | None,
        typer.Option(help="The first so many of the training set.", show_default="20000; with --full all 60000"),
    ] = None,
    batch_sizes: Annotated[
        str | None,
        typer.Option(
            help="Training batch sizes M, with commas.",
            show_default="32,128,512,2048; with --full 32,64,… 2048",
            metavar="LIST",
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option("--samples", "-T", help="Stochastic passes T of a draw set, of which there are 5.")
    ] = 20,
    limit: Annotated[int | None, typer.Option(help="At most so many points of each evaluated set.")] = 2000,
    device: OnDevice = "auto",
    workers: Workers = None,
    seed: SeedNumber = 0,
    data_root: DataRoot = None,
    out: Out = Path("reproduce-batch-size.h5"),
    figures: Pictures = None,
    keep: Annotated[
        Path | None,
        typer.Option(help="Leave the networks here, with a run file each for bnuq sweep-batch-size.", metavar="DIR"),
    ] = None,
    work: Work = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,  # noqa: ARG001 - read by run
) -> None:
    """Train a network per batch size on Fashion-MNIST, and draw Figure 1 (b) and (c) of Mukhoti et al. 2020: MCBN's
    mutual information on the test set and on MNIST against the batch size, with the accuracies of their Table 1.

    By default a small ResNet, once with equal epochs and once with equal steps: about half an hour of two cores. Needs
    fashion-mnist and the test set of mnist below --data-root or $BNUQ_DATA.
    """
    findings = _check_places(out, figures)
    sizes = _sizes(batch_sizes)

    from experiments.batch_size.experiment import FULL, QUICK, Request, reproduce

    overrides = {"epochs": epochs, "images": images, "batch_sizes": sizes}
    request = Request(
        protocol=replace(
            FULL if full else QUICK, **{key: value for key, value in overrides.items() if value is not None}
        ),
        out=out,
        samples=samples,
        limit=limit,
        seed=seed,
        device=device,
        workers=workers,
        data_root=data_root and expanded(data_root),
        work=work and expanded(work),
        keep=keep and expanded(keep),
        findings=findings,
    )
    record = reproduce(request, progress=_progress(quiet))
    _tell(record, _batch_size(), figures, as_json=as_json, quiet=quiet)


def pll_over_samples(
    model: Model = None,
    train: Train = None,
    test: Test = None,
    arch: Arch = None,
    samples: Annotated[int, typer.Option("--samples", "-T", help="The most stochastic passes.")] = 128,
    batch_size: Annotated[
        int | None,
        typer.Option("--batch-size", "-b", help="Size of MCBN's mini-batches.", show_default="training's"),
    ] = None,
    seed: Seed = None,
    limit: Annotated[int | None, typer.Option(help="At most so many test points.")] = None,
    device: Device = None,
    data_root: DataRoot = None,
    out: Out = Path("reproduce-pll-over-samples.h5"),
    figures: Pictures = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    trust_pickle: TrustPickle = False,
    trust_code: TrustCode = False,
    debug: Debug = False,  # noqa: ARG001 - read by run
) -> None:
    """Table 2 of Teye, Azizpour and Smith 2018: PLL of MCBN with T = 1, 2, 4, … passes, beside the published row and a
    replication of it. The network is yours; the published one is a ResNet-32 on CIFAR-10.

    Passes are all of the network's training batch size, unless --batch-size says otherwise.
    """
    findings = _check_places(out, figures)
    options = Options(
        arch=arch,
        train=train,
        test=test,
        samples=samples,
        seed=seed,
        device=device,
        limit=limit,
        data_root=data_root,
        trust_pickle=trust_pickle,
        trust_code=trust_code,
    )
    request = resolve(model, options, folder=Path.cwd())

    from experiments.pll_over_samples import reproduce

    codec.check_replaceable(out)
    # A run file's own batch size is of its evaluation; here it is training's that counts.
    request = replace(request, batch_size=batch_size or request.train_batch_size)
    record = reproduce(request, progress=_progress(quiet))
    record = _written(replace(record, findings=(*record.findings, *findings)), out)
    _tell(record, _pll_over_samples(), figures, as_json=as_json, quiet=quiet)


def bn_noise(
    model: Model = None,
    train: Train = None,
    arch: Arch = None,
    batch_size: Annotated[
        int, typer.Option("--batch-size", "-b", help="Mini-batch size; the paper's is 32. Others are drawn beside it.")
    ] = 32,
    draws: Annotated[int, typer.Option(help="Mini-batches of that size; of the others a quarter as many, 64.")] = 256,
    points: Annotated[int, typer.Option(help="Reference points that the population statistics are taken of.")] = 10_000,
    seed: Seed = None,
    device: Device = None,
    data_root: DataRoot = None,
    out: Out = Path("reproduce-bn-noise.h5"),
    figures: Pictures = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    trust_pickle: TrustPickle = False,
    trust_code: TrustCode = False,
    debug: Debug = False,  # noqa: ARG001 - read by run
) -> None:
    """Figure 4 of Shekhovtsov and Flach 2018 on your network: how n·S²/σ² of mini-batches is distributed beside χ², and
    how the variance of a normalised value falls with the batch size and the spatial size. Writes an inspection, which
    bnuq report shows too."""
    _check_places(out, figures)
    options = Options(
        arch=arch,
        train=train,
        seed=seed,
        device=device,
        out=out,
        data_root=data_root,
        trust_pickle=trust_pickle,
        trust_code=trust_code,
    )
    request = replace(resolve(model, options, folder=Path.cwd()), test=None)

    from experiments.bn_noise import reproduce

    record = reproduce(request, batch_size=batch_size, draws=draws, points=points, progress=_progress(quiet))
    _tell(record, _bn_noise(), figures, as_json=as_json, quiet=quiet)


# ── what they share ──────────────────────────────────────────────────────────────────────────────────────────────────


def _check_places(out: Path, figures: Path | None = None) -> tuple[Finding, ...]:
    """The note that goes with the result where a file is replaced; makes the folder of the pictures.

    RequestError where the folder of `out` is not there, or pictures cannot be drawn.
    """
    if not out.absolute().parent.is_dir():
        raise RequestError(f"--out {out}: its folder does not exist. Make the folder first.")
    if figures is not None:
        from bnuq.report import drawing

        drawing.check()
        drawing.make_folder(figures)
    return (note("result-replaced", file=str(out)),) if is_file(out) else ()


def _sizes(text: str | None) -> tuple[int, ...] | None:
    """The mini-batch sizes in a list with commas, each once, in order; None for none given. RequestError for others."""
    sizes = whole_numbers("batch-sizes", text, minimum=2, such_as="32,128")
    return None if sizes is None else tuple(sorted(set(sizes)))


def _progress(quiet: bool) -> Any:
    from bnuq.cli.progress import bars
    from bnuq.progress import silent

    return silent if quiet else bars


def _written(record: Any, out: Path) -> Any:
    record = replace(record, path=out.absolute())
    codec.write(record, out)
    return record


def _tell(record: Any, kind: Kind, figures: Path | None, *, as_json: bool, quiet: bool) -> None:
    from bnuq.report.render import draw_pictures, print_record

    if figures is not None:
        for form in ("svg", "png"):
            draw_pictures(kind.report(record), figures, form)
    show = partial(print_record, kind.report)
    print_result(record, summary=kind.summary, show=show, as_json=as_json, quiet=quiet, strict=False, findings=())


# ── results, shown again ─────────────────────────────────────────────────────────────────────────────────────────────


def report(
    result: Annotated[Path, typer.Argument(help="The result file of an experiment.", show_default=False)],
    as_json: AsJson = False,
    markdown: AsMarkdown = None,
    html: AsPage = None,
    figures: showing.Figures = None,
    form: Form = None,
    debug: Debug = False,  # noqa: ARG001 - read by run
) -> None:
    """Show the report of an experiment's result file, as it was printed when it was made."""
    showing.show(lambda: _read(result), as_json=as_json, markdown=markdown, html=html, figures=figures, form=form)


def _read(path: Path) -> tuple[Kind, Any]:
    from bnuq.files.apart import start

    start()
    name = codec.kind_of_result(path, known=(*codec.KINDS, *_KINDS))
    if name not in _KINDS:
        raise ResultError(f"{path} is not a result of an experiment. Show it with: bnuq report {path}")
    kind = _KINDS[name]()
    return kind, kind.read(path)


def _uci() -> Kind:
    from experiments.uci.record import Reproduction, summary
    from experiments.uci.report import report

    return Kind("uci", _reader(Reproduction, summary), summary, report)


def _toy() -> Kind:
    from experiments.toy import Toy, report, summary

    return Kind("toy", _reader(Toy, summary), summary, report)


def _batch_size() -> Kind:
    from experiments.batch_size.record import BatchSizes, summary
    from experiments.batch_size.report import report

    return Kind("batch-size", _reader(BatchSizes, summary), summary, report)


def _pll_over_samples() -> Kind:
    from experiments.pll_over_samples import PllOverSamples, report, summary

    return Kind("pll-over-samples", _reader(PllOverSamples, summary), summary, report)


def _bn_noise() -> Kind:
    from experiments.bn_noise import read, report, summary

    return Kind("bn-noise", read, summary, report)


def _reader(record: Any, summary: Callable[[Any], Any]) -> Callable[[Path], Any]:
    return lambda path: codec.read(record, path, summary=summary)


_KINDS: dict[str, Callable[[], Kind]] = {
    "uci": _uci,
    "toy": _toy,
    "batch-size": _batch_size,
    "pll-over-samples": _pll_over_samples,
    "inspection": _bn_noise,
}

app = program(
    "Run a published experiment end to end and print its table beside the published one.",
    {
        "uci": uci,
        "toy": toy,
        "batch-size": batch_size,
        "pll-over-samples": pll_over_samples,
        "bn-noise": bn_noise,
        "report": report,
    },
)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit, with the codes of bnuq."""
    run(app, "python -m experiments", arguments, folder=Path(__file__).parent)


if __name__ == "__main__":
    main()
