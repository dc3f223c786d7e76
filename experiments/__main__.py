"""`python -m experiments`: run a published experiment end to end, or show its result file again."""

from __future__ import annotations

if __name__ == "__main__":
    import bnuq.__main__  # noqa: F401 - answers signals during the imports

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer
from msgspec import Meta

from bnuq.cli import report as showing
from bnuq.cli.derived import SectionOptions, with_options
from bnuq.cli.main import program, run
from bnuq.cli.options import Figures, Model, Work
from bnuq.cli.output import Printing, print_result
from bnuq.cli.paths import checked_target
from bnuq.config import Options, resolve, section_from
from bnuq.config.schema import (
    MAX_COUNT,
    BatchSize,
    DataSection,
    GivenOptions,
    InspectSection,
    ModelSection,
    Positive,
    SamplingSection,
    Section,
    setting,
)
from bnuq.errors import RequestError, ResultError
from bnuq.files.content import is_file
from bnuq.files.folders import expanded
from bnuq.files.writing import write_bytes
from bnuq.findings import Finding, note
from bnuq.progress import Announce, silence
from bnuq.report.kinds import Kind
from bnuq.store import codec

BatchSizes = Annotated[tuple[BatchSize, ...], Meta(min_length=1)]
_SIZES_EXPECTED = "whole numbers of at least 2, such as 32,128"
Workers = Annotated[
    Positive | None,
    setting("Processes of one thread each that train, on a CPU.", "Computation", shown="a core each"),
]
_DEVICE_HELP = "auto, cpu, cuda or cuda:N."
_PRINTING = SectionOptions(Printing, "json quiet debug")
_SEED = SectionOptions(SamplingSection, "seed")


class UciSettings(Section, frozen=True):
    """The settings of `uci`."""

    protocol: Annotated[
        Literal["quick", "paper"],
        setting(
            "quick (reduced grids, unpromising settings given up early) or paper (the whole grid, T = 500 "
            "throughout: by estimate 15 hours of one core without Protein, 80 with it)."
        ),
    ] = "quick"
    sets: Annotated[
        tuple[str, ...],
        setting(
            "boston, concrete, energy, kin8nm, power, protein, wine, yacht, with commas; all; or smoke, a minute "
            "on two of them: Boston and Yacht.",
            metavar="LIST",
            shown="boston,yacht,energy,concrete,wine",
            commas=True,
        ),
    ] = ()
    method: Annotated[
        tuple[str, ...],
        setting(
            "mcbn, mcdo, mnf (multiplicative normalising flows), vi (mean-field VI, with and without BatchNorm), with "
            "commas.",
            metavar="LIST",
            shown="mcbn,mcdo",
            commas=True,
        ),
    ] = ()
    paper_batches: Annotated[
        bool | None,
        setting(
            "Try batch sizes above half a fold too. From a whole fold on, MC variance is next to zero in "
            "cross-validation.",
            shown="with quick for energy alone, with paper for all",
            no=True,
        ),
    ] = None
    batch_sizes: Annotated[
        BatchSizes | None,
        setting(
            "Mini-batch sizes to choose among, with commas, for every set: 32 alone holds it there.",
            shown="the protocol's",
            expected=_SIZES_EXPECTED,
        ),
    ] = None
    by_size: Annotated[
        bool,
        setting(
            "CRPS, PLL and RMSE by b and by T instead, as in the paper's appendix, with few epochs; --figures then "
            "draws uncertainty and error of every set, of --method mcbn,mnf."
        ),
    ] = False
    workers: Workers = None


