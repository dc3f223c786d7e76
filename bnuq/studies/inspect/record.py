"""The record of an inspection and its file: the sites of a network, the health of its BatchNorm, its
noise, and the domains and pipelines that its statistics distinguish."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from bnuq.estimates import Axis, Coordinate, Count, Estimate, FileOnly, MetricName, Prefix, Size, require
from bnuq.findings import Finding
from bnuq.frozen import frozen
from bnuq.records.as_json import json_of, shown
from bnuq.shapes import Float
from bnuq.store import codec
from bnuq.store.codec import write as write

FEW_VALUES = 50  # of a channel, below which biased and unbiased variance differ by more than 1 % in scale
SURE = 2.0  # times as far off as the closest pipeline, beyond which others are ruled out where none fits

Flag = Literal["never-trained", "frozen", "not-finite", "vanishing", "untracked", "called-again"]


@frozen
class SiteRow:
    """One call of a BatchNorm or a dropout in the evaluation-mode forward, or one draw of learned noise; `reason` says
    why it is not stochastic.

    `positions` are the values of a channel that one point contributes (z); `momentum` is torch's, None for a cumulative
    average. `vanishing` counts channels whose running variance is below 10 ε. `numbers` are the random numbers of one
    draw of noise, or, where `per_point`, of one point. What other kinds have is None.
    """

    name: str
    kind: Literal["batchnorm", "dropout", "learned"]
    order: Count
    reason: str = ""
    flags: tuple[Flag, ...] = ()
    channels: Count | None = None
    positions: Count | None = None
    eps: float | None = None
    momentum: float | None = None
    vanishing: Count | None = None
    p: float | None = None
    variety: str | None = None
    numbers: Count | None = None
    per_point: bool | None = None

    @shown
    def stochastic(self) -> bool:
        return not self.reason


@frozen
class LayerGap:
    """One layer's running statistics against the reference population's, channel by channel.

    `shift` is (m_EMA − m_pop)/σ_pop, `log_ratio` ln(v_EMA/v_pop), both with σ² + ε for the variance, so that a channel
    that hardly varies counts as it is divided. `explained_shift` and `explained_log_ratio` are the root mean squares
    that batch noise explains under a fixed network, by the noise that was measured; NaN for a cumulative average.
    `ratio_mean` and `ratio_log_variance` are the reference check's: in units of batch noise, over what it explains (1
    is normal); NaN if the layer could not be checked.
    `dead` channels have a batch variance below 10 ε in some batch. Source: spec of PreciseBN's diagnostic (Wu & Johnson
    2021).
    """

    name: str
    shift: Annotated[Float[np.ndarray, " channel"], FileOnly()]
    log_ratio: Annotated[Float[np.ndarray, " channel"], FileOnly()]
    explained_shift: float
    explained_log_ratio: float
    ratio_mean: float
    ratio_log_variance: float
    dead: Count

    def __post_init__(self) -> None:
        if not len(self.shift):
            raise ValueError("a layer has no channels")

    @shown
    def channels(self) -> int:
        return len(self.shift)

    @shown
    def rms_shift(self) -> float:
        with np.errstate(over="ignore", invalid="ignore"):
            return float(np.sqrt(np.mean(np.square(self.shift, dtype=np.float64))))

    @shown
    def mean_log_ratio(self) -> float:
        """Mean |ln(v_EMA/v_pop)|."""
        with np.errstate(over="ignore", invalid="ignore"):
            return float(np.mean(np.abs(self.log_ratio), dtype=np.float64))


@frozen
class Gap:
    """The running averages against the population of `points` reference points (batches of `batch_size`).

    `worth` is the number of samples that the running averages hold, M(2 − m)/m, None if momentum or M is not known.
    `passed` is the reference check's verdict, None if nothing could be checked.
    """

    points: Size
    batch_size: Size
    worth: float | None
    passed: bool | None
    layers: tuple[LayerGap, ...]


@frozen
class LayerNoise:
    """The noise of one layer's batch statistics, R draws of `NoiseBySize.batch_size`, values of all channels.

    `sigma_u`, `sigma_v`: sd over draws (ddof 1) of U = σ/S and V = (μ − M)/σ, mean over channels. `nominal` = b·z
    values a channel; `values_mean` = σ²/Var(M) and `values_deviation` (1/(2 Var U) of many, by Var ln S² of few) are
    the independent ones that the statistics move like, pooled over channels (`metrics.effective_counts`).
    `spread` holds S²/σ² (biased S²) of every draw and channel, NaN if σ² < 10 ε or some S² is 0: such channels are
    left out of every estimate. `rejected`: share of channels whose S² is not in proportion to χ² with n − 1 degrees of
    freedom (Kolmogorov–Smirnov, false discovery rate 5 %), by the nominal n, and as many more degrees as drawing
    without replacement takes off the noise; `rejected_fitted`: the same with ν = 2·mean²/variance degrees of each
    channel. Both concern only the shape: S² is in units of the draws' own mean, as all draws share the error of σ².
    `slope` is that of ln Var[(x − M)/S] at x = μ on ln b, −1 expected, with the error from its residuals as
    `mc_se` and Student's interval; `variances` are those variances (mean over channels) at `NoiseBySize.sizes`.
    `unbiased_scale` is √(n/(n − 1)), what normalising by the unbiased variance changes.
    Source: Shekhovtsov & Flach 2018, §3.1.
    """

    name: Annotated[str, Coordinate("layer")]
    channels: Count
    positions: Count
    nominal: Count
    sigma_u: float
    sigma_v: float
    values_mean: float
    values_deviation: float
    rejected: float
    rejected_fitted: float
    slope: Estimate | None
    variances: Float[np.ndarray, " size"]
    unbiased_scale: float
    spread: Annotated[Float[np.ndarray, "draw channel"], FileOnly()]


@frozen
class NoiseBySize:
    """The noise of BatchNorm's statistics at `batch_size` (R = `draws`), and how it falls with the size.

    `sizes` hold `batch_size`, unless it leaves a layer fewer than 8 values. `spatial_slope` is that of ln(b·Var) on
    ln z across layers that have a variance: only roughly −1 is expected; None if all have the same z.
    """

    batch_size: Size
    draws: Size
    sizes: Annotated[tuple[Size, ...], Axis("size")]
    layers: tuple[LayerNoise, ...]
    spatial_slope: Estimate | None

    def __post_init__(self) -> None:
        if any(layer.variances.shape != (len(self.sizes),) for layer in self.layers):
            raise ValueError("a layer has not one variance for each size")
        if any(layer.spread.shape[0] != self.draws or not layer.spread.shape[1] for layer in self.layers):
            raise ValueError("the spread of a layer is not of every draw")


@frozen
class Domain:
    """One domain: `n` points, half of them for its statistics. By layer: its population's distance from the reference's
    (`shift`: RMS over channels of (m_domain − m_train)/σ_train, `log_ratio`: mean |ln(v_domain/v_train)|) and over what
    batch noise explains (`ratio`, the larger of mean and log variance; 1 is normal). All with σ² + ε for the variance,
    and without the channels whose variance is below 10 ε in both; NaN if no channel is left."""

    name: str
    reference: str
    n: Count
    labelled: bool
    layers: Annotated[tuple[str, ...], Axis("layer")]
    shift: Float[np.ndarray, " layer"]
    log_ratio: Float[np.ndarray, " layer"]
    ratio: Float[np.ndarray, " layer"]


@frozen
class Crossing:
    """The points of `domain` (the half that gave no statistics) under the statistics of `statistics`: "running", a
    domain's name, "train" or "mixed" (all domains alike). `estimates`: accuracy and pll of the network with the
    population statistics where the domain is labelled, rmse of a regression; mutual_information (variance) of MCBN
    with mini-batches from there, in the layers that the run samples. `gains` are the changes of the former from the
    running statistics to the domain's own, with their errors over the points that both share."""

    domain: Annotated[str, Coordinate("domain")]
    statistics: Annotated[str, Coordinate("statistics")]
    estimates: Mapping[MetricName, Estimate]
    gains: Mapping[Annotated[str, Coordinate("metric"), Prefix("gain_")], Estimate] = field(default_factory=dict)


