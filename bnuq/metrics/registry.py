"""What each estimate means: names, unit, direction, digits and source, for tables, sentences, files and the gate alike.

The order is that in which tables show them.
"""

from __future__ import annotations

from typing import Any

from bnuq.estimates import Metric

_STEPS: dict[str, Any] = {"mc_error": "bootstrap"}
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
    "worse": "deferring the most uncertain points of {where} leaves {who} with more errors",
    "better": "deferring the most uncertain points of {where} leaves {who} with fewer errors",
}
_SEPARATION: dict[str, Any] = {
    "worse": "{who} separates {where} from the test set less well",
    "better": "{who} separates {where} from the test set better",
}


def _sets(suffix: str, name: str, source: str) -> tuple[Metric, Metric]:
    """Size and coverage of the prediction sets of this name."""
    size = Metric(
        f"set_size{suffix}",
        f"Mean size of the prediction sets, {name}",
        f"size of {name} sets",
        "classes",
        "lower",
        source,
        short=f"{name} set size",
        **_STEPS,
        worse="the prediction sets of {who} on {where} are larger",
        better="the prediction sets of {who} on {where} are smaller",
    )
    coverage = Metric(
        f"set_coverage{suffix}",
        f"Share of points whose prediction set has the true class, {name}",
        f"coverage of {name} sets",
        "fraction",
        "none",
        f"{source}; nominal best",
        short=f"{name} coverage",
        **_STEPS,
    )
    return size, coverage


_OVERLAP: dict[str, Any] = {
    "worse": "the segments that {who} predicts on {where} overlap less with the true ones",
    "better": "the segments that {who} predicts on {where} overlap more with the true ones",
}
_PIXELS: dict[str, Any] = {
    "worse": "{who} separates the pixels of {where} from those of the test set less well",
    "better": "{who} separates the pixels of {where} from those of the test set better",
}

