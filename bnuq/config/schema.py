"""The schema of all settings: type, bounds, default, help and help panel, in sections that are tables of a run file."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, get_args, get_origin

import msgspec
from msgspec import Meta

from bnuq import perturbations
from bnuq.arithmetic import Precision
from bnuq.config.normalizations import PUBLISHED
from bnuq.estimates import Estimator
from bnuq.methods import METHODS, Curvature, Recalibration, Variance
from bnuq.tasks import Outputs, TaskName

if TYPE_CHECKING:
    MethodName = str
else:
    MethodName = Literal[tuple(method.name for method in METHODS)]
Samples = int | Literal["auto"]
Likelihood = Literal["mixture", "moment", "moment_full"]  # PLL of the mixture of draws, or of a moment-matched Gaussian
Crps = Literal["gaussian", "mixture", "ensemble", "fair"]
SizeCriterion = Literal["elbo", "pll", "auroc"]  # the criterion for a mini-batch size
PriorKind = Literal["unit", "gaussian", "weight_decay", "flat", "gamma"]  # p(ω) of the ELBO
Counts = Literal["nominal", "measured"]  # number of values of the statistics: b·z, or the effective sample size
Batches = Literal["random", "stratified", "group"]  # any points; every class in proportion; all of one group
PopulationEstimator = Literal["population", "mean_of_var", "full"]  # how precise-bn pools mini-batches
ChannelOrder = Literal["rgb", "bgr"]  # the order that the network takes; files hold red first
Interpolation = Literal["bilinear", "bicubic", "nearest"]  # of resized images, antialiased except for nearest
Calibration = Literal["off", "validation", "cross"]  # the points that a recalibration is fitted to
Criterion = Literal["crps", "pll"]  # the criterion that τ and the constant baseline optimise on validation points

MAX_COUNT = 10**12  # upper bound of every count: points, draws, sizes
Panel = Literal[  # of the help, in this order
    "Common options",
    "Data",
    "Model",
    "Sampling",
    "Mini-batches of MCBN",
    "Analytic noise models",
    "Classification",
    "Regression",
    "Certificate",
    "ELBO",
    "Tolerances",
    "Examples of bnuq evaluate",
    "Output",
    "Computation",
    "Safety",
]
REFERENCE = "a file, a folder, a known name such as cifar10:test, or file.py:function; NAME=REF names it"


def setting(text: str, panel: Panel = "Common options", **extra: str | bool) -> Meta:
    """The help of a setting, and its help panel. `extra` holds its `short` option, its `option` where that differs from
    the key, its `metavar`, the default that is `shown` where the type has none, what is `expected` in errors where the
    type does not say it, whether there is an option to switch it off (`no`,
    "only" if that is the only one), for a list whose option is repeated, whether `commas` separate values, too, and
    what it `needs` to have an effect, for `effects`: settings or facts, with | between alternatives."""
    return Meta(description=text, extra={"panel": panel, **extra})


_ABOVE_0 = {"expected": "a number above 0"}
Positive = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
Seed = Annotated[int, Meta(ge=0, le=2**62)]
Finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
PositiveNumber = Annotated[float, Meta(gt=0)]
FinitePositive = Annotated[float, Meta(gt=0, le=sys.float_info.max, extra=_ABOVE_0)]
MonteCarloError = Annotated[float, Meta(gt=0, lt=1)]
BatchSize = Annotated[int, Meta(ge=2, le=MAX_COUNT)]
MAX_SIDE = 16_384
Side = Annotated[int, Meta(ge=1, le=MAX_SIDE)]  # pixels of an image
JitterRange = Annotated[float, Meta(ge=0, le=100)]
# One number, [height, width], or HEIGHTxWIDTH as on the command line; `resolving` makes numbers of it.
Size = (
    Side
    | Annotated[list[int], Meta(min_length=2, max_length=2)]
    | Annotated[str, Meta(pattern=r"^\d{1,5}[x×]\d{1,5}\Z")]
)
_SIZE_EXPECTED = f"[height, width] of 1 to {MAX_SIDE} pixels, such as 224x224"


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A table of the run file; an unknown key is an error that names it."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as in a run file: what is left out there, because it is the default, is so again."""
        return msgspec.convert, (msgspec.to_builtins(self), type(self))


