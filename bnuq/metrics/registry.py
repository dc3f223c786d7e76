"""The table of all estimates and OOD scores, which evaluation, files, sweep, gate and reports read.

The order is that in which tables show them. A new one is a row here, and nothing else but its formula.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from bnuq.metrics.calibration import (
    calibration_bins,
    ece_adaptive_of_replicates,
    ece_debiased_of_bins,
    ece_of_bins,
    mce_of_bins,
)
from bnuq.metrics.classification import (
    brier,
    correct,
    entropy,
    expected_entropy,
    least_confidence,
    max_probability,
    mutual_information,
    pll_classification,
)
from bnuq.metrics.detection import DetectionScores, error_auroc_of_replicates
from bnuq.metrics.estimands import (
    POSITIVE,
    UNBOUNDED,
    Estimand,
    Formula,
    Place,
    Score,
    errors_by,
    mean_of_sum,
    normalized_between_bounds,
    selective_by_entropy,
)
from bnuq.metrics.influence import (
    ece_adaptive_influence,
    ece_debiased_influence,
    ece_influence,
    label_auroc_influence,
    rmse_influence,
    spearman_influence,
)
from bnuq.metrics.intervals import spearman_of_replicates
from bnuq.metrics.posthoc import (
    by_clipped_energy,
    by_mahalanobis,
    by_neighbours,
    by_relative_mahalanobis,
    by_virtual_logit,
    energy,
    generalized_entropy,
    max_logit,
)
from bnuq.metrics.selective import SelectiveScores
from bnuq.tasks import TaskName

_CLASSIFICATION: frozenset[TaskName] = frozenset({"classification"})
_REGRESSION: frozenset[TaskName] = frozenset({"regression"})
_SEGMENTATION: frozenset[TaskName] = frozenset({"segmentation"})
_CLASSES = _CLASSIFICATION | _SEGMENTATION
_EVERY = _CLASSES | _REGRESSION

_STEPS: dict[str, Any] = {"mc_error": "bootstrap"}
_TRUTH: dict[str, Any] = {"needs_truth": True}
_CALIBRATION = frozenset({"max_probability", "accuracy"})  # what formulas of calibration need
_OF_SCALE: dict[str, Any] = {"digits": None}
_LARGER_ERRORS: dict[str, Any] = {
    "worse": "{who} has larger errors on {where}",
    "better": "{who} has smaller errors on {where}",
}
_NORMALIZED: dict[str, Any] = {
    "tolerance": "5",
    "worse": "the uncertainty of {who} is less useful, compared with a constant one",
    "better": "the uncertainty of {who} is more useful, compared with a constant one",
}
_CALIBRATED: dict[str, Any] = {
    "worse": "the confidence of {who} on {where} is further from its accuracy",
    "better": "the confidence of {who} on {where} is closer to its accuracy",
}
_DEFERRED: dict[str, Any] = {
    "worse": "deferring the most uncertain examples of {where} leaves {who} with more errors",
    "better": "deferring the most uncertain examples of {where} leaves {who} with fewer errors",
}
_SEPARATION: dict[str, Any] = {
    "worse": "{who} separates {where} from the test set less well",
    "better": "{who} separates {where} from the test set better",
}


def _sets(suffix: str, name: str, source: str) -> tuple[Estimand, Estimand]:
    """Size and coverage of the prediction sets of this name."""
    return Estimand(
        f"set_size{suffix}", f"Mean size of the prediction sets, {name}", f"size of {name} sets", "classes", "lower",
        source, short=f"{name} set size", **_STEPS, **_TRUTH, tasks=_CLASSIFICATION, limits=POSITIVE,
        worse="the prediction sets of {who} on {where} are larger",
        better="the prediction sets of {who} on {where} are smaller",
    ), Estimand(
        f"set_coverage{suffix}", f"Share of examples whose prediction set has the true class, {name}",
        f"coverage of {name} sets", "fraction", "none", f"{source}; nominal best", short=f"{name} coverage",
        **_STEPS, **_TRUTH, tasks=_CLASSIFICATION,
    )  # fmt: skip


_OVERLAP: dict[str, Any] = {
    "worse": "the segments that {who} predicts on {where} overlap less with the true ones",
    "better": "the segments that {who} predicts on {where} overlap more with the true ones",
}
_PIXELS: dict[str, Any] = {
    "worse": "{who} separates the pixels of {where} from those of the test set less well",
    "better": "{who} separates the pixels of {where} from those of the test set better",
}

ESTIMANDS: tuple[Estimand, ...] = (
    Estimand(
        "accuracy", "Accuracy", "accuracy", "fraction", "higher",
        "share of examples whose most probable class is the true one", tolerance="0.005", **_STEPS, percent=True,
        worse="{who} is right less often on {where}", better="{who} is right more often on {where}",
        tasks=_CLASSES, required=_CLASSES, **_TRUTH, of_mean=correct, by_label=True, by_part=True,
        shown=frozenset({"sweep", "headline", "sensitivity", "convergence", "gate", "gate-first"}),
        meaning="share of test {unit} that are right",
    ),
    Estimand(
        "label_auroc", "AUROC of the labels, mean over the labels of an example", "label AUROC", "fraction", "higher",
        "Hanley & McNeil 1982; macro mean as Tsoumakas et al. 2010", tolerance="0.01",
        worse="{who} ranks the examples of {where} by their labels less well",
        better="{who} ranks the examples of {where} by their labels better",
        tasks=_CLASSIFICATION, **_TRUTH, by_label=True, shown=frozenset({"headline", "gate"}),
        formula=Formula(
            frozenset({"label_score", "label"}),
            lambda p: error_auroc_of_replicates(p["label_score"], 1.0 - p["label"]),
            lambda p, _: label_auroc_influence(p["label_score"], p["label"]),
        ),
    ),
    Estimand(
        "mean_iou", "Mean intersection over union, of the classes of the masks", "mean IoU", "fraction", "higher",
        "Everingham et al. 2015; of all pixels together", tolerance="0.005", **_OVERLAP,
        tasks=_SEGMENTATION, required=_SEGMENTATION, **_TRUTH, shown=frozenset({"headline", "gate", "gate-first"}),
    ),
    Estimand(
        "rmse", "Root mean square error", "RMSE", "target unit", "lower",
        "√(Σ‖y − f̄‖²/n), as Teye et al. 2018 (their code)", tolerance="1%", **_OF_SCALE, **_LARGER_ERRORS,
        tasks=_REGRESSION, required=_REGRESSION, **_TRUTH, limits=POSITIVE,
        shown=frozenset({"headline", "sensitivity", "convergence", "curve", "gate", "gate-first"}),
        formula=Formula(
            frozenset({"squared_error"}),
            lambda p: np.sqrt(np.mean(p["squared_error"], axis=1)),
            lambda p, _: rmse_influence(p["squared_error"]),
        ),
        meaning="root mean square error, in the unit of the targets",
    ),
    Estimand(
        "mae", "Mean absolute error", "MAE", "target unit", "lower", "mean of |y − f̄| over examples and outputs",
        tolerance="1%", **_OF_SCALE, **_LARGER_ERRORS,
        tasks=_REGRESSION, required=_REGRESSION, **_TRUTH, limits=POSITIVE, shown=frozenset({"sweep"}),
    ),
    Estimand(
        "pll", "Predictive log-likelihood", "PLL", "nats", "higher", "Teye, Azizpour & Smith 2018", tolerance="0.01",
        worse="{who} explains the {truth} of {where} less well", better="{who} explains the {truth} of {where} better",
        tasks=_EVERY, required=_CLASSES, **_TRUTH, limits=UNBOUNDED, of_samples=pll_classification,
        by_label=True, by_part=True,
        shown=frozenset({"sweep", "headline", "sensitivity", "convergence", "curve", "gate", "gate-first"}),
        meaning="predictive log-likelihood, mean log-{truth}",
    ),
    Estimand(
        "crps", "Continuous ranked probability score", "CRPS", "target unit", "lower",
        "Gneiting & Raftery 2007, §4.2; of N(f̄, v + 1/τ) as Teye et al. 2018", tolerance="1%", **_OF_SCALE,
        worse="the predictive distribution of {who} is further from the targets of {where}",
        better="the predictive distribution of {who} is closer to the targets of {where}",
        tasks=_REGRESSION, **_TRUTH, limits=POSITIVE,
        shown=frozenset({"sweep", "headline", "sensitivity", "convergence", "curve", "gate", "gate-first"}),
        meaning="continuous ranked probability score, the distance between prediction and target, in its unit",
    ),
    Estimand(
        "brier", "Brier score", "Brier score", "squared probability", "lower", "Brier 1950", tolerance="0.005",
        worse="the probabilities that {who} predicts on {where} are further from the labels",
        better="the probabilities that {who} predicts on {where} are closer to the labels",
        tasks=_CLASSES, **_TRUTH, limits=(0.0, 2.0), of_mean=brier, by_label=True, shown=frozenset({"sweep"}),
    ),
    Estimand(
        "ece", "Expected calibration error", "ECE", "fraction", "lower", "Guo et al. 2017, eq. 3; 15 bins",
        tolerance="0.01", **_STEPS, **_CALIBRATED, tasks=_CLASSES, required=_CLASSES, **_TRUTH, by_label=True,
        shown=frozenset({"headline", "sensitivity", "gate"}),
        formula=Formula(
            _CALIBRATION,
            lambda p: ece_of_bins(calibration_bins(p["max_probability"], p["accuracy"])),
            lambda p, group: ece_influence(p["max_probability"], p["accuracy"], group=group),
        ),
        resampled=True,
        meaning="expected calibration error, mean gap of confidence and accuracy",
    ),
    Estimand(
        "ece_adaptive", "Adaptive calibration error, in bins of equal counts", "adaptive ECE", "fraction", "lower",
        "Nguyen & O'Connor 2015; Nixon et al. 2019; 15 bins", **_STEPS, **_CALIBRATED, tasks=_CLASSIFICATION, **_TRUTH,
        formula=Formula(
            _CALIBRATION,
            lambda p: ece_adaptive_of_replicates(p["max_probability"], p["accuracy"]),
            lambda p, group: ece_adaptive_influence(p["max_probability"], p["accuracy"], group=group),
        ),
    ),
    Estimand(
        "ece_classwise", "Classwise calibration error, mean over classes", "classwise ECE", "fraction", "lower",
        "Kull et al. 2019, §2; Nixon et al. 2019; 15 bins",
        worse="the probabilities of {who} on {where} are further from the shares of the classes",
        better="the probabilities of {who} on {where} are closer to the shares of the classes",
        tasks=_CLASSES, **_TRUTH,
    ),
    Estimand(
        "ece_debiased", "Root mean square calibration error, debiased", "debiased RMS calibration error", "fraction",
        "lower", "Kumar, Liang & Ma 2019, §5; 15 bins", short="debiased RMSCE", **_STEPS, **_CALIBRATED,
        tasks=_CLASSIFICATION, **_TRUTH,
        formula=Formula(
            _CALIBRATION,
            lambda p: ece_debiased_of_bins(calibration_bins(p["max_probability"], p["accuracy"])),
            lambda p, _: ece_debiased_influence(p["max_probability"], p["accuracy"]),
        ),
    ),
    Estimand(
        "mce", "Maximum calibration error", "MCE", "fraction", "lower",
        "Naeini, Cooper & Hauskrecht 2015; Guo et al. 2017, eq. 5; 15 bins", **_STEPS, **_CALIBRATED,
        tasks=_CLASSIFICATION, **_TRUTH, leaps=True,
        formula=Formula(
            _CALIBRATION,
            lambda p: mce_of_bins(calibration_bins(p["max_probability"], p["accuracy"])),
            lambda p, _: np.full(len(p["accuracy"]), math.nan),
        ),
        resampled=True,
    ),
    Estimand(
        "mutual_information", "Mutual information", "mutual information", "nats", "none",
        "Houlsby et al. 2011; Mukhoti et al. 2020", short="mutual info.",
        tasks=_CLASSES, required=_CLASSES, needs_samples=True, limits=POSITIVE,
        of_samples=lambda p, _: mutual_information(p), by_label=True,
        shown=frozenset({"sweep", "convergence", "curve"}),
        score=Score("probabilities", needs_samples=True, of_pixels=True, is_alarm=True),
        meaning="disagreement between samples",
    ),
    Estimand(
        "predictive_entropy", "Predictive entropy", "predictive entropy", "nats", "none", "Gal 2016, §3.3.1",
        short="pred. entropy", tasks=_CLASSES, required=_CLASSES, limits=POSITIVE, of_mean=lambda p, _: entropy(p),
        score=Score("probabilities", of_pixels=True, is_alarm=True), shown=frozenset({"sweep"}),
        meaning="spread of probabilities",
    ),
    Estimand(
        "expected_entropy", "Expected entropy", "expected entropy", "nats", "none",
        "Gal 2016, §3.3.1; Mukhoti et al. 2020", short="exp. entropy",
        tasks=_CLASSES, limits=POSITIVE, of_samples=lambda p, _: expected_entropy(p),
        score=Score("probabilities", needs_samples=True, of_pixels=True), shown=frozenset({"sweep"}),
    ),
    Estimand(
        "least_confidence", "Least confidence (1 − maximum probability)", "least confidence", "fraction", "none",
        "Hendrycks & Gimpel 2017", short="least conf.", of_mean=lambda p, _: least_confidence(p),
        score=Score("probabilities", of_pixels=True),
    ),
    Estimand(
        "max_probability", "Maximum probability", "max. probability", "fraction", "none", "Hendrycks & Gimpel 2017",
        short="max. prob.", **_STEPS, tasks=_CLASSES, required=_CLASSES, of_mean=lambda p, _: max_probability(p[None]),
    ),
    Estimand(
        "aurc", "Area under the risk–coverage curve, by predictive entropy", "AURC", "fraction", "lower",
        "Geifman, Uziel & El-Yaniv 2019; error–completeness by entropy as Shekhovtsov & Flach 2018, fig. A.3",
        tolerance="0.005", **_STEPS, **_DEFERRED,
        tasks=_CLASSES, **_TRUTH, formula=selective_by_entropy("aurc"), resampled=True, shown=frozenset({"gate"}),
        meaning="mean share of wrong predictions as ever more of the most uncertain are left out",
    ),
    Estimand(
        "augrc", "Area under the generalised risk–coverage curve, by predictive entropy", "AUGRC", "fraction", "lower",
        "Traub et al. 2024", **_STEPS, **_DEFERRED,
        tasks=_CLASSES, **_TRUTH, formula=selective_by_entropy("augrc"), resampled=True,
    ),
    Estimand(
        "risk_at_80", "Error rate of the 80 % most certain examples, by predictive entropy", "risk at 80 % coverage",
        "fraction", "lower", "Geifman & El-Yaniv 2017, §2", short="risk at 80 %", **_STEPS, **_DEFERRED,
        tasks=_CLASSES, **_TRUTH, formula=selective_by_entropy("risk_at_80"), resampled=True,
    ),
    Estimand(
        "coverage_at_5", "Largest share of most certain examples with at most 5 % errors, by predictive entropy",
        "coverage at 5 % risk", "fraction", "higher", "Geifman & El-Yaniv 2017, §3; as measured, without a guarantee",
        short="cover. at 5 %", **_STEPS, **_DEFERRED,
        tasks=_CLASSES, **_TRUTH, formula=selective_by_entropy("coverage_at_5"), resampled=True, leaps=True,
    ),
    Estimand(
        "auroc_errors", "AUROC of errors, by predictive entropy where no score is named", "failure AUROC", "fraction",
        "higher", "Hendrycks & Gimpel 2017; Jaeger et al. 2023", **_STEPS,
        worse="the uncertainty of {who} on {where} tells errors apart less well",
        better="the uncertainty of {who} on {where} tells errors apart better",
        tasks=_CLASSIFICATION, **_TRUTH, formula=errors_by("predictive_entropy"),
    ),
    Estimand(
        "scod", "Area under the risk–coverage curve of test and OOD examples; each accepted OOD example is an error",
        "AURC with OOD examples", "fraction", "lower", "Xia & Bouganis 2022; Jaeger et al. 2023", short="AURC with OOD",
        **_STEPS,
        worse="deferring the most uncertain examples of {where} and the test set leaves {who} with more errors",
        better="deferring the most uncertain examples of {where} and the test set leaves {who} with fewer errors",
        tasks=_CLASSIFICATION, **_TRUTH,
    ),
    Estimand(
        "uncertainty_correlation", "Rank correlation of mutual information and expected entropy",
        "rank corr. ρ(MI, expected entropy)", "1", "none", "Spearman 1904; Mucsányi, Kirchhof & Oh 2024",
        short="ρ(MI, entropy)", tasks=_CLASSIFICATION, needs_samples=True, limits=(-1.0, 1.0),
        formula=Formula(
            frozenset({"mutual_information", "expected_entropy"}),
            lambda p: spearman_of_replicates(p["mutual_information"], p["expected_entropy"]),
            lambda p, _: spearman_influence(p["mutual_information"], p["expected_entropy"]),
        ),
    ),
    Estimand(
        "calibration_loss", "Part of the negative PLL that the fitted temperature removes", "calibration loss", "nats",
        "lower", "Berta et al. 2025", short="calibr. loss",
        worse="{who} loses more on {where} by its confidence", better="{who} loses less on {where} by its confidence",
        tasks=_CLASSIFICATION, **_TRUTH, limits=UNBOUNDED,
        formula=mean_of_sum(pll_recalibrated=1, pll=-1),
    ),
    Estimand(
        "refinement_loss", "Negative PLL that is left with the fitted temperature", "refinement loss", "nats", "lower",
        "Berta et al. 2025", short="refin. loss",
        worse="{who} tells the classes of {where} apart less well",
        better="{who} tells the classes of {where} apart better",
        tasks=_CLASSIFICATION, **_TRUTH, limits=POSITIVE,
        formula=mean_of_sum(pll_recalibrated=-1),
    ),
    Estimand(
        "certified_coverage", "Share of examples (or pixels) that are accepted at the certified risk",
        "certified coverage", "fraction", "higher", "Angelopoulos et al. 2021; of the promise of --risk",
        short="certified cov.", tolerance="0.02", **_STEPS,
        worse="more of {where} must be deferred to keep the promise about {who}",
        better="less of {where} must be deferred to keep the promise about {who}",
        tasks=_CLASSES, **_TRUTH,
    ),
    *(
        Estimand(
            name, f"{title} at the threshold that the baseline decided on", title.lower(), "fraction", direction,
            "a share of examples", tolerance=tolerance, worse=worse, better=better, tasks=_EVERY, **_STEPS, **_TRUTH,
        )
        for name, title, direction, tolerance, worse, better in (
            ("threshold_error", "Error rate", "lower", "0.01",
             "{who} has more errors on {where} at the threshold decided on",
             "{who} has fewer errors on {where} at the threshold decided on"),
            ("threshold_accepted", "Share accepted", "higher", "0.02", "{who} accepts less of {where}",
             "{who} accepts more of {where}"),
            ("threshold_false_alarms", "False alarms", "lower", "0.01", "{who} flags more of {where} as unfamiliar",
             "{who} flags less of {where} as unfamiliar"),
            ("threshold_detected", "Share detected", "higher", "0.02", "{who} detects less of {where}",
             "{who} detects more of {where}"),
        )
    ),
    *_sets("", "LAC", "Sadinle, Lei & Wasserman 2019"),
    *_sets("_aps", "APS", "Romano, Sesia & Candès 2020, not randomised"),
    Estimand(
        "auroc", "AUROC", "AUROC", "fraction", "higher", "Hanley & McNeil 1982; Hendrycks & Gimpel 2017",
        tolerance="0.01", **_SEPARATION, tasks=_EVERY,
    ),
    Estimand(
        "aupr_out", "AUPR, OOD positive", "AUPR-out", "fraction", "higher",
        "Hendrycks & Gimpel 2017; average precision", tolerance="0.01", **_STEPS, **_SEPARATION,
        tasks=_EVERY, resampled=True,
    ),
    Estimand(
        "aupr_in", "AUPR, test positive", "AUPR-in", "fraction", "higher", "Hendrycks & Gimpel 2017; average precision",
        tolerance="0.01", **_STEPS, **_SEPARATION, tasks=_EVERY, resampled=True,
    ),
    Estimand(
        "fpr95", "FPR at 95 % TPR, OOD positive", "FPR95", "fraction", "lower", "Yang et al. 2022 (OpenOOD)",
        tolerance="0.02", **_STEPS, **_SEPARATION, tasks=_EVERY, resampled=True,
    ),
    Estimand(
        "fpr95_id_positive", "FPR at 95 % TPR, test positive", "FPR95*", "fraction", "lower",
        "Liang, Li & Srikant 2018", tolerance="0.02", **_STEPS, **_SEPARATION, tasks=_EVERY, resampled=True,
    ),
    Estimand(
        "iou", "Intersection over union of a class", "IoU", "fraction", "higher", "Everingham et al. 2015",
        tolerance="0.01", **_OVERLAP, tasks=_SEGMENTATION, **_TRUTH,
    ),
    Estimand(
        "dice", "Dice coefficient of a class", "Dice", "fraction", "higher", "Dice 1945", tolerance="0.01", **_OVERLAP,
        tasks=_SEGMENTATION, **_TRUTH,
    ),
    *(
        Estimand(
            f"image_aurc_{name}", f"Area under the risk–coverage curve of images, of the risk 1 − Dice, by the {words}",
            f"image AURC by {label}", "fraction", "lower", "Zenk et al. 2025; Kahl et al. 2024",
            worse="deferring the most uncertain images of {where} leaves {who} with less overlap",
            better="deferring the most uncertain images of {where} leaves {who} with more overlap",
            tasks=_SEGMENTATION, **_TRUTH,
        )
        for name, words, label in (
            ("mean", "mean of MI or entropy", "mean"),
            ("upper_tail", "mean of the largest 5 % of MI or entropy", "upper tail"),
            ("share_above", "share of pixels with MI or entropy above the 90 % quantile of all", "share above"),
            ("foreground", "mean of MI or entropy over the predicted foreground", "foreground"),
            ("pairwise_dice", "complement of the mean Dice of pairs of draws", "1 − Dice between draws"),
        )
    ),
    Estimand(
        "pixel_auroc", "AUROC of pixels", "pixel AUROC", "fraction", "higher",
        "P(s_ood > s_test) + P(=)/2 of two pixels", tolerance="0.01", **_PIXELS, tasks=_SEGMENTATION,
    ),
    *(
        Estimand(
            f"pixel_{name}", f"{title} of pixels", f"pixel {label}", "fraction",
            "lower" if name.startswith("fpr") else "higher", "as for examples", **_PIXELS, tasks=_SEGMENTATION,
        )
        for name, title, label in (
            ("aupr_out", "AUPR (OOD positive)", "AUPR-out"),
            ("aupr_in", "AUPR (test positive)", "AUPR-in"),
            ("fpr95", "FPR at 95 % TPR (OOD positive)", "FPR95"),
            ("fpr95_id_positive", "FPR at 95 % TPR (test positive)", "FPR95*"),
        )
    ),
    *(
        Estimand(
            f"pixel_{name}_per_image", f"{title} of the pixels of an image, mean over images", f"{label} per image",
            "fraction", "lower" if name == "fpr95" else "higher", "as for examples", **_PIXELS, tasks=_SEGMENTATION,
        )
        for name, title, label in (
            ("auroc", "AUROC", "AUROC"),
            ("aupr_out", "AUPR (OOD positive)", "AUPR-out"),
            ("fpr95", "FPR at 95 % TPR (OOD positive)", "FPR95"),
        )
    ),
    Estimand(
        "normalized_pll", "PLL between constant and optimum", "normalised PLL", "percent", "higher",
        "Teye et al. 2018, §4", short="norm. PLL", **_STEPS, **_NORMALIZED,
        tasks=_CLASSIFICATION | _REGRESSION, **_TRUTH, limits=UNBOUNDED, formula=normalized_between_bounds("pll"),
    ),
    Estimand(
        "normalized_crps", "CRPS between constant and optimum", "normalised CRPS", "percent", "higher",
        "Teye et al. 2018, §4", short="norm. CRPS", **_NORMALIZED,
        tasks=_REGRESSION, **_TRUTH, limits=UNBOUNDED, formula=normalized_between_bounds("crps"),
    ),
    Estimand(
        "coverage50", "Coverage of the central 50 % interval", "coverage of 50 %", "fraction", "none",
        "Gneiting et al. 2007; nominal best", short="cover. 50 %", **_STEPS, tasks=_REGRESSION, **_TRUTH,
        shown=frozenset({"sweep"}),
    ),
    Estimand(
        "coverage95", "Coverage of the central 95 % interval", "coverage of 95 %", "fraction", "none",
        "Gneiting et al. 2007; nominal best", short="cover. 95 %", tolerance="0.02", **_STEPS,
        tasks=_REGRESSION, **_TRUTH, shown=frozenset({"sweep", "headline", "sensitivity", "gate"}),
        meaning="share of targets inside the 95 % interval",
    ),
    Estimand(
        "certified_width", "Mean half-width of the certified intervals", "certified half-width", "target unit", "lower",
        "Vovk 2012; of the promise of --risk", short="cert. width", tolerance="5%", **_OF_SCALE,
        worse="the intervals of {who} must be wider on {where} to keep their promise",
        better="the intervals of {who} may be narrower on {where} and keep their promise",
        tasks=_REGRESSION, **_TRUTH, limits=POSITIVE,
    ),
    Estimand(
        "spearman", "Rank correlation of sd and |error|", "rank corr. ρ(σ, |e|)", "1", "higher", "Spearman 1904",
        short="ρ(σ, |e|)", tolerance="0.05", worse="the uncertainty of {who} on {where} predicts its errors less well",
        better="the uncertainty of {who} on {where} predicts its errors better",
        tasks=_REGRESSION, **_TRUTH, needs_samples=True, limits=(-1.0, 1.0),
        formula=Formula(
            frozenset({"predictive_sd", "distance"}),
            lambda p: spearman_of_replicates(p["predictive_sd"], p["distance"]),
            lambda p, _: spearman_influence(p["predictive_sd"], p["distance"]),
        ),
        resampled=True,
        meaning="how far a larger σ goes with a larger error, from −1 to 1",
    ),
    Estimand(
        "variance", "Variance over the samples", "variance of samples", "target unit²", "none",
        "Teye et al. 2018, §3.4", short="var. of samples", **_OF_SCALE,
        tasks=_REGRESSION, required=_REGRESSION, needs_samples=True, limits=POSITIVE,
        shown=frozenset({"sweep", "convergence"}), score=Score("outputs", needs_samples=True, is_alarm=True),
    ),
    Estimand(
        "max_logit", "Largest logit, negative", "largest logit", "1", "none", "Hendrycks et al. 2022",
        short="max. logit", limits=UNBOUNDED,
        score=Score("logits", of_pixels=True, of_layer=lambda last: max_logit(last.logits)),
        of_samples=lambda logits, _: max_logit(logits).mean(0),
    ),
    Estimand(
        "energy", "Free energy", "energy", "nats", "none", "Liu et al. 2020", limits=UNBOUNDED,
        score=Score("logits", of_pixels=True, of_layer=lambda last: energy(last.logits)),
        of_samples=lambda logits, _: energy(logits).mean(0),
    ),
    Estimand(
        "gen", "Generalised entropy", "generalised entropy", "1", "none", "Liu, Lochman & Zach 2023",
        short="gen. entropy", limits=POSITIVE,
        score=Score("last layer", of_layer=lambda last: generalized_entropy(last.probabilities)),
    ),
    Estimand(
        "knn", "Distance to the k-th nearest neighbour", "distance to the k-th nearest neighbour", "1", "none",
        "Sun et al. 2022; k = 50", short="k nearest", limits=POSITIVE, score=Score("last layer", fit=by_neighbours),
    ),
    Estimand(
        "vim", "Virtual-logit matching (ViM)", "virtual-logit matching (ViM)", "nats", "none", "Wang et al. 2022",
        short="ViM", limits=UNBOUNDED, score=Score("last layer", fit=by_virtual_logit),
    ),
    Estimand(
        "react", "Energy of clipped activations (ReAct)", "energy of clipped activations (ReAct)", "nats", "none",
        "Sun, Guo & Li 2021; 90 %", short="ReAct", limits=UNBOUNDED, score=Score("last layer", fit=by_clipped_energy),
    ),
    Estimand(
        "mahalanobis", "Squared Mahalanobis distance", "Mahalanobis distance", "1", "none",
        "Lee et al. 2018; last features", short="Mahalanobis", limits=POSITIVE,
        score=Score("last layer", fit=by_mahalanobis, needs_labels=True),
        meaning="of features from the training set",
    ),
    Estimand(
        "relative_mahalanobis", "Relative Mahalanobis distance", "relative Mahalanobis distance", "1", "none",
        "Ren et al. 2021", short="rel. Mahal.", limits=UNBOUNDED,
        score=Score("last layer", fit=by_relative_mahalanobis, needs_labels=True),
    ),
    Estimand(
        "count", "Number of examples of a class or group", "points", "points", "none", "a count", digits=0,
        tasks=_CLASSES, limits=POSITIVE, by_part=True,
    ),
    Estimand(
        "temperature", "Temperature", "temperature", "1", "none", "Guo et al. 2017; mean over examples",
        tasks=_CLASSES, limits=POSITIVE,
    ),
    Estimand(
        "tau", "Observation precision τ", "precision τ", "1/target unit²", "none",
        "Teye et al. 2018, §4; least validation CRPS", **_OF_SCALE,
        tasks=_REGRESSION, **_TRUTH, limits=POSITIVE, is_fitted=True,
    ),
    Estimand(
        "sigma", "Constant uncertainty σ", "σ", "target unit", "none", "Teye et al. 2018, §4; least validation CRPS",
        **_OF_SCALE, tasks=_REGRESSION, **_TRUTH, limits=POSITIVE, is_fitted=True,
    ),
)  # fmt: skip

# Tolerances are a choice: the degradation that should fail a check. Whether it is real is decided by its error.
METRICS: dict[str, Estimand] = {estimand.name: estimand for estimand in ESTIMANDS if estimand.tasks}


# The scores that separate OOD points: larger is more uncertain; neither direction is better in itself.
SCORES: dict[str, Estimand] = {estimand.name: estimand for estimand in ESTIMANDS if estimand.score}
REGRESSION_SCORES, CLASSIFICATION_SCORES, LOGIT_SCORES, FEATURE_SCORES = (
    tuple(name for name, estimand in SCORES.items() if estimand.score and estimand.score.source == source)
    for source in ("outputs", "probabilities", "logits", "last layer")
)
POST_HOC_SCORES = (*LOGIT_SCORES, *FEATURE_SCORES)  # of the last layer of a deterministic network
ALARMS: tuple[str, ...] = tuple(name for name, each in SCORES.items() if each.score and each.score.is_alarm)
SEPARATIONS: tuple[str, ...] = tuple(DetectionScores.__dataclass_fields__)
SELECTIVE: tuple[str, ...] = tuple(SelectiveScores.__dataclass_fields__)
_OWN = "score:"  # begins the name of a score that is a column of a file of predictions
_UNLISTED = (
    Estimand(
        "normalized_pll_without_exact", "PLL between constant and optimum, without examples predicted exactly",
        "PLL excl. exact examples", "percent", "none", "Teye et al. 2018, §4", short="PLL excl. exact",
        limits=UNBOUNDED, formula=normalized_between_bounds("pll", without_exact=True),
    ),
    *(
        Estimand(
            name, name.replace("_", " "), name.replace("_", " "), "target unit", "none", "", limits=POSITIVE,
            **_OF_SCALE,
        )
        for name in ("error", "running_error", "crps_constant", "crps_optimum")
    ),
    Estimand("confidence", "confidence", "confidence", "1", "none", "", is_fitted=True),
    Estimand("pll_constant", "pll constant", "pll constant", "nats", "none", "", limits=UNBOUNDED),
    # ln |e| of a nearly exact prediction changes in a step when a draw is left out.
    Estimand("pll_optimum", "pll optimum", "pll optimum", "nats", "none", "", limits=UNBOUNDED, **_STEPS),
)  # fmt: skip
_KNOWN: dict[str, Estimand] = {estimand.name: estimand for estimand in (*_UNLISTED, *ESTIMANDS)}


def is_known(name: str) -> bool:
    """Whether this is a metric, a score or a bound that this version knows."""
    return name in _KNOWN


def own_score(column: str) -> str:
    """The name of the score that a column of a file holds, which is that of no row of the table."""
    return _OWN + re.sub(r"[^\w+-]", "_", column)


def is_score(name: str) -> bool:
    """Whether this separates OOD points: a score of the table, or the column of a file."""
    return name in SCORES or name.startswith(_OWN)


def scores_among(names: Iterable[str]) -> list[str]:
    """The scores among these names, in the order of the table; columns of files come last."""
    present = dict.fromkeys(names)
    return [*(name for name in SCORES if name in present), *(name for name in present if name.startswith(_OWN))]


def metric_of(name: str) -> Estimand:
    """The metric or score of this name; of any other name, such as that of a count or of a column of a file, a mean
    without unit, direction and limits."""
    score = Score("column") if name.startswith(_OWN) else None
    words = f"column {name.removeprefix(_OWN)}" if score else name.replace("_", " ")
    return _KNOWN.get(name) or Estimand(name, words, words, "1", "none", "", limits=UNBOUNDED, score=score)


def limits_of(metric: str, task: str, estimator: str = "") -> tuple[float, float]:
    """The smallest and the largest value of a metric. Of classes the PLL is a logarithm of probabilities; only a
    jackknifed mutual information may be below 0."""
    if metric == "mutual_information" and estimator == "jackknife":
        return UNBOUNDED
    return (-math.inf, 0.0) if metric == "pll" and task != "regression" else metric_of(metric).limits


def estimates_of_task(task: str, *, shown: Place | None = None) -> dict[str, Estimand]:
    """The estimates that results of this task have, of those shown at this place of a report if one is named."""
    return {
        name: estimand
        for name, estimand in METRICS.items()
        if task in estimand.tasks and (shown is None or shown in estimand.shown)
    }