_ALL = (
    Metric(
        "accuracy", "Accuracy", "accuracy", "fraction", "higher",
        "share of points whose most probable class is the true one", tolerance="0.005", **_STEPS, percent=True,
        worse="{who} is right less often on {where}", better="{who} is right more often on {where}",
    ),
    Metric(
        "rmse", "Root mean square error", "RMSE", "target unit", "lower",
        "√(Σ‖y − f̄‖²/n), as Teye et al. 2018 (their code)", tolerance="1%", **_OF_SCALE, **_LARGER_ERRORS,
    ),
    Metric(
        "mae", "Mean absolute error", "MAE", "target unit", "lower", "mean of |y − f̄| over points and outputs",
        tolerance="1%", **_OF_SCALE, **_LARGER_ERRORS,
    ),
    Metric(
        "crps", "Continuous ranked probability score", "CRPS", "target unit", "lower",
        "Gneiting & Raftery 2007, §4.2; of N(f̄, v + 1/τ) as Teye et al. 2018", tolerance="1%", **_OF_SCALE,
        worse="the predictive distribution of {who} is further from the targets of {where}",
        better="the predictive distribution of {who} is closer to the targets of {where}",
    ),
    Metric(
        "pll", "Predictive log-likelihood", "PLL", "nats", "higher", "Teye, Azizpour & Smith 2018", tolerance="0.01",
        worse="{who} explains the {truth} of {where} less well", better="{who} explains the {truth} of {where} better",
    ),
    Metric(
        "brier", "Brier score", "Brier score", "squared probability", "lower", "Brier 1950", tolerance="0.005",
        worse="the probabilities that {who} predicts on {where} are further from the labels",
        better="the probabilities that {who} predicts on {where} are closer to the labels",
    ),
    Metric(
        "ece", "Expected calibration error", "ECE", "fraction", "lower", "Guo et al. 2017, eq. 3; 15 bins",
        tolerance="0.01", **_STEPS, **_CALIBRATED,
    ),
    Metric(
        "ece_adaptive", "Adaptive calibration error, bins of equally many points", "adaptive ECE", "fraction", "lower",
        "Nguyen & O'Connor 2015; Nixon et al. 2019; 15 bins", **_STEPS, **_CALIBRATED,
    ),
    Metric(
        "ece_classwise", "Classwise calibration error, mean over classes", "classwise ECE", "fraction", "lower",
        "Kull et al. 2019, §2; Nixon et al. 2019; 15 bins",
        worse="the probabilities of {who} on {where} are further from the shares of the classes",
        better="the probabilities of {who} on {where} are closer to the shares of the classes",
    ),
    Metric(
        "ece_debiased", "Root mean square calibration error, debiased", "debiased RMS calibration error", "fraction",
        "lower", "Kumar, Liang & Ma 2019, §5; 15 bins", short="debiased RMSCE", **_STEPS, **_CALIBRATED,
    ),
    Metric(
        "mce", "Maximum calibration error", "MCE", "fraction", "lower",
        "Naeini, Cooper & Hauskrecht 2015; Guo et al. 2017, eq. 5; 15 bins", **_STEPS, **_CALIBRATED,
    ),
    Metric(
        "label_auroc", "AUROC of the labels, several per point: mean over labels", "label AUROC", "fraction", "higher",
        "Hanley & McNeil 1982; macro mean as Tsoumakas et al. 2010", tolerance="0.01",
        worse="{who} ranks the points of {where} by their labels less well",
        better="{who} ranks the points of {where} by their labels better",
    ),
    Metric(
        "mutual_information", "Mutual information", "mutual information", "nats", "none",
        "Houlsby et al. 2011; Mukhoti et al. 2020", short="mutual info.",
    ),
    Metric(
        "predictive_entropy", "Predictive entropy", "predictive entropy", "nats", "none", "Gal 2016, §3.3.1",
        short="pred. entropy",
    ),
    Metric(
        "expected_entropy", "Expected entropy", "expected entropy", "nats", "none",
        "Gal 2016, §3.3.1; Mukhoti et al. 2020", short="exp. entropy",
    ),
    Metric(
        "variation_ratio", "Variation ratio", "variation ratio", "fraction", "none", "Freeman 1965; Gal 2016, §3.3.1",
        short="var. ratio", **_STEPS,
    ),
    Metric(
        "max_probability", "Maximum probability", "max. probability", "fraction", "none", "Hendrycks & Gimpel 2017",
        short="max. prob.", **_STEPS,
    ),
    Metric(
        "aurc", "Area under the risk–coverage curve, by predictive entropy", "AURC", "fraction", "lower",
        "Geifman, Uziel & El-Yaniv 2019; error–completeness by entropy as Shekhovtsov & Flach 2018, fig. A.3",
        tolerance="0.005", **_STEPS, **_DEFERRED,
    ),
    Metric(
        "augrc", "Area under the generalised risk–coverage curve, by predictive entropy", "AUGRC", "fraction", "lower",
        "Traub et al. 2024", **_STEPS, **_DEFERRED,
    ),
    Metric(
        "risk_at_80", "Error rate of the 80 % most certain points, by predictive entropy", "risk at 80 % coverage",
        "fraction", "lower", "Geifman & El-Yaniv 2017, §2", short="risk at 80 %", **_STEPS, **_DEFERRED,
    ),
    Metric(
        "coverage_at_5", "Largest share of most certain points with at most 5 % errors, by predictive entropy",
        "coverage at 5 % risk", "fraction", "higher", "Geifman & El-Yaniv 2017, §3; as measured, without a guarantee",
        short="cover. at 5 %", **_STEPS, **_DEFERRED,
    ),
    *_sets("", "LAC", "Sadinle, Lei & Wasserman 2019"),
    *_sets("_aps", "APS", "Romano, Sesia & Candès 2020, not randomised"),
    Metric(
        "auroc", "AUROC", "AUROC", "fraction", "higher", "Hanley & McNeil 1982; Hendrycks & Gimpel 2017",
        tolerance="0.01", **_SEPARATION,
    ),
    Metric(
        "aupr_out", "AUPR, OOD positive", "AUPR-out", "fraction", "higher",
        "Hendrycks & Gimpel 2017; average precision", tolerance="0.01", **_STEPS, **_SEPARATION,
    ),
    Metric(
        "aupr_in", "AUPR, test positive", "AUPR-in", "fraction", "higher", "Hendrycks & Gimpel 2017; average precision",
        tolerance="0.01", **_STEPS, **_SEPARATION,
    ),
    Metric(
        "fpr95", "FPR at 95 % TPR, OOD positive", "FPR95", "fraction", "lower", "Yang et al. 2022 (OpenOOD)",
        tolerance="0.02", **_STEPS, **_SEPARATION,
    ),
    Metric(
        "fpr95_id_positive", "FPR at 95 % TPR, test positive", "FPR95*", "fraction", "lower",
        "Liang, Li & Srikant 2018", tolerance="0.02", **_STEPS, **_SEPARATION,
    ),
    Metric(
        "mean_iou", "Mean intersection over union, of the classes that occur", "mean IoU", "fraction", "higher",
        "Everingham et al. 2015; of all pixels together", tolerance="0.005", **_OVERLAP,
    ),
    Metric(
        "iou", "Intersection over union of a class", "IoU", "fraction", "higher", "Everingham et al. 2015",
        tolerance="0.01", **_OVERLAP,
    ),
    Metric(
        "dice", "Dice coefficient of a class", "Dice", "fraction", "higher", "Dice 1945", tolerance="0.01", **_OVERLAP,
    ),
    *(
        Metric(
            f"{name}_{place}", f"{title} of the pixels {where} a class boundary", f"{label} {short}", "nats", "none",
            "ratio of sums; Teye et al. 2018; Kendall et al. 2017",
        )
        for name, title, label in (
            ("mutual_information", "Mutual information", "MI"),
            ("predictive_entropy", "Predictive entropy", "entropy"),
        )
        for place, where, short in (
            ("boundary", "up to 2 pixels from", "at boundaries"),
            ("interior", "more than 2 pixels from", "inside"),
        )
    ),
    Metric(
        "ece_boundary", "Expected calibration error of the pixels up to 2 pixels from a class boundary",
        "ECE at boundaries", "fraction", "lower", "Guo et al. 2017, eq. 3; 15 bins", **_CALIBRATED,
    ),
    *(
        Metric(
            f"component_{name}", f"{title}, mean over connected components of the prediction", label, unit, "none",
            source,
        )
        for name, title, label, unit, source in (
            ("uncertainty", "Mutual information", "MI of components", "nats", "Roy et al. 2019"),
            (
                "variation", "Coefficient of variation of the size between draws", "CV of components", "1",
                "Roy et al. 2019",
            ),
            ("iou", "IoU of pairs of draws", "IoU of components", "fraction", "Roy et al. 2019; Chan et al. 2021"),
        )
    ),
    *(
        Metric(
            f"image_aurc_{name}", f"Area under the risk–coverage curve of images, of the risk 1 − Dice, by the {words}",
            f"image AURC by {label}", "fraction", "lower", "Zenk et al. 2025; Kahl et al. 2024",
            worse="deferring the most uncertain images of {where} leaves {who} with less overlap",
            better="deferring the most uncertain images of {where} leaves {who} with more overlap",
        )
        for name, words, label in (
            ("mean", "mean of MI or entropy", "mean"),
            ("upper_tail", "mean of the largest 5 % of MI or entropy", "upper tail"),
            ("patch_maximum", "largest mean of a patch of 10 × 10 pixels of MI or entropy", "patch maximum"),
            ("share_above", "share of pixels with MI or entropy above the 90 % quantile of all", "share above"),
            ("foreground", "mean of MI or entropy over the predicted foreground", "foreground"),
            (
                "without_boundaries", "mean of MI or entropy further than 2 pixels from predicted boundaries",
                "mean without boundaries",
            ),
            ("pairwise_dice", "complement of the mean Dice of pairs of draws", "1 − Dice between draws"),
        )
    ),
    Metric(
        "pixel_auroc", "AUROC of pixels", "pixel AUROC", "fraction", "higher",
        "P(s_ood > s_test) + P(=)/2 of two pixels", tolerance="0.01", **_PIXELS,
    ),
    *(
        Metric(
            f"pixel_{name}", f"{title} of pixels", f"pixel {label}", "fraction",
            "lower" if name.startswith("fpr") else "higher", "as of points", **_PIXELS,
        )
        for name, title, label in (
            ("aupr_out", "AUPR (OOD positive)", "AUPR-out"),
            ("aupr_in", "AUPR (test positive)", "AUPR-in"),
            ("fpr95", "FPR at 95 % TPR (OOD positive)", "FPR95"),
            ("fpr95_id_positive", "FPR at 95 % TPR (test positive)", "FPR95*"),
        )
    ),
    *(
        Metric(
            f"pixel_{name}_per_image", f"{title} of the pixels of an image, mean over images", f"{label} per image",
            "fraction", "lower" if name == "fpr95" else "higher", "as of points", **_PIXELS,
        )
        for name, title, label in (
            ("auroc", "AUROC", "AUROC"),
            ("aupr_out", "AUPR (OOD positive)", "AUPR-out"),
            ("fpr95", "FPR at 95 % TPR (OOD positive)", "FPR95"),
        )
    ),
    *(
        Metric(
            f"pixel_segment_{name}", f"{title} of anomalies", f"segment {label}", "fraction", "higher",
            "Chan et al. 2021", worse="{who} finds the segments of anomalies in {where} less well",
            better="{who} finds the segments of anomalies in {where} better",
        )
        for name, title, label in (
            ("f1", "Mean F1 over thresholds of sIoU, of segments", "F1"),
            ("siou", "Mean sIoU of true segments", "sIoU"),
            ("ppv", "Mean PPV of predicted segments", "PPV"),
        )
    ),
    Metric(
        "normalized_pll", "PLL between constant and optimum", "normalised PLL", "percent", "higher",
        "Teye et al. 2018, §4", short="norm. PLL", **_STEPS, **_NORMALIZED,
    ),
    Metric(
        "normalized_crps", "CRPS between constant and optimum", "normalised CRPS", "percent", "higher",
        "Teye et al. 2018, §4", short="norm. CRPS", **_NORMALIZED,
    ),
    Metric(
        "coverage50", "Coverage of the central 50 % interval", "coverage of 50 %", "fraction", "none",
        "Gneiting et al. 2007; nominal best", short="cover. 50 %", **_STEPS,
    ),
    Metric(
        "coverage95", "Coverage of the central 95 % interval", "coverage of 95 %", "fraction", "none",
        "Gneiting et al. 2007; nominal best", short="cover. 95 %", **_STEPS,
    ),
    Metric(
        "spearman", "Rank correlation of sd and |error|", "rank corr. ρ(σ, |e|)", "1", "higher", "Spearman 1904",
        short="ρ(σ, |e|)", tolerance="0.05", worse="the uncertainty of {who} on {where} predicts its errors less well",
        better="the uncertainty of {who} on {where} predicts its errors better",
    ),
    Metric(
        "variance", "Variance over the samples", "variance of samples", "target unit²", "none",
        "Teye et al. 2018, §3.4", short="var. of samples", **_OF_SCALE,
    ),
    Metric("count", "Number of points of a class or group", "points", "points", "none", "a count", digits=0),
    Metric("temperature", "Temperature", "temperature", "1", "none", "Guo et al. 2017; mean over points"),
    Metric(
        "tau", "Observation precision τ", "precision τ", "1/target unit²", "none",
        "Teye et al. 2018, §4; least validation CRPS", **_OF_SCALE,
    ),
    Metric(
        "sigma", "Constant uncertainty σ", "σ", "target unit", "none", "Teye et al. 2018, §4; least validation CRPS",
        **_OF_SCALE,
    ),
)  # fmt: skip