class Normalize(Section, frozen=True):
    """Per-channel (or per-feature) affine of the inputs: (x − mean) / std, after uint8 was scaled to 0–1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


class Jitter(Section, frozen=True):
    """Random changes of colour: a factor from max(0, 1 − x) to 1 + x of brightness, contrast and saturation, and a
    shift of the hue from −hue to hue (of the whole circle), in random order."""

    brightness: JitterRange = 0.0
    contrast: JitterRange = 0.0
    saturation: JitterRange = 0.0
    hue: Annotated[float, Meta(ge=0, le=0.5)] = 0.0


_OF_PART, _OF_PADDING = Meta(extra={"needs": ".resized_crop"}), Meta(extra={"needs": ".pad"})


class Augment(Section, frozen=True):
    """The training-input pipeline of image points: a random part of the original image resized to `resized_crop`;
    then of the raw 0–1 pixels pad, crop at random, flip at random, and jitter.

    `scale` is the range of the part's share of the area, `ratio` that of its width to its height. A list in `jitter` is
    brightness, contrast, saturation and hue.
    """

    place: ClassVar[str] = "data.augment"  # of the keys in the run file

    resized_crop: Side | None = None
    scale: Annotated[tuple[float, float], _OF_PART] = (0.08, 1.0)
    ratio: Annotated[tuple[float, float], _OF_PART] = (3 / 4, 4 / 3)
    pad: Annotated[int, Meta(ge=0, le=10_000)] = 0
    crop: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    flip: bool = False
    pad_value: Annotated[float, _OF_PADDING] = 0.0
    pad_mode: Annotated[Literal["constant", "reflect"], _OF_PADDING] = "constant"
    jitter: Annotated[
        Jitter | tuple[JitterRange, JitterRange, JitterRange, JitterRange] | None,
        Meta(
            extra={
                "expected": "{ brightness, contrast, saturation, hue }, of 0 to 100 (hue: to 0.5), or a list of these 4"
            }
        ),
    ] = None


class TtaSection(Augment, frozen=True):
    """[tta]: the augmentation of evaluated points by the methods tta and mcbn+tta, in place of that of the training."""

    place: ClassVar[str] = "tta"


class Split(Section, frozen=True):
    """Validation points: a seeded part of another set; `held_out` says that the network was not trained on them."""

    split_of: Literal["train", "test"]
    fraction: Annotated[float, Meta(gt=0, lt=1)] = 0.1
    seed: Seed = 0
    held_out: bool = False


class ModelSection(Section, frozen=True):
    """[model]: the checkpoint and how to build its network."""

    checkpoint: str | tuple[str, ...] | None = None
    arch: Annotated[
        str | tuple[str, ...] | None,
        setting(
            "Factory that builds the network: file.py:factory, package.module:factory, timm:NAME or torchvision:NAME. "
            "For an ensemble, repeat it for each network, unless one factory builds them all.",
            metavar="FACTORY",
            commas=False,
        ),
    ] = None
    arch_args: Annotated[
        dict[str, Any],
        setting(
            "Keyword argument of the factory, such as num_classes=10. Repeat it.",
            "Model",
            option="arch-arg",
            metavar="NAME=VALUE",
            commas=False,
        ),
    ] = {}
    entry: Annotated[
        str | None,
        setting(
            "Entry of the checkpoint that holds the weights, if there are several: model_ema.",
            "Model",
            metavar="NAME",
            shown="averaged weights first",
        ),
    ] = None
    task: Annotated[
        TaskName | None,
        setting("classification or regression.", "Model", metavar="NAME", shown="by outputs and targets"),
    ] = None
    outputs: Annotated[
        Outputs,
        setting(
            "What the network's outputs are: logits, probabilities (a softmax or sigmoid at the end), "
            "log_probabilities, binary (one logit, of class 1), or multilabel (one logit per yes/no label)."
        ),
    ] = "logits"
    train_batch_size: Annotated[
        Positive | None, setting("Batch size of the training.", "Model", shown="the checkpoint's record, else 128")
    ] = None


_NORMALIZE_EXPECTED = (
    '"train" (mean and std of the training set), numbers, as in { mean = [0.5], std = [0.25] }, or "MEAN/STD"'
)


class DataSection(Section, frozen=True):
    """[data]: the reference, the evaluated sets, and the input pipeline."""

    train: Annotated[
        str | None, setting(f"Training set that mini-batches are drawn from: {REFERENCE}.", metavar="REF")
    ] = None
    test: Annotated[str | None, setting("Labelled test set.", metavar="REF")] = None
    ood: Annotated[
        tuple[str, ...], setting("Out-of-distribution sets. Repeat it, or use commas.", metavar="REF", commas=True)
    ] = ()
    perturb: Annotated[
        tuple[str, ...],
        setting(
            f"Also evaluate the test set with changed inputs: {perturbations.HELP}, or KIND@SEVERITY as in `bnuq "
            "shift`. Repeat it.",
            "Data",
            metavar="KIND:SIZE",
            commas=True,
        ),
    ] = ()
    validation: Annotated[
        str | Split | None,
        setting(
            "Held-out examples, to fit temperatures, τ and constant baselines to; or a part of the test set, "
            "split_of=test,fraction=0.5.",
            metavar="REF",
        ),
    ] = None
    train_size: Annotated[
        Positive | None,
        setting("Size of the full training set, if --train is only a part of it.", "Data", shown="size of --train"),
    ] = None
    target: Annotated[
        str | None,
        setting(
            "The column of a table (CSV, parquet) that holds the target.",
            "Data",
            metavar="COLUMN",
            shown="label, target, class or y, else the last",
            needs="a table",
        ),
    ] = None
    group: Annotated[
        str | None,
        setting(
            "The array, or the column of a table, that says which examples belong together: laboratory, camera, site.",
            "Data",
            metavar="NAME",
            shown="group",
            needs="errors of estimates|sampling.batches",
        ),
    ] = None
    ignore: Annotated[
        int,
        Meta(ge=-(2**31), lt=2**31),
        setting(
            "Masks: the value of the pixels that are not scored.", "Data", metavar="INTEGER", needs="a segmentation"
        ),
    ] = 255
    palette: Annotated[
        str | None,
        setting(
            "Class file of masks: the names of the classes, and for colour-coded masks `name r g b` on each line.",
            "Data",
            metavar="FILE",
            needs="masks",
        ),
    ] = None
    classes: Annotated[
        str | tuple[str, ...] | None,
        setting(
            "Names of the classes in the order of the network's outputs: a file with one on each line, or cat,dog.",
            "Data",
            metavar="FILE|NAMES",
            shown="the order of the training set",
            needs="names of classes",
        ),
    ] = None
    resize: Annotated[
        Size | None,
        setting(
            "Resize the images of all sets, as in training: the shorter side (256), or height and width (256x256).",
            metavar="SIZE",
            expected=f"the shorter side in pixels, such as 256, or {_SIZE_EXPECTED}",
        ),
    ] = None
    crop: Annotated[
        Size | None,
        setting(
            "Crop the centre of the images of all sets, after --resize: 224, or 224x224.",
            metavar="SIZE",
            expected=f"a side in pixels, such as 224, or {_SIZE_EXPECTED}",
        ),
    ] = None
    interpolation: Annotated[
        Interpolation | None,
        setting(
            "Interpolation of resized images: bilinear, bicubic or nearest.",
            "Data",
            shown="bilinear",
            needs="data.resize|data.augment.resized_crop|tta.resized_crop|images of another size",
        ),
    ] = None
    channel_order: Annotated[ChannelOrder, setting("Channel order that the network expects.", "Data")] = "rgb"
    normalize: Annotated[
        Normalize | str | None,
        setting(
            "Normalisation of the inputs, as in training: MEAN/STD (0.4914,0.4822,0.4465/0.2470,0.2435,0.2616; one "
            "number applies to all channels), train (mean and std of the training set), none, or a published one: "
            f"{', '.join(PUBLISHED)}.",
            metavar="NAME|MEAN/STD",
            expected=f"{_NORMALIZE_EXPECTED}, or a published one: {', '.join(PUBLISHED)}",
        ),
    ] = None
    normalize_targets: Annotated[
        Normalize | str | None,
        setting(
            "Standardisation of the targets in training: MEAN/STD, or train (mean and std of the training set).",
            "Regression",
            metavar="MEAN/STD",
            expected=_NORMALIZE_EXPECTED,
            needs="a regression",
        ),
    ] = None
    augment: Annotated[
        Augment | str | None,
        setting(
            "Augmentation used in training, for its mini-batches: pad=4,crop=32,flip; or none.",
            metavar="KEY=VALUE",
            expected='a table such as { pad = 4, crop = 32, flip = true }, or "pad=4,crop=32,flip"',
        ),
    ] = None


class SamplerSettings(Section, frozen=True):
    """The keys of [sampling] that define mini-batches, the analytic noise models that replace them, and the posterior
    of a Laplace approximation (`laplace`).

    For MCBN: how the points of a mini-batch are drawn (`batches`, `replacement`), and the divisor of their variance.
    For the analytic noise models: `counts` (None: measured if there is a reference), the number of mini-batches that
    they are fitted to, and what varies jointly in mcbn-empirical: "channel", "layer", "layer:k" (k directions),
    "network".
    """

    variance: Annotated[
        Variance,
        setting("Variance of a mini-batch: biased, as training normalises, or unbiased.", "Mini-batches of MCBN"),
    ] = "biased"
    batches: Annotated[
        Batches,
        setting(
            "Examples of a mini-batch: random, stratified (every class in proportion) or group (all of one laboratory, "
            "camera or site).",
            "Mini-batches of MCBN",
        ),
    ] = "random"
    replacement: Annotated[
        bool, setting("Draw the examples of a mini-batch with replacement.", "Mini-batches of MCBN", no=True)
    ] = False
    counts: Annotated[
        Counts | None,
        setting(
            "Values behind each statistic: nominal (b times positions), or measured (effective, from mini-batches).",
            "Analytic noise models",
            shown="measured with --train",
        ),
    ] = None
    covariance: Annotated[
        str,
        Meta(pattern=r"^(channel|layer(:[1-9][0-9]{0,5})?|network)\Z"),
        setting(
            "mcbn-empirical: what varies jointly: channel, layer, layer:k (k directions) or network.",
            "Analytic noise models",
            metavar="NAME",
            expected="channel, layer, layer:k (of k directions, at least 1) or network",
        ),
    ] = "layer"
    noise_model_draws: Annotated[
        int,
        Meta(ge=8, le=100_000),
        setting("Mini-batches that the noise models are fitted to.", "Analytic noise models"),
    ] = 64
    laplace: Annotated[
        Curvature,
        setting(
            "laplace: approximation of the last layer's curvature, kron (Kronecker factors) or diag (diagonal).",
            "Classification",
        ),
    ] = "kron"


_MINI_BATCHES, _OWN_BATCHES = "a method of mini-batches", "deterministic+own"


class SamplingSection(SamplerSettings, frozen=True):
    """[sampling]: methods and their parameters."""

    methods: Annotated[
        tuple[MethodName, ...] | None,
        setting(
            "mcbn, mcdo, learned, combinations such as mcbn+mcdo, or deterministic; or an analytic model of MCBN's "
            "noise: mcbn-chi2, mcbn-gaussian, mcbn-empirical; tta or mcbn+tta (test-time augmentation); laplace (of "
            "the last layer); several checkpoints add ensemble. Repeat it, or use commas.",
            option="method",
            metavar="NAME",
            commas=True,
            shown="what the network allows",
        ),
    ] = None
    samples: Annotated[
        Positive | Literal["auto"] | None,
        setting(
            "Number T of stochastic forward passes, or auto.",
            short="T",
            metavar="INTEGER|auto",
            shown="64",
            expected='a whole number of at least 1, or "auto"',
        ),
    ] = None  # 64, or 20 of a sweep
    bank: Annotated[
        Positive | None,
        setting(
            "Draw N mini-batches (N ≥ T); each block of 64 examples uses T of them. The Monte Carlo error of means is "
            "smaller, but different examples see different sampled networks.",
            "Sampling",
            shown="off",
        ),
    ] = None
    mc_error: Annotated[
        MonteCarloError,
        setting(
            "With --samples auto: the Monte Carlo error to reach, relative for mean MI; a tenth of it, absolute, for "
            "PLL and AUROC.",
            "Sampling",
            expected="a number above 0 and below 1, such as 0.02",
            needs="--samples auto",
        ),
    ] = 0.02
    max_samples: Annotated[
        int,
        Meta(ge=16, le=MAX_COUNT),
        setting("With --samples auto: upper limit of T.", "Sampling", needs="--samples auto"),
    ] = 1024
    batch_size: Annotated[
        Positive | None,
        setting(
            "MCBN's mini-batch size.", short="b", shown="training's, else 128", needs=f"{_MINI_BATCHES}|{_OWN_BATCHES}"
        ),
    ] = None
    layers: Annotated[
        str | tuple[str, ...],
        setting(
            'Which BatchNorms to sample: all, first:k, last:k, or globs like "layer1.*".',
            "Sampling",
            metavar="NAME",
            commas=True,
            needs=_MINI_BATCHES,
        ),
    ] = "all"
    seed: Annotated[Seed, setting("The same seed gives the same results.", "Sampling")] = 0
    mutual_information: Annotated[
        Estimator,
        setting(
            "Estimator of MI from T passes: plug-in, corrected (× T/(T−1)) or jackknife.",
            "Classification",
            needs="a classification|a segmentation",
        ),
    ] = "plug-in"
    post_hoc: Annotated[
        bool,
        setting(
            "Also separate OOD sets by post-hoc scores of the deterministic network: energy, nearest neighbours, ViM, "
            "and others, fitted to the training set.",
            "Classification",
            no=True,
            needs="a classification",
            shown="on",
        ),
    ] = True
    calibrate: Annotated[
        Calibration | None,
        setting(
            "Also evaluate every method recalibrated (--recalibration), fitted to the validation examples, or to each "
            "half of the test set for the other half (cross; for regression also τ and the constant σ); or off.",
            "Classification",
            shown="validation, if there are validation examples, else cross",
        ),
    ] = None


class ScoringSection(Section, frozen=True):
    """[scoring]: how a classification is recalibrated, and the nominal coverage of its prediction sets; and how a
    regression is scored; what raises an alarm under a shift, and what counts as a loss. `tau` is fitted within
    `tau_range` unless it is given."""

    recalibration: Annotated[
        Annotated[tuple[Recalibration, ...], Meta(min_length=1)],
        setting(
            "How --calibrate recalibrates logits: temperature (one for all classes), vector (a scale and a shift for "
            "each class), or both, with commas.",
            "Classification",
            metavar="NAME",
            expected="temperature, vector or temperature,vector",
            commas=True,
            shown="temperature",
        ),
    ] = ("temperature",)

    pll: Annotated[
        Likelihood,
        setting(
            "PLL of the mixture of the draws, or of a Gaussian with their moments: moment, or moment_full (with the "
            "covariance of the outputs). `bnuq score` takes the mixture with --tau alone, else moment.",
            "Regression",
            needs="a regression",
        ),
    ] = "mixture"
    crps: Annotated[
        Crps,
        setting(
            "CRPS of the Gaussian with the draws' moments, of their mixture, or of the bare draws: ensemble, or fair "
            "(without its bias).",
            "Regression",
            needs="a regression",
        ),
    ] = "gaussian"
    fit: Annotated[
        Criterion,
        setting(
            "Criterion for fitting τ and the constant baseline to the validation examples.",
            "Regression",
            needs="a regression",
        ),
    ] = "crps"
    tau: Annotated[
        FinitePositive | None,
        setting(
            "The precision τ of the observations, 1 / (noise sd)², if known.",
            "Regression",
            shown="fitted to the validation examples",
            needs="a regression",
        ),
    ] = None
    tau_range: Annotated[tuple[PositiveNumber, PositiveNumber] | None, Meta(extra={"needs": "a regression"})] = None
    set_coverage: Annotated[
        Annotated[float, Meta(gt=0, lt=1)],
        setting(
            "Nominal coverage of prediction sets, which are built if temperatures are fitted.",
            "Classification",
            needs="a temperature of a classification",
            expected="a number above 0 and below 1, such as 0.9",
        ),
    ] = 0.9
    shift_window: Annotated[
        Annotated[int, Meta(ge=2, le=MAX_COUNT)],
        setting("Examples whose mean score may raise an alarm.", "Sampling", option="window", needs="data.perturb"),
    ] = 100
    shift_loss: Annotated[
        Annotated[float, Meta(gt=0, lt=1)] | None,
        setting(
            "What counts as a loss: of accuracy (0.05 is five points), or of RMSE, relatively.",
            "Sampling",
            option="loss",
            needs="data.perturb",
            expected="a number above 0 and below 1, such as 0.05",
            shown="0.05 of accuracy, 0.1 of RMSE",
        ),
    ] = None


class CertificateSection(Section, frozen=True):
    """[certificate]: a promise about future points, made from the validation points; none without a `risk`."""

    risk: Annotated[
        Annotated[float, Meta(gt=0, lt=1)] | None,
        setting(
            "Promise an error rate of at most this among the examples that are not deferred (classification), outside "
            "the intervals (regression), or among the pixels of an image (segmentation).",
            "Certificate",
            expected="a number above 0 and below 1, such as 0.05",
            shown="no promise",
        ),
    ] = None
    confidence: Annotated[
        Annotated[float, Meta(gt=0, lt=1)],
        setting(
            "Probability, over the validation examples, that the promise holds.",
            "Certificate",
            needs="certificate.risk",
            expected="a number above 0 and below 1, such as 0.95",
        ),
    ] = 0.95
    score: Annotated[
        str | None,
        setting(
            "The score that decides what is deferred, of every method or of one: predictive_entropy, or "
            "mcbn.mutual_information.",
            "Certificate",
            option="certificate-score",
            needs="certificate.risk",
            metavar="[METHOD.]SCORE",
            shown="least AURC on the test set",
        ),
    ] = None
    each: Annotated[
        Literal["class", "group"] | None,
        setting(
            "Also make the promise for each predicted class, or for each known group; all promises hold together.",
            "Certificate",
            option="certificate-each",
            needs="certificate.risk",
            shown="none",
        ),
    ] = None


_MEAN_AND_VARIANCE_EXPECTED = "a finite mean and a variance above 0, such as 0,1"


class ScoreSection(Section, frozen=True):
    """The settings of `bnuq score`: what belongs to the predictions in its files."""

    labels: Annotated[
        str | None,
        setting(
            "Labels or targets: FILE, FILE:COLUMN, or a known set such as cifar10:test.",
            metavar="REF",
            shown="in the predictions' file",
        ),
    ] = None
    ood: Annotated[
        tuple[str, ...],
        setting(
            "Predictions of an OOD set, NAME=FILE. Repeat it; with several files of predictions, once for each, in "
            "their order.",
            metavar="NAME=FILE",
            commas=True,
        ),
    ] = ()
    validation: Annotated[
        tuple[str, ...],
        setting(
            "Predictions of held-out examples with their labels, to which a temperature and a certificate are fitted; "
            "of several files of predictions, one for each.",
            metavar="FILE",
            commas=True,
        ),
    ] = ()
    held_out: Annotated[
        Annotated[float, Meta(gt=0, lt=1)] | None,
        setting(
            "Take this share of the examples, at random, as validation examples.",
            expected="a number above 0 and below 1, such as 0.5",
            shown="none",
        ),
    ] = None
    groups: Annotated[
        str | None,
        setting(
            "Groups of dependent examples: a column beside the labels or the predictions, or FILE:COLUMN.",
            metavar="REF",
            shown="group, where there is one",
        ),
    ] = None
    ids: Annotated[
        str | None,
        setting(
            "Column of ids, or several with commas, by which predictions and labels are matched.",
            metavar="COLUMN",
            shown="id, where there is one",
        ),
    ] = None
    columns: Annotated[
        tuple[str, ...],
        setting(
            "Columns, or the array, of the predictions, or a pattern such as 'prob_*'; or a role, as sigma=NAME.",
            metavar="NAME",
            commas=True,
            shown="by their names, as noted",
        ),
    ] = ()
    ignore: Annotated[
        tuple[str, ...],
        setting("Columns, or patterns of their names, to leave out.", metavar="NAME", commas=True),
    ] = ()
    scores: Annotated[
        tuple[str, ...],
        setting(
            "A column of an OOD score of your own, larger where an example is more uncertain, in the files of the test "
            "set and of every OOD set. Repeat it.",
            option="score",
            metavar="COLUMN",
            commas=True,
        ),
    ] = ()
    outputs: Annotated[
        Literal["logits", "probabilities", "percentages", "log_probabilities", "draws_of_target", "draws_of_mean"]
        | None,
        setting(
            "What the numbers are: logits, probabilities, percentages or log_probabilities; draws_of_target or "
            "draws_of_mean of a regression.",
            metavar="NAME",
            shown="by names and numbers",
        ),
    ] = None
    task: Annotated[
        Literal["classification", "multilabel", "regression"] | None,
        setting("classification, multilabel or regression.", metavar="NAME", shown="by the labels"),
    ] = None
    classes: Annotated[
        tuple[str, ...] | None,
        setting("Names of the classes, in the order of the columns, or a file of them.", metavar="LIST", commas=True),
    ] = None
    out: Annotated[str | None, setting("Result file.", short="o", metavar="FILE", shown="FILE.score.h5")] = None


class SweepSection(Section, frozen=True):
    """[sweep]: the sizes of `sweep-batch-size`, with R draw sets of `samples` draws at each size, and its ELBO.

    `train_points` of the reference represent the training set. `prior_mean` and `prior_deviation` are mean and variance
    of the Gaussian priors of a channel's mean and of its standard deviation; `prior_precision` is Nτλ of a weight
    decay.
    """

    batch_sizes: Annotated[
        Annotated[tuple[Positive, ...], Meta(min_length=1)] | None,
        setting(
            "Sizes to sweep, with commas. With several models: in addition to their training batch sizes.",
            shown="16,32,…,2048, up to half the training set",
            expected="whole numbers from 1 to 10^12, such as 32,128,512",
        ),
    ] = None
    draw_sets: Annotated[
        int,
        Meta(ge=2, le=MAX_COUNT),
        setting("Independent draw sets R at each size; their spread is the error.", "Sampling"),
    ] = 5
    full_grid: Annotated[
        bool,
        setting(
            "Evaluate every size with all draw sets, instead of adding both until recommendation and MI's decay are "
            "decided.",
            "Sampling",
        ),
    ] = False
    budget: Annotated[
        Positive | None,
        setting(
            "Forward passes after which no sizes or draw sets are added; the first ones are always evaluated.",
            "Sampling",
            metavar="PASSES",
            shown="those of the full grid",
        ),
    ] = None
    train_points: Annotated[
        Positive, setting("Training examples that the ELBO's likelihood is computed on, without augmentation.", "ELBO")
    ] = 1000
    criterion: Annotated[
        SizeCriterion,
        setting(
            "Criterion for recommending a size: elbo, on training examples; or pll or auroc (mean over OOD sets), on "
            "validation examples if there are any, otherwise on the test set."
        ),
    ] = "elbo"
    prior: Annotated[
        PriorKind, setting("p(ω): unit (one value's information), gaussian, weight_decay, flat or gamma.", "ELBO")
    ] = "unit"
    prior_mean: Annotated[
        tuple[Finite, PositiveNumber] | None,
        setting(
            "gaussian: mean and variance of a channel's mean.",
            "ELBO",
            metavar="MEAN,VARIANCE",
            expected=_MEAN_AND_VARIANCE_EXPECTED,
        ),
    ] = None
    prior_deviation: Annotated[
        tuple[Finite, PositiveNumber] | None,
        setting(
            "gaussian: mean and variance of a channel's standard deviation.",
            "ELBO",
            metavar="MEAN,VARIANCE",
            expected=_MEAN_AND_VARIANCE_EXPECTED,
        ),
    ] = None
    prior_precision: Annotated[
        FinitePositive | None, setting("weight_decay: Nτλ, for a loss with λ‖W‖² (not λ/2).", "ELBO")
    ] = None
    counts: Annotated[
        Counts,
        setting(
            "Number of values behind a channel's statistics, in the KL: nominal (b times positions), or measured "
            "(effective, from how much the draws vary).",
            "ELBO",
        ),
    ] = "measured"
    kl_weight: Annotated[
        float,
        Meta(ge=0, le=1e9),
        setting("Weight of the KL; below 1 avoids counting correlated channels twice.", "ELBO"),
    ] = 1.0


class RunsSection(Section, frozen=True):
    """[runs]: several runs, one for every split and seed, which replace `{split}` and `{seed}` in the file's texts."""

    split: tuple[Seed, ...] | None = None
    seed: tuple[Seed, ...] | None = None