@with_options(
    settings=SectionOptions(UciSettings),
    sampling=_SEED,
    given=SectionOptions(
        GivenOptions,
        "out device data_root",
        {"out": ("Result file.", "reproduce-uci.h5"), "device": _DEVICE_HELP},
    ),
    printing=_PRINTING,
)
def uci(
    markdown: Annotated[Path | None, typer.Option(help="Write the report as Markdown too.", metavar="FILE")] = None,
    figures: Figures = None,
    work: Work = None,
    *,
    settings: UciSettings,
    sampling: SamplingSection,
    given: GivenOptions,
    printing: Printing,
) -> None:
    """Train the networks of the UCI regression experiment of Teye, Azizpour and Smith 2018 anew, with BatchNorm, with
    dropout, or with learned noise (--method), and print their Table 1 beside the published one: which scores come out
    again, and what explains them.

    Needs the eight UCI sets as uci/NAME/data.csv, target last, below --data-root or $BNUQ_DATA.
    """
    out, findings = _out(given.out, "reproduce-uci.h5", figures)
    if markdown is not None:
        if markdown.resolve() == out.resolve():
            raise RequestError(f"--markdown {markdown} is the result file too; name another.")
        markdown = checked_target(markdown, "--markdown", "report", b"# Teye, Azizpour and Smith 2018")

    from experiments.uci import sizes
    from experiments.uci.experiment import Request, reproduce
    from experiments.uci.protocol import chosen_methods, chosen_sets
    from experiments.uci.report import markdown as as_markdown

    by_size, words = settings.by_size, settings.sets
    protocol, sets = chosen_sets(words or ("all",) if by_size else words, settings.protocol)
    request = Request(
        protocol=sizes.QUICK if by_size and settings.protocol == "quick" else protocol,
        sets=sets,
        out=out,
        methods=chosen_methods(settings.method or ("mcbn",) if by_size else settings.method),
        paper_batches=settings.paper_batches,
        batch_sizes=_ascending(settings.batch_sizes),
        device=given.device or "auto",
        findings=findings,
        **_common(settings, sampling, given, work, printing),
    )
    record: Any = (sizes.reproduce if by_size else reproduce)(request, progress=_progress(printing))
    if markdown is not None and not by_size:
        write_bytes(markdown, as_markdown(record).encode())
    _show(record, record.KIND, figures, printing)


class ToySettings(Section, frozen=True):
    """The settings of `toy`."""

    samples: Annotated[int, setting("Stochastic passes a point.")] = 500
    batch_size: Annotated[
        int, setting("Mini-batch size of training and MCBN; a second BatchNorm network has 4 times that.")
    ] = 32


@with_options(
    settings=SectionOptions(ToySettings),
    sampling=_SEED,
    given=SectionOptions(GivenOptions, "out", {"out": ("Result file.", "reproduce-toy.h5")}),
    printing=_PRINTING,
)
def toy(
    figures: Figures = None,
    *,
    settings: ToySettings,
    sampling: SamplingSection,
    given: GivenOptions,
    printing: Printing,
) -> None:
    """Draw a toy regression in the manner of Figure 1 of Teye, Azizpour and Smith 2018: what MCBN and MC dropout say
    among the data, in a gap between them, and outside. The data are bnuq's own, and drawn from the seed.

    Trains three small networks, a few seconds each.
    """
    out, _ = _out(given.out, "reproduce-toy.h5", figures)
    codec.check_replaceable(out)

    from experiments.toy import reproduce

    sizes = {"samples": settings.samples, "batch_size": settings.batch_size, "seed": sampling.seed}
    record = reproduce(**sizes, progress=_progress(printing), announce=_announce(printing))
    _show(_written(record, out), "toy", figures, printing)


class BatchSizeSettings(Section, frozen=True):
    """The settings of `batch-size`."""

    set: Annotated[Literal["fashion-mnist", "cifar10"], setting("What is trained on.")] = "fashion-mnist"
    architectures: Annotated[
        tuple[Literal["small_resnet", "small_vgg", "resnet50", "vgg16"], ...],
        setting("Networks, with commas.", metavar="LIST", shown="small_resnet; with --full two", commas=True),
    ] = ()
    equal_steps: Annotated[
        bool | None,
        setting("Train with equal steps too, not with equal epochs alone.", shown="yes; with --full no", no=True),
    ] = None
    seeds: Annotated[Positive, setting("Networks of each kind; errors are then over seeds too.")] = 1
    draw_sets: Annotated[int, Meta(ge=2, le=MAX_COUNT), setting("Independent draw sets of each estimate.")] = 5
    train_points: Annotated[Positive, setting("Training examples that an ELBO is computed on.")] = 1000

    full: Annotated[
        bool,
        setting(
            "ResNet-50 and VGG-16 on all of Fashion-MNIST, M = 32 … 2048, 100 epochs: for a GPU. Goes on after "
            "the last whole epoch."
        ),
    ] = False
    epochs: Annotated[Positive | None, setting("Passes over the images.", shown="60; with --full 100")] = None
    images: Annotated[
        Positive | None, setting("The first so many of the training set.", shown="20000; with --full all 60000")
    ] = None
    batch_sizes: Annotated[
        BatchSizes | None,
        setting(
            "Training batch sizes M, with commas.",
            shown="32,128,512,2048; with --full 32,64,… 2048",
            expected=_SIZES_EXPECTED,
        ),
    ] = None
    samples: Annotated[
        int,
        Meta(ge=2, le=MAX_COUNT),
        setting("Stochastic passes T of a draw set, of which there are 5.", short="T"),
    ] = 20
    keep: Annotated[
        str | None,
        setting("Leave the networks here, with a run file each for bnuq sweep-batch-size.", "Output", metavar="DIR"),
    ] = None
    workers: Workers = None


