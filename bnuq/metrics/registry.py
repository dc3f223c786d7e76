"""What each estimate means: unit, direction and source, for tables, files and the gate alike."""

from __future__ import annotations

from bnuq.estimates import Metric

_ALL = (
    Metric(
        "accuracy",
        "Accuracy",
        "fraction",
        "higher",
        "share of points whose most probable class is the true one",
        tolerance="0.005",
        mc_error="bootstrap",
    ),
    Metric("pll", "Predictive log-likelihood", "nats", "higher", "Teye, Azizpour & Smith 2018", tolerance="0.01"),
    Metric("brier", "Brier score", "squared probability", "lower", "Brier 1950", tolerance="0.005"),
    Metric(
        "ece",
        "Expected calibration error",
        "fraction",
        "lower",
        "Guo et al. 2017, eq. 3; 15 bins",
        tolerance="0.01",
        mc_error="bootstrap",
    ),
    Metric("mutual_information", "Mutual information", "nats", "none", "Houlsby et al. 2011; Mukhoti et al. 2020"),
    Metric("predictive_entropy", "Predictive entropy", "nats", "none", "Gal 2016, §3.3.1"),
    Metric("expected_entropy", "Expected entropy", "nats", "none", "Gal 2016, §3.3.1; Mukhoti et al. 2020"),
    Metric(
        "variation_ratio", "Variation ratio", "fraction", "none", "Freeman 1965; Gal 2016, §3.3.1", mc_error="bootstrap"
    ),
    Metric(
        "max_probability", "Maximum probability", "fraction", "none", "Hendrycks & Gimpel 2017", mc_error="bootstrap"
    ),
    Metric(
        "aurc",
        "Area under the risk–coverage curve, by predictive entropy",
        "fraction",
        "lower",
        "Geifman, Uziel & El-Yaniv 2019; error–completeness by entropy as Shekhovtsov & Flach 2018, fig. A.3",
        tolerance="0.005",
        mc_error="bootstrap",
    ),
    Metric("auroc", "AUROC", "fraction", "higher", "Hanley & McNeil 1982; Hendrycks & Gimpel 2017", tolerance="0.01"),
    Metric(
        "aupr_out",
        "AUPR, OOD positive",
        "fraction",
        "higher",
        "Hendrycks & Gimpel 2017; average precision",
        tolerance="0.01",
        mc_error="bootstrap",
    ),
    Metric(
        "aupr_in",
        "AUPR, test positive",
        "fraction",
        "higher",
        "Hendrycks & Gimpel 2017; average precision",
        tolerance="0.01",
        mc_error="bootstrap",
    ),
    Metric(
        "fpr95",
        "FPR at 95 % TPR, OOD positive",
        "fraction",
        "lower",
        "Yang et al. 2022 (OpenOOD)",
        tolerance="0.02",
        mc_error="bootstrap",
    ),
    Metric(
        "fpr95_id_positive",
        "FPR at 95 % TPR, test positive",
        "fraction",
        "lower",
        "Liang, Li & Srikant 2018",
        tolerance="0.02",
        mc_error="bootstrap",
    ),
    Metric(
        "rmse",
        "Root mean square error",
        "target unit",
        "lower",
        "√(Σ‖y − f̄‖²/n), as Teye et al. 2018 (their code)",
        tolerance="1%",
    ),
    Metric(
        "mae", "Mean absolute error", "target unit", "lower", "mean of |y − f̄| over points and outputs", tolerance="1%"
    ),
    Metric(
        "crps",
        "Continuous ranked probability score",
        "target unit",
        "lower",
        "Gneiting & Raftery 2007, §4.2; of N(f̄, v + 1/τ) as Teye et al. 2018",
        tolerance="1%",
    ),
    Metric(
        "normalized_pll",
        "PLL between constant and optimum",
        "percent",
        "higher",
        "Teye et al. 2018, §4",
        tolerance="5",
        mc_error="bootstrap",
    ),
    Metric(
        "normalized_crps",
        "CRPS between constant and optimum",
        "percent",
        "higher",
        "Teye et al. 2018, §4",
        tolerance="5",
    ),
    Metric(
        "coverage50",
        "Coverage of the central 50 % interval",
        "fraction",
        "none",
        "Gneiting et al. 2007; nominal best",
        mc_error="bootstrap",
    ),
    Metric(
        "coverage95",
        "Coverage of the central 95 % interval",
        "fraction",
        "none",
        "Gneiting et al. 2007; nominal best",
        mc_error="bootstrap",
    ),
    Metric("spearman", "Rank correlation of sd and |error|", "1", "higher", "Spearman 1904", tolerance="0.05"),
    Metric("variance", "Variance over the samples", "target unit²", "none", "Teye et al. 2018, §3.4"),
    Metric("tau", "Observation precision τ", "1/target unit²", "none", "Teye et al. 2018, §4; least validation CRPS"),
    Metric("sigma", "Constant uncertainty σ", "target unit", "none", "Teye et al. 2018, §4; least validation CRPS"),
)

# How much worse each may be is a matter of taste: what is worth a red light. Whether it is real, its error says.
METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL}

# What OOD points are told apart by: larger is more uncertain, and neither way is better in itself.
SCORES: dict[str, Metric] = {
    "mutual_information": METRICS["mutual_information"],
    "predictive_entropy": METRICS["predictive_entropy"],
    "expected_entropy": METRICS["expected_entropy"],
    "least_confidence": Metric(
        "least_confidence", "Least confidence (1 − maximum probability)", "fraction", "none", "Hendrycks & Gimpel 2017"
    ),
    "variance": METRICS["variance"],
}

REGRESSION_SCORES: tuple[str, ...] = ("variance",)
CLASSIFICATION_SCORES: tuple[str, ...] = tuple(name for name in SCORES if name not in REGRESSION_SCORES)