class GateSection(Section, frozen=True):
    """[gate]: which estimates `bnuq check` holds a result to, in the place of those that the baseline decided by."""

    estimates: Annotated[
        tuple[str, ...],
        setting(
            "What is gated instead of the roughly ten estimates that the baseline chose: metrics or addresses "
            "(accuracy, mcbn.*); by-class and by-group add the accuracy of each class or group. Repeat it.",
            "Tolerances",
            option="gate",
            metavar="PATTERN",
            shown="listed by bnuq evaluate --json",
            commas=False,
        ),
    ] = ()


class CheckSection(Section, frozen=True):
    """[check]: how `bnuq check` compares: tolerances by metric or address, minimums (ADDRESS>=NUMBER), and what may
    differ between the two results."""

    tolerance: Annotated[
        dict[str, float | str],
        setting(
            "How much worse an estimate may be: pll=0.01, rmse=2%, auroc=2se (standard errors), fpr95=off; for a "
            "metric, or for addresses: mcbn.ood.*.auroc=0.02. Repeat it.",
            "Tolerances",
            metavar="METRIC=AMOUNT",
            shown="by metric; see bnuq metrics",
            commas=False,
        ),
    ] = {}
    require: Annotated[
        tuple[str, ...],
        setting(
            "A minimum, with or without a baseline: mcbn.ood.svhn.mutual_information.auroc>=0.85. Repeat it.",
            "Tolerances",
            metavar="ADDRESS>=NUMBER",
            commas=False,
        ),
    ] = ()
    allow: Annotated[
        tuple[str, ...],
        setting(
            "Differences to allow: samples, batch-size, sampling, scoring, data, data:SET, "
            "missing:ADDRESS (such as missing:mcdo). Repeat it.",
            "Tolerances",
            metavar="NAME",
            commas=False,
        ),
    ] = ()
    inconclusive: Annotated[
        Literal["warn", "fail"],
        setting("What happens if an estimate is worse by more than tolerated, but not significantly.", "Tolerances"),
    ] = "warn"
    power: Annotated[
        Annotated[float, Meta(gt=0, lt=1)] | None,
        setting(
            "Refuse a check in which a loss as large as a tolerance would be significant less often than this: 0.8.",
            "Tolerances",
            expected="a number above 0 and below 1, such as 0.8",
            shown="none",
        ),
    ] = None