@with_options(
    settings=SectionOptions(BatchSizeSettings),
    sampling=_SEED,
    given=SectionOptions(
        GivenOptions,
        "out limit device data_root",
        {
            "out": ("Result file.", "reproduce-batch-size.h5"),
            "limit": ("At most so many points of each evaluated set.", "2000; with --full all"),
            "device": _DEVICE_HELP,
        },
    ),
    printing=_PRINTING,
)
def batch_size(
    figures: Figures = None,
    work: Work = None,
    *,
    settings: BatchSizeSettings,
    sampling: SamplingSection,
    given: GivenOptions,
    printing: Printing,
) -> None:
    """Train a network per batch size on Fashion-MNIST, and draw Figure 1 (b) and (c) of Mukhoti et al. 2020: MCBN's
    mutual information on the test set and on MNIST against the batch size, with the accuracies of their Table 1.

    By default a small ResNet, once with equal epochs and once with equal steps: about half an hour of two cores. Needs
    fashion-mnist and the test set of mnist below --data-root or $BNUQ_DATA.
    """
    out, findings = _out(given.out, "reproduce-batch-size.h5", figures)

    from experiments.batch_size.experiment import CIFAR, FULL, FULL_CIFAR, QUICK, Request, reproduce

    is_cifar = settings.set == "cifar10"
    quick = replace(QUICK, **CIFAR) if is_cifar else QUICK
    overrides: dict[str, Any] = {
        "architectures": settings.architectures or None,
        "seeds": settings.seeds,
        "equal_steps": settings.equal_steps,
        "epochs": settings.epochs,
        "images": settings.images,
        "batch_sizes": _ascending(settings.batch_sizes),
    }
    request = Request(
        protocol=replace(
            (FULL_CIFAR if is_cifar else FULL) if settings.full else quick,
            **{key: value for key, value in overrides.items() if value is not None},
        ),
        out=out,
        samples=settings.samples,
        draw_sets=settings.draw_sets,
        train_points=settings.train_points,
        limit=given.limit or (None if settings.full else 2000),
        device=given.device or "auto",
        keep=None if settings.keep is None else expanded(settings.keep),
        findings=findings,
        **_common(settings, sampling, given, work, printing),
    )
    _show(reproduce(request, progress=_progress(printing)), "batch-size", figures, printing)


class OptimumSettings(Section, frozen=True):
    """The settings of `optimum-over-n`."""

    numbers: Annotated[
        BatchSizes | None,
        setting("Numbers N of training images, with commas.", shown="1000,4000,16000,60000", expected=_SIZES_EXPECTED),
    ] = None
    batch_sizes: Annotated[
        BatchSizes | None,
        setting("Mini-batch sizes b, with commas.", shown="16,32,… 2048", expected=_SIZES_EXPECTED),
    ] = None
    steps: Annotated[Positive, setting("Mini-batches of 64 that each network is trained with.")] = 1000
    seeds: Annotated[Positive, setting("Networks of each N.")] = 3
    samples: Annotated[int, Meta(ge=2, le=MAX_COUNT), setting("Samples T of a draw set.", short="T")] = 10
    draw_sets: Annotated[int, Meta(ge=2, le=MAX_COUNT), setting("Independent draw sets of each estimate.")] = 2
    train_points: Annotated[Positive, setting("Training examples that the ELBO is computed on.")] = 500
    workers: Workers = None