@frozen
class Domains:
    domains: tuple[Domain, ...]
    crossings: tuple[Crossing, ...]
    batch_size: Size
    samples: Size


@frozen
class PipelineFit:
    """A training pipeline that was tried. `normalize` names where mean and std come from ("imagenet", "the data's own",
    …; None for none), `scale` is what uint8 pixels run to (1 or 255), `augment` is in words ("pad 4, crop 32"; "" for
    none). `median` and `worst` are the reference check's ratios (1 is batch noise) in the median and the worst layer.
    `tied`: the statistics cannot distinguish it from the best."""

    normalize: str | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    channel_order: Literal["rgb", "bgr"]
    scale: Literal[1, 255]
    augment: str
    median: float
    worst: float
    worst_layer: str
    passed: bool
    tied: bool


@frozen
class Pipelines:
    """The candidates, best first; what the statistics leave open, in words; and the lines for the run file.

    `first_round` are the candidates eliminated on fewer batches, with their ratios there.
    """

    candidates: tuple[PipelineFit, ...]
    first_round: tuple[PipelineFit, ...]
    undetermined: tuple[str, ...]
    lines: str


@frozen
class Inspection:
    """The result of one `bnuq inspect`; fields that need a reference are None without one."""

    KIND: ClassVar[str] = "inspection"
    COMMAND: ClassVar[str] = "inspect"
    run: Mapping[str, Any]
    model: Mapping[str, Any]
    sites: tuple[SiteRow, ...]
    unreachable: tuple[tuple[str, str], ...]  # (layer, why)
    gap: Gap | None
    noise: NoiseBySize | None
    domains: Domains | None
    pipelines: Pipelines | None
    findings: tuple[Finding, ...]
    seconds: Mapping[str, float]
    provenance: Mapping[str, Any]
    path: Path | None = None

    def __post_init__(self) -> None:
        counts = dict.fromkeys(("parameters", "batchnorm_layers", "dropout_layers", "learned_layers"), Count)
        require(self.model, path=str, train_batch_size=Size | None, **counts)
        require(self.seconds, total=float)
        require(self.provenance, bnuq=str)


read = partial(codec.read, Inspection, summary=json_of)