class InspectSection(Section, frozen=True):
    """The settings of `inspect`; options only, not part of a run file."""

    domain: Annotated[
        tuple[str, ...],
        setting(
            "Examples of one laboratory, camera or site, as NAME=REF: reports which layers separate it from the "
            "training set, and the effect of its statistics. Repeat it, or use commas.",
            metavar="NAME=REF",
            commas=True,
        ),
    ] = ()
    suggest_pipeline: Annotated[
        bool, setting("Try the common normalisations and augmentations, and report which the network was trained with.")
    ] = False
    input_shape: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=2**24)], ...] | None,
        setting(
            "Shape of an example, without the batch axis, if no data can be read: 3,32,32.",
            "Data",
            shown="found by trying",
            expected="whole numbers, such as 3,32,32",
        ),
    ] = None
    points: Annotated[
        int,
        Meta(ge=8, le=MAX_COUNT),
        setting("Training examples that the population statistics are computed from.", "Sampling"),
    ] = 10_000
    draws: Annotated[
        int, Meta(ge=8, le=MAX_COUNT), setting("Mini-batches per size that the noise is measured on.", "Sampling")
    ] = 64
    batch_size: Annotated[
        BatchSize | None,
        setting("Mini-batch size that the noise is measured at.", "Sampling", short="b", shown="as in training"),
    ] = None
    samples: Annotated[
        int,
        Meta(ge=2, le=MAX_COUNT),
        setting("Stochastic forward passes T with the mini-batches of each domain.", "Sampling", short="T"),
    ] = 16