@with_options(
    settings=SectionOptions(OptimumSettings),
    sampling=_SEED,
    given=SectionOptions(
        GivenOptions,
        "out limit device data_root",
        {"out": "Result file.", "limit": ("At most so many test points.", "500"), "device": _DEVICE_HELP},
    ),
    printing=_PRINTING,
)
def optimum_over_n(
    work: Work = None,
    *,
    settings: OptimumSettings,
    sampling: SamplingSection,
    given: GivenOptions,
    printing: Printing,
) -> None:
    """Train a small network on 1,000 to 60,000 images of Fashion-MNIST, and show how MCBN's best mini-batch size grows
    with their number N: Mukhoti et al. 2020 claim that N → ∞ needs b → ∞."""
    out, _ = _out(given.out, "reproduce-optimum-over-n.h5")

    from experiments.batch_size.experiment import QUICK, Request
    from experiments.batch_size.optimum import Sizes, reproduce

    grid = _ascending(settings.batch_sizes) or Sizes.grid
    sizes = Sizes(settings.numbers or Sizes.numbers, settings.steps, settings.seeds, grid)
    request = Request(
        protocol=QUICK,
        out=out,
        samples=settings.samples,
        draw_sets=settings.draw_sets,
        train_points=settings.train_points,
        limit=given.limit or 500,
        device=given.device or "auto",
        **_common(settings, sampling, given, work, printing),
    )
    _show(reproduce(request, sizes, progress=_progress(printing)), "optimum-over-n", None, printing)


class LearnedSettings(Section, frozen=True):
    """The settings of the experiments that train networks of their own on small images."""

    full: Annotated[
        bool, setting("The paper's width, images and epochs, as far as they are printed: days of a GPU.")
    ] = False
    noise: Annotated[Literal["mean-field", "dropout"], setting("What is random.")] = "mean-field"
    sets: Annotated[
        tuple[str, ...],
        setting("fashion-mnist, cifar10, with commas.", metavar="LIST", shown="the experiment's", commas=True),
    ] = ()
    images: Annotated[Positive | None, setting("The first so many of each training set.", shown="the experiment's")] = (
        None
    )
    epochs: Annotated[Positive | None, setting("Passes over the images.", shown="the experiment's")] = None
    width: Annotated[
        Positive | None, setting("Channels of the first layers, or units of a layer.", shown="the experiment's")
    ] = None
    samples: Annotated[int, Meta(ge=2, le=MAX_COUNT), setting("Samples T of each point.", short="T")] = 20
    seeds: Annotated[Positive | None, setting("Networks of each kind.", shown="3, of bn-in-vi 5")] = None
    workers: Workers = None


_ALL_CNN = {"sets": ("cifar10",), "images": 50_000, "epochs": 1200, "width": 96}
_OF_ALL = "full images epochs width workers"  # options of every one of these experiments


def _learned(name: str, about: str, options: str, full: dict[str, Any], defaults: dict[str, Any]) -> Any:
    """The command of an experiment that trains networks of its own, with what it says of itself."""

    def command(
        figures: Figures = None,
        work: Work = None,
        *,
        settings: LearnedSettings,
        sampling: SamplingSection,
        given: GivenOptions,
        printing: Printing,
    ) -> None:
        out, _ = _out(given.out, f"reproduce-{name}.h5", figures)

        from experiments.learned.running import Request

        asked = {key: getattr(settings, key) for key in ("sets", "images", "epochs", "width", "seeds")}
        values = defaults | (full if settings.full else {}) | {key: value for key, value in asked.items() if value}
        request = Request(
            out=out,
            samples=settings.samples,
            noise=settings.noise,
            limit=given.limit or (10_000 if settings.full else 2000),
            progress=_progress(printing),
            **_common(settings, sampling, given, work, printing),
            **values,
        )
        record = import_module(_KINDS.get(name, (f"experiments.descent.{name}",))[0]).reproduce(request)
        _show(record, record.KIND, figures, printing)

    command.__doc__ = about
    helps = {"limit": ("At most so many test points.", "2000; with --full 10000"), "out": "Result file."}
    return with_options(
        settings=SectionOptions(LearnedSettings, f"{options} {_OF_ALL}"),
        sampling=_SEED,
        given=SectionOptions(GivenOptions, "out limit data_root", helps),
        printing=_PRINTING,
    )(command)


