"""What each figure means: unit, direction and source, for tables, files and the gate alike."""

from __future__ import annotations

from bnuq.records import Metric

_ALL = (
    Metric("accuracy", "Accuracy", "fraction", "higher", "share of points whose most probable class is the true one"),
    Metric("pll", "Predictive log-likelihood", "nats", "higher", "Teye, Azizpour & Smith 2018"),
    Metric("brier", "Brier score", "squared probability", "lower", "Brier 1950"),
    Metric("ece", "Expected calibration error", "fraction", "lower", "Guo et al. 2017, eq. 3; 15 bins"),
    Metric("mutual_information", "Mutual information", "nats", "none", "Houlsby et al. 2011; Mukhoti et al. 2020"),
    Metric("predictive_entropy", "Predictive entropy", "nats", "none", "Gal 2016, §3.3.1"),
    Metric("expected_entropy", "Expected entropy", "nats", "none", "Gal 2016, §3.3.1; Mukhoti et al. 2020"),
    Metric("variation_ratio", "Variation ratio", "fraction", "none", "Freeman 1965; Gal 2016, §3.3.1"),
    Metric("max_probability", "Maximum probability", "fraction", "none", "Hendrycks & Gimpel 2017"),
    Metric(
        "aurc",
        "Area under the risk–coverage curve, by predictive entropy",
        "fraction",
        "lower",
        "Geifman, Uziel & El-Yaniv 2019; error–completeness by entropy as Shekhovtsov & Flach 2018, fig. A.3",
    ),
    Metric("auroc", "AUROC", "fraction", "higher", "Hanley & McNeil 1982; Hendrycks & Gimpel 2017"),
    Metric("aupr_out", "AUPR, OOD positive", "fraction", "higher", "Hendrycks & Gimpel 2017; average precision"),
    Metric("aupr_in", "AUPR, test positive", "fraction", "higher", "Hendrycks & Gimpel 2017; average precision"),
    Metric("fpr95", "FPR at 95 % TPR, OOD positive", "fraction", "lower", "Yang et al. 2022 (OpenOOD)"),
    Metric("fpr95_id_positive", "FPR at 95 % TPR, test positive", "fraction", "lower", "Liang, Li & Srikant 2018"),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL}

# What OOD points are told apart by: larger is more uncertain, and neither way is better in itself.
SCORES: dict[str, Metric] = {
    "mutual_information": METRICS["mutual_information"],
    "predictive_entropy": METRICS["predictive_entropy"],
    "expected_entropy": METRICS["expected_entropy"],
    "least_confidence": Metric(
        "least_confidence", "Least confidence (1 − maximum probability)", "fraction", "none", "Hendrycks & Gimpel 2017"
    ),
}