# Tolerances are a choice: the degradation that should fail a check. Whether it is real is decided by its error.
METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL}


def _post_hoc(name: str, title: str, label: str, unit: str, source: str, short: str) -> Metric:
    return Metric(name, title, label, unit, "none", source, short=short)


_POST_HOC = (
    _post_hoc("max_logit", "Largest logit, negative", "largest logit", "1", "Hendrycks et al. 2022", "max. logit"),
    _post_hoc("energy", "Free energy", "energy", "nats", "Liu et al. 2020", "energy"),
    _post_hoc("gen", "Generalised entropy", "generalised entropy", "1", "Liu, Lochman & Zach 2023", "gen. entropy"),
    _post_hoc(
        "knn", "Distance to the k-th nearest neighbour", "distance to the k-th nearest neighbour", "1",
        "Sun et al. 2022; k = 50", "k nearest",
    ),
    _post_hoc("vim", "Virtual-logit matching (ViM)", "virtual-logit matching (ViM)", "nats", "Wang et al. 2022", "ViM"),
    _post_hoc(
        "react", "Energy of clipped activations (ReAct)", "energy of clipped activations (ReAct)", "nats",
        "Sun, Guo & Li 2021; 90 %", "ReAct",
    ),
    _post_hoc(
        "mahalanobis", "Squared Mahalanobis distance", "Mahalanobis distance", "1", "Lee et al. 2018; last features",
        "Mahalanobis",
    ),
    _post_hoc(
        "relative_mahalanobis", "Relative Mahalanobis distance", "relative Mahalanobis distance", "1",
        "Ren et al. 2021", "rel. Mahalanobis",
    ),
)  # fmt: skip