_LEARNED = {
    "stochastic-normalization": _learned(
        "stochastic-normalization",
        "Train normalisations without noise, with noise like BatchNorm's and with Bayesian scales, and print NLL and "
        "accuracy of one pass and of samples beside Table 1 of Shekhovtsov and Flach 2018.\n\nNeeds fashion-mnist, and "
        "cifar10/lossless_train.npz and lossless_test.npz, below --data-root or $BNUQ_DATA.",
        "sets samples seeds",
        _ALL_CNN,
        {"sets": ("fashion-mnist", "cifar10"), "images": 4000, "epochs": 8, "width": 16, "seeds": 3},
    ),
    "normalization-batch": _learned(
        "normalization-batch",
        "Train an All-CNN whose BatchNorm normalises over 32 images and over 1,024, of which the first 32 have a loss, "
        "and print the accuracies beside Fig. 2 of Shekhovtsov and Flach 2018.",
        "sets samples seeds",
        _ALL_CNN,
        {"sets": ("fashion-mnist",), "images": 2048, "epochs": 6, "width": 8, "seeds": 3},
    ),
    "bn-in-vi": _learned(
        "bn-in-vi",
        "Train mean-field networks with and without BatchNorm from several seeds, and print the ELBO and its parts: "
        "BatchNorm leaves the objective of variational inference as it is (Mukhoti et al. 2020, section 2).",
        "sets samples seeds noise",
        {"images": 60_000, "epochs": 100},  # no protocol is printed
        {"sets": ("fashion-mnist",), "images": 4000, "epochs": 20, "width": 100, "seeds": 5},
    ),
    "precise-bn": _learned(
        "precise-bn",
        "Train small networks with a small and a large mini-batch, and print their test errors by epoch with running "
        "averages of several λ and with precise statistics, beside those of Wu and Johnson 2021; and how far "
        "statistics of very small mini-batches are off, by layer.",
        "seeds",
        {"images": 60_000, "epochs": 100},
        {"sets": ("fashion-mnist",), "images": 4096, "epochs": 6, "width": 8, "seeds": 3},
    ),
    "resnet32": _learned(
        "resnet32",
        "Train the ResNet-32 of Teye, Azizpour and Smith 2018 as published on the CIFAR-10 images that are there, and "
        "print PLL by the number of samples beside their Table 2.",
        "samples",
        {"images": 4660, "epochs": 690},  # the 100,000 steps of the released code
        {"sets": ("cifar10",), "images": 2000, "epochs": 4, "width": 16, "seeds": 1},
    ),
}


_PLL_HELP = {
    "samples": ("The most stochastic passes.", "128"),
    "batch_size": ("Size of MCBN's mini-batches.", "training's"),
    "limit": "At most so many test points.",
    "out": ("Result file.", "reproduce-pll-over-samples.h5"),
}


@with_options(
    options=(
        SectionOptions(DataSection, "train test"),
        SectionOptions(ModelSection, "arch"),
        SectionOptions(InspectSection, "samples", _PLL_HELP),  # a number alone, where an evaluation's may be "auto"
        SectionOptions(SamplingSection, "batch_size seed", _PLL_HELP),
        SectionOptions(GivenOptions, "out limit device data_root trust_pickle trust_code", _PLL_HELP),
    ),
    printing=_PRINTING,
)
def pll_over_samples(
    model: Model = None, figures: Figures = None, *, options: dict[str, Any], printing: Printing
) -> None:
    """Table 2 of Teye, Azizpour and Smith 2018: PLL of MCBN with T = 1, 2, 4, … passes, beside the published row and a
    replication of it. The network is yours; the published one is a ResNet-32 on CIFAR-10.

    Passes are all of the network's training batch size, unless --batch-size says otherwise.
    """
    out, findings = _out(options.get("out"), "reproduce-pll-over-samples.h5", figures)
    request = resolve(model, Options({"samples": 128, **options, "out": out}), folder=Path.cwd())

    from experiments.pll_over_samples import reproduce

    codec.check_replaceable(out)
    # A run file's own batch size is of its evaluation; here it is training's that counts.
    request = replace(request, batch_size=options.get("batch_size", request.train_batch_size))
    record = reproduce(request, progress=_progress(printing))
    record = _written(replace(record, findings=(*record.findings, *findings)), out)
    _show(record, "pll-over-samples", figures, printing)


_NOISE_HELP = {
    "batch_size": ("Mini-batch size; the paper's is 32. Others are drawn beside it.", "32"),
    "draws": ("Mini-batches of that size; of the others a quarter as many, 64.", "256"),
    "points": "Reference points that the population statistics are taken of.",
    "out": ("Result file.", "reproduce-bn-noise.h5"),
}