class PreciseBnSection(Section, frozen=True):
    """The settings of `precise-bn`; options only, not part of a run file."""

    estimator: Annotated[
        PopulationEstimator,
        setting(
            "population (all values of the mini-batches together), mean_of_var (mean of their unbiased variances) or "
            "full (all examples as one batch)."
        ),
    ] = "population"
    points: Annotated[
        int,
        Meta(ge=2, le=MAX_COUNT),
        setting("Upper limit of examples of the training set, drawn without replacement."),
    ] = 10_000
    batch_size: Annotated[
        BatchSize | None, setting("Upper limit of examples per mini-batch.", short="b", shown="as in training")
    ] = None


class MonitorSection(Section, frozen=True):
    """The settings of `monitor`; options only, not part of a run file."""

    batch: Annotated[
        str | None,
        setting(
            f"The unlabelled examples to compare with the reference: {REFERENCE}. Without it only a baseline is made.",
            metavar="REF",
            shown="none",
        ),
    ] = None
    baseline: Annotated[
        str | None,
        setting(
            "File with the statistics of the reference: made from --test if it does not exist, and then used without "
            "any data.",
            metavar="FILE",
            shown="none",
        ),
    ] = None
    stream: Annotated[
        str | None,
        setting(
            "File of the earlier batches. This batch is added to it; it is created if it does not exist. Its alarm "
            "allows for looking at every batch.",
            metavar="FILE",
            shown="none",
        ),
    ] = None
    level: Annotated[
        Annotated[float, Meta(gt=0, lt=1, extra={"expected": "a number between 0 and 1"})],
        setting("Probability of a false alarm, over all batches together."),
    ] = 0.01
    resamples: Annotated[
        int,
        Meta(ge=99, le=10**6),
        setting("Random batches that a p-value is computed from; the smallest is 1/(N + 1).", metavar="N"),
    ] = 1999