# The scores that separate OOD points: larger is more uncertain; neither direction is better in itself.
SCORES: dict[str, Metric] = {
    "mutual_information": METRICS["mutual_information"],
    "predictive_entropy": METRICS["predictive_entropy"],
    "expected_entropy": METRICS["expected_entropy"],
    "least_confidence": Metric(
        "least_confidence",
        "Least confidence (1 − maximum probability)",
        "least confidence",
        "fraction",
        "none",
        "Hendrycks & Gimpel 2017",
        short="least conf.",
    ),
    "variance": METRICS["variance"],
    **{metric.name: metric for metric in _POST_HOC},
}

REGRESSION_SCORES: tuple[str, ...] = ("variance",)
LOGIT_SCORES: tuple[str, ...] = ("max_logit", "energy")  # of logits; of T samples their mean
FEATURE_SCORES: tuple[str, ...] = tuple(metric.name for metric in _POST_HOC if metric.name not in LOGIT_SCORES)
CLASSIFICATION_SCORES: tuple[str, ...] = tuple(
    name for name in SCORES if name not in (*REGRESSION_SCORES, *LOGIT_SCORES, *FEATURE_SCORES)
)  # of probabilities, of every classifier
SEPARATIONS: tuple[str, ...] = tuple(metric.name for metric in _ALL if metric.worse == _SEPARATION["worse"])
SELECTIVE: tuple[str, ...] = ("aurc", "augrc", "risk_at_80", "coverage_at_5")
_UNLISTED = (
    Metric(
        "normalized_pll_without_exact", "PLL between constant and optimum, without points predicted exactly",
        "PLL excl. exact points", "percent", "none", "Teye et al. 2018, §4", short="PLL excl. exact",
    ),
    *(
        Metric(name, name.replace("_", " "), name.replace("_", " "), "target unit", "none", "", **_OF_SCALE)
        for name in ("error", "running_error", "crps_constant", "crps_optimum")
    ),
)  # fmt: skip
_KNOWN = {metric.name: metric for metric in _UNLISTED} | SCORES | METRICS


def is_known(name: str) -> bool:
    """Whether this is a metric, a score or a bound that this version knows."""
    return name in _KNOWN


def metric_of(name: str) -> Metric:
    """The metric or score of this name; of any other name, such as that of a count, one without unit and direction."""
    words = name.replace("_", " ")
    return _KNOWN.get(name) or Metric(name, words, words, "1", "none", "")