@with_options(
    settings=(SectionOptions(InspectSection, "batch_size draws points", _NOISE_HELP),),
    options=(
        SectionOptions(DataSection, "train"),
        SectionOptions(ModelSection, "arch"),
        _SEED,
        SectionOptions(GivenOptions, "out device data_root trust_pickle trust_code", _NOISE_HELP),
    ),
    printing=_PRINTING,
)
def bn_noise(
    model: Model = None,
    figures: Figures = None,
    *,
    settings: dict[str, Any],
    options: dict[str, Any],
    printing: Printing,
) -> None:
    """Figure 4 of Shekhovtsov and Flach 2018 on your network: how n·S²/σ² of mini-batches is distributed beside χ², and
    how the variance of a normalised value falls with the batch size and the spatial size. Writes an inspection, which
    bnuq report shows too."""
    out, _ = _out(options.get("out"), "reproduce-bn-noise.h5", figures)
    sizes = section_from(InspectSection, {"batch_size": 32, "draws": 256, **settings})
    request = replace(resolve(model, Options({**options, "out": out}), folder=Path.cwd()), test=None)

    from experiments.bn_noise import BEYOND, SIZE_DRAWS, reproduce

    assert sizes.batch_size is not None
    seen = sizes.batch_size * (sizes.draws + (2 * BEYOND - 1.5) * min(sizes.draws, SIZE_DRAWS)) + sizes.points
    _announce(printing)(
        f"{seen:,.0f} images through one network, at most: {sizes.draws} mini-batches of "
        f"{sizes.batch_size}, and others of up to {BEYOND} times as many."
    )
    record = reproduce(
        request,
        batch_size=sizes.batch_size,
        draws=sizes.draws,
        points=sizes.points,
        progress=_progress(printing),
    )
    _show(record, "inspection", figures, printing)


class VarianceSettings(Section, frozen=True):
    """The settings of `variance-divisor`."""

    batch_sizes: Annotated[
        BatchSizes | None,
        setting("Mini-batch sizes, with commas.", shown="2,4,8,16,32,128", expected=_SIZES_EXPECTED),
    ] = None


@with_options(
    settings=SectionOptions(VarianceSettings),
    options=(
        SectionOptions(InspectSection, "samples", {"samples": ("Stochastic passes.", "16")}),
        _SEED,
        SectionOptions(
            GivenOptions,
            "out limit device trust_pickle trust_code",
            {"limit": ("At most so many test points of each network.", "300"), "out": "Result file."},
        ),
    ),
    printing=_PRINTING,
)
def variance_divisor(
    models: Annotated[list[str], typer.Argument(help="Run files.", show_default=False)],
    *,
    settings: VarianceSettings,
    options: dict[str, Any],
    printing: Printing,
) -> None:
    """MCBN with the biased and with the unbiased variance of its mini-batches, on networks of yours: accuracy and PLL
    by b. Does the divisor even matter?"""
    out, _ = _out(options.get("out"), "reproduce-variance-divisor.h5")
    codec.check_replaceable(out)
    chosen = Options({"samples": 16, "limit": 300, **options, "out": out})
    runs = {Path(model).stem: resolve(model, chosen, folder=Path.cwd()) for model in models}

    from experiments.variance import BATCH_SIZES, reproduce

    sizes = _ascending(settings.batch_sizes) or BATCH_SIZES
    _announce(printing)(
        f"{2 * len(sizes) * len(runs)} evaluations, of {len(runs)} networks at {len(sizes)} mini-batch sizes with two "
        f"divisors: {chosen['samples']} samples of at most {chosen['limit']} points each."
    )
    record = reproduce(runs, out, batch_sizes=sizes, progress=_progress(printing))
    _show(record, "variance-divisor", None, printing)


# ── what they share ──────────────────────────────────────────────────────────────────────────────────────────────────


def _out(requested: str | None, default: str, figures: Path | None = None) -> tuple[Path, tuple[Finding, ...]]:
    """The result file, and the note that goes with it where a file is replaced; makes the folder of the pictures.

    RequestError where the file's folder is not there, or pictures cannot be drawn.
    """
    out = Path(requested or default)
    if not out.absolute().parent.is_dir():
        raise RequestError(f"--out {out}: its folder does not exist. Make the folder first.")
    if figures is not None:
        from bnuq.report import drawing

        drawing.make_folder(figures)
    return out, (note("result-replaced", file=str(out)),) if is_file(out) else ()