class RunFile(Section, frozen=True):
    """A run file, as written."""

    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    sampling: SamplingSection = SamplingSection()
    tta: Annotated[TtaSection | None, Meta(extra={"needs": "a method of test-time augmentation"})] = None
    scoring: ScoringSection = ScoringSection()
    certificate: CertificateSection = CertificateSection()
    sweep: SweepSection = SweepSection()
    runs: RunsSection | None = None
    check: CheckSection | None = None
    gate: GateSection | None = None


class RecordedOptions(Section, frozen=True):
    """[options]: the options that a result file records although run files do not hold them. The permission to run code
    is not recorded.

    `folders` holds the folder of a `package.module:factory` that is not part of the environment.
    """

    device: Annotated[
        Annotated[str, Meta(pattern=r"^(auto|cpu|cuda(:[0-9]+)?)\Z")] | None,
        setting(
            "Device: auto (a GPU if there is one), cpu, cuda or cuda:N.",
            "Computation",
            metavar="auto|cpu|cuda",
            shown="auto",
            expected="auto, cpu, cuda or cuda:N",
        ),
    ] = None
    precision: Annotated[
        Precision | None,
        setting(
            "Arithmetic of the samples: float32, tf32, float16, bfloat16, float64; or auto, torch's own, but float32 "
            "where that deviates by more than the Monte Carlo error.",
            "Computation",
            shown="auto",
        ),
    ] = None
    chunk_size: Annotated[
        Positive | None,
        setting(
            "Examples per chunk: limits memory, and changes results only by rounding (1e-7).",
            "Computation",
            shown="by the free memory",
        ),
    ] = None
    threads: Annotated[
        Annotated[int, Meta(ge=1, le=4096)] | None,
        setting("CPU threads for computation.", "Computation", shown="all cores"),
    ] = None
    limit: Annotated[Positive | None, setting("At most this many examples of each evaluated set.", shown="all")] = None
    save_samples: Annotated[bool, setting("Store the raw outputs (T, n, K) in the result file.", "Output")] = False
    save_maps: Annotated[
        bool, setting("Store the class and the scores of every pixel of a segmentation in the result file.", "Output")
    ] = False
    images: Annotated[
        bool,
        setting(
            "Store no small copies of images in the result file. By default there are at most 48: confident "
            "mistakes, the most uncertain ones, OOD images that look familiar; for a segmentation, the images "
            "named by --images, and 4 others, with their maps.",
            "Output",
            no="only",
            shown="",
            needs="pictures",
        ),
    ] = True
    show_images: Annotated[
        tuple[str | Annotated[int, Meta(ge=0, le=MAX_COUNT)], ...],
        setting(
            "Test images of a segmentation to show on the page in addition to the worst, the best and the most "
            "uncertain one, by number or name: 3,frame_07.png.",
            "Output",
            option="images",
            metavar="LIST",
            commas=True,
        ),
    ] = ()
    data_root: Annotated[
        str | None, setting("Folder of known data sets, searched before $BNUQ_DATA.", "Data", metavar="DIR")
    ] = None
    folders: dict[str, str] = {}


