"""The figures: pure functions over numpy arrays or torch tensors, sample axis first, without importing torch.

Per-point results have shape (n,) and are of the kind that went in; a single number is a Python float.
"""

from bnuq.metrics.calibration import CalibrationBins, calibration_bins, ece, ece_bootstrap, ece_of_bins
from bnuq.metrics.classification import (
    accuracy,
    brier,
    correct,
    entropy,
    expected_entropy,
    jackknifed_mutual_information,
    least_confidence,
    log_likelihood,
    max_probability,
    mutual_information,
    pll_classification,
    pll_from_log_likelihood,
    predicted,
    predictive_entropy,
    variation_ratio,
)
from bnuq.metrics.detection import (
    DetectionScores,
    aupr,
    auroc,
    auroc_interval,
    delong_variance,
    detection,
    detection_bootstrap,
    fpr_at_tpr,
)
from bnuq.metrics.estimates import DrawWeights, bootstrap_error, draw_weights, jackknife_error, standard_error
from bnuq.metrics.registry import METRICS, SCORES
from bnuq.metrics.selective import aurc, aurc_bootstrap, excess_aurc, risk_coverage

__all__ = [
    "METRICS",
    "SCORES",
    "CalibrationBins",
    "DetectionScores",
    "DrawWeights",
    "accuracy",
    "aupr",
    "aurc",
    "aurc_bootstrap",
    "auroc",
    "auroc_interval",
    "bootstrap_error",
    "brier",
    "calibration_bins",
    "correct",
    "delong_variance",
    "detection",
    "detection_bootstrap",
    "draw_weights",
    "ece",
    "ece_bootstrap",
    "ece_of_bins",
    "entropy",
    "excess_aurc",
    "expected_entropy",
    "fpr_at_tpr",
    "jackknife_error",
    "jackknifed_mutual_information",
    "least_confidence",
    "log_likelihood",
    "max_probability",
    "mutual_information",
    "pll_classification",
    "pll_from_log_likelihood",
    "predicted",
    "predictive_entropy",
    "risk_coverage",
    "standard_error",
    "variation_ratio",
]