def _common(
    settings: Any, sampling: SamplingSection, given: GivenOptions, work: Path | None, printing: Printing
) -> dict[str, Any]:
    """What every request has, of experiments that train and keep finished parts."""
    return {
        "seed": sampling.seed,
        "workers": settings.workers,
        "data_root": None if given.data_root is None else expanded(given.data_root),
        "work": work and expanded(work),
        "announce": _announce(printing),
    }


def _ascending(sizes: tuple[int, ...] | None) -> tuple[int, ...] | None:
    return None if sizes is None else tuple(sorted(set(sizes)))


def _progress(printing: Printing) -> Any:
    from bnuq.cli.progress import progress_of

    return progress_of(printing)


def _announce(printing: Printing) -> Announce:
    return silence if printing.quiet else partial(typer.echo, err=True)


def _written(record: Any, out: Path) -> Any:
    record = replace(record, path=out.absolute())
    codec.write(record, out)
    return record


def _show(record: Any, name: str, figures: Path | None, printing: Printing) -> None:
    from bnuq.report.render import draw_pictures, print_record

    kind = _kind(name)
    if figures is not None:
        for form in ("svg", "png"):
            draw_pictures(kind.report(record), figures, form)
    print_result(record, printing, summary=kind.summary, show=partial(print_record, kind.report), findings=())


# ── results, shown again ─────────────────────────────────────────────────────────────────────────────────────────────


@with_options(
    forms=SectionOptions(showing.Forms, "markdown html figures format"), printing=SectionOptions(Printing, "json debug")
)
def report(
    result: Annotated[Path, typer.Argument(help="The result file of an experiment.", show_default=False)],
    *,
    forms: showing.Forms,
    printing: Printing,
) -> None:
    """Show the report of an experiment's result file, as it was printed when it was made."""
    showing.show(lambda: _read(result), forms, printing)


def _read(path: Path) -> tuple[Kind, Any]:
    from bnuq.files.apart import start

    start(path)
    name = codec.kind_of_result(path, known=(*codec.KINDS, *_KINDS))
    if name not in _KINDS:
        raise ResultError(f"{path} is not a result of an experiment. Show it with: bnuq report {path}")
    kind = _kind(name)
    return kind, kind.read(path)


def _kind(name: str) -> Kind:
    record, report = map(import_module, _KINDS[name])
    return Kind(name, record.read, record.summary, report.report)


_KINDS = {  # the modules of a result's `read` and `summary`, and of its `report`
    "uci": ("experiments.uci.record", "experiments.uci.report"),
    "toy": ("experiments.toy", "experiments.toy"),
    "batch-size": ("experiments.batch_size.record", "experiments.batch_size.report"),
    "pll-over-samples": ("experiments.pll_over_samples", "experiments.pll_over_samples"),
    "inspection": ("experiments.bn_noise", "experiments.bn_noise"),
    "stochastic-normalization": ("experiments.learned.normalization", "experiments.learned.normalization"),
    "normalization-batch": ("experiments.learned.normalization_batch", "experiments.learned.normalization_batch"),
    "bn-in-vi": ("experiments.learned.bn_in_vi", "experiments.learned.bn_in_vi"),
    "optimum-over-n": ("experiments.batch_size.optimum", "experiments.batch_size.optimum"),
    "variance-divisor": ("experiments.variance", "experiments.variance"),
    "precise-bn": ("experiments.descent.precise", "experiments.descent.precise"),
    "uci-sizes": ("experiments.uci.sizes", "experiments.uci.sizes"),
}

app = program(
    "Run a published experiment end to end and print its table beside the published one.",
    {
        "uci": uci,
        "toy": toy,
        "batch-size": batch_size,
        "pll-over-samples": pll_over_samples,
        "bn-noise": bn_noise,
        "optimum-over-n": optimum_over_n,
        "variance-divisor": variance_divisor,
        **_LEARNED,
        "report": report,
    },
)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit, with the codes of bnuq."""
    run(app, "python -m experiments", arguments, folder=Path(__file__).parent)


if __name__ == "__main__":
    main()