class RecordedRun(RunFile, frozen=True):
    """A run as it is recorded in a result file."""

    options: RecordedOptions = RecordedOptions()


class GivenOptions(RecordedOptions, frozen=True):
    """The recorded options, and those that are not recorded."""

    out: Annotated[str | None, setting("Result file.", short="o", metavar="FILE", shown="MODEL.bnuq.h5")] = None
    on: Annotated[
        Annotated[str, Meta(pattern=r"^(local(:[1-9][0-9]{0,3})?|ray)\Z")],
        setting(
            "Where to compute the units of work: in this process (local), in N processes of this machine (local:N), or "
            "on the workers of a Ray cluster (ray; needs bnuq[ray]).",
            "Computation",
            metavar="local|local:N|ray",
            expected="local, local:N of N processes, or ray",
        ),
    ] = "local"
    download: Annotated[bool, setting("Download known data sets that are not found, such as svhn.", "Data")] = False
    trust_pickle: Annotated[bool, setting("Run the code inside a pickled network or a .pt2.", "Safety")] = False
    trust_code: Annotated[
        bool, setting("Run code that is named only in a file that bnuq found, and remember the permission.", "Safety")
    ] = False


class Request(RunFile, frozen=True):
    """A run file, overridden by the options of the command line."""

    options: GivenOptions = GivenOptions()


@functools.cache
def settings_of(section: type[Section]) -> Mapping[str, msgspec.structs.FieldInfo]:
    """The settings of a section, by their keys."""
    return {field.name: field for field in msgspec.structs.fields(section)}


@functools.cache
def extra_of(hint: Any) -> dict[str, Any]:
    """The `extra` entries of a setting's type."""
    return {
        key: value for part in parts_of(hint) if isinstance(part, Meta) for key, value in (part.extra or {}).items()
    }


def choices_of(hint: Any) -> tuple[str, ...]:
    """The texts that a Literal in this type allows."""
    return tuple(text for part in parts_of(hint) if get_origin(part) is Literal for text in get_args(part))


def parts_of(hint: Any) -> Iterator[Any]:
    """A type, and its nested types and annotations."""
    yield hint
    if get_origin(hint) is Annotated:
        yield from hint.__metadata__
        yield from parts_of(hint.__origin__)
    elif get_origin(hint) is not Literal:
        for inner in get_args(hint):
            yield from parts_of(inner)


def option_name(key: str, hint: Any) -> str:
    """The option of a setting of this type, without its dashes."""
    return str(extra_of(hint).get("option", key)).replace("_", "-")
