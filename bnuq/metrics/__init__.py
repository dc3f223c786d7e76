"""The metrics: pure functions over numpy arrays or torch tensors, sample axis first, without importing torch.

Per-point results have shape (n,) and the array type of the input; a single number is a Python float.
"""

from bnuq.metrics.bounds import (
    constant_confidence as constant_confidence,
    constant_pll as constant_pll,
    crps_optimum as crps_optimum,
    normalized as normalized,
    optimum_pll as optimum_pll,
    pll_bounds as pll_bounds,
    pll_optimum as pll_optimum,
)
from bnuq.metrics.calibration import (
    CalibrationBins as CalibrationBins,
    calibration_bins as calibration_bins,
    calibration_bootstrap as calibration_bootstrap,
    classwise_signs as classwise_signs,
    ece as ece,
    ece_adaptive as ece_adaptive,
    ece_adaptive_of_replicates as ece_adaptive_of_replicates,
    ece_classwise as ece_classwise,
    ece_debiased_of_bins as ece_debiased_of_bins,
    ece_floor as ece_floor,
    ece_of_bins as ece_of_bins,
    mce_of_bins as mce_of_bins,
)
from bnuq.metrics.certificates import (
    binomial_p_value as binomial_p_value,
    certified_threshold as certified_threshold,
    certified_width as certified_width,
    conformal_rank as conformal_rank,
    coverage_law as coverage_law,
    exact_interval as exact_interval,
    hoeffding_bentkus_p_value as hoeffding_bentkus_p_value,
    points_needed as points_needed,
    rejected_in_order as rejected_in_order,
    risk_controlling_index as risk_controlling_index,
    start_levels as start_levels,
)
from bnuq.metrics.classification import (
    accuracy as accuracy,
    brier as brier,
    brier_epistemic as brier_epistemic,
    correct as correct,
    entropy as entropy,
    expected_entropy as expected_entropy,
    jackknifed_mutual_information as jackknifed_mutual_information,
    least_confidence as least_confidence,
    log_likelihood as log_likelihood,
    max_probability as max_probability,
    mutual_information as mutual_information,
    pll_classification as pll_classification,
    pll_from_log_likelihood as pll_from_log_likelihood,
    pll_of_product as pll_of_product,
    predicted as predicted,
    predictive as predictive,
    predictive_entropy as predictive_entropy,
    variation_ratio as variation_ratio,
    zero_one_epistemic as zero_one_epistemic,
)
from bnuq.metrics.decay import (
    Slope as Slope,
    finite_population_factor as finite_population_factor,
    log_log_slope as log_log_slope,
)
from bnuq.metrics.dense import (
    COARSE_BINS as COARSE_BINS,
    SCORE_BINS as SCORE_BINS,
    bin_values as bin_values,
    classwise_ece as classwise_ece,
    classwise_ece_contributions as classwise_ece_contributions,
    detection_influence_of_images as detection_influence_of_images,
    detection_of_histograms as detection_of_histograms,
    ece_contributions as ece_contributions,
    histogram as histogram,
    ratio_contributions as ratio_contributions,
    risk_coverage_of_histograms as risk_coverage_of_histograms,
    score_bins as score_bins,
    selective_contributions as selective_contributions,
    selective_of_histograms as selective_of_histograms,
)
from bnuq.metrics.detection import (
    DetectionScores as DetectionScores,
    aupr as aupr,
    auroc as auroc,
    auroc_interval as auroc_interval,
    delong_difference_variance as delong_difference_variance,
    delong_variance as delong_variance,
    detection as detection,
    detection_bootstrap as detection_bootstrap,
    detection_of_replicates as detection_of_replicates,
    error_auroc as error_auroc,
    error_auroc_of_replicates as error_auroc_of_replicates,
    fpr_at_tpr as fpr_at_tpr,
    label_auroc as label_auroc,
    label_score as label_score,
)
from bnuq.metrics.elbo import (
    EffectiveCount as EffectiveCount,
    LikelihoodSlope as LikelihoodSlope,
    Prior as Prior,
    effective_counts as effective_counts,
    kl_gamma as kl_gamma,
    kl_normal as kl_normal,
    kl_of_statistics as kl_of_statistics,
    likelihood_slope as likelihood_slope,
    predicted_batch_size as predicted_batch_size,
)
from bnuq.metrics.fits import (
    TauFit as TauFit,
    constant_sigma as constant_sigma,
    constant_sigmas as constant_sigmas,
    optimal_tau as optimal_tau,
    optimal_tau_pll as optimal_tau_pll,
    refined_tau as refined_tau,
    tau_of_distances as tau_of_distances,
    tau_of_mixture as tau_of_mixture,
)
from bnuq.metrics.influence import (
    aurc_influence as aurc_influence,
    detection_influence as detection_influence,
    ece_adaptive_influence as ece_adaptive_influence,
    ece_debiased_influence as ece_debiased_influence,
    ece_influence as ece_influence,
    error_auroc_influence as error_auroc_influence,
    label_auroc_influence as label_auroc_influence,
    normalized_influence as normalized_influence,
    rmse_influence as rmse_influence,
    scod_influence as scod_influence,
    selective_influence as selective_influence,
    spearman_influence as spearman_influence,
)
from bnuq.metrics.intervals import (
    UncertaintyErrorCurve as UncertaintyErrorCurve,
    coverage as coverage,
    interval_calibration as interval_calibration,
    spearman as spearman,
    spearman_of_replicates as spearman_of_replicates,
    uncertainty_error_curve as uncertainty_error_curve,
)
from bnuq.metrics.overlap import (
    dice_contributions as dice_contributions,
    dice_of_counts as dice_of_counts,
    iou_contributions as iou_contributions,
    iou_of_counts as iou_of_counts,
    mean_of_present as mean_of_present,
    overlap_of_draws as overlap_of_draws,
    pairwise_dice as pairwise_dice,
)
from bnuq.metrics.prediction_sets import (
    aps_score as aps_score,
    aps_size as aps_size,
    conformal_threshold as conformal_threshold,
    lac_score as lac_score,
    lac_size as lac_size,
)
from bnuq.metrics.recalibration import (
    PSEUDO_ERRORS as PSEUDO_ERRORS,
    TEMPERATURES as TEMPERATURES,
    VECTOR_RIDGE as VECTOR_RIDGE,
    LogitMaps as LogitMaps,
    errors_of_points as errors_of_points,
    fitted_temperature as fitted_temperature,
    fitted_vector as fitted_vector,
    likelihoods_by_temperature as likelihoods_by_temperature,
    pll_by_temperature as pll_by_temperature,
    pll_slopes as pll_slopes,
    pseudo_weight as pseudo_weight,
    refined_temperatures as refined_temperatures,
)
from bnuq.metrics.regions import (
    near_boundary as near_boundary,
    map_mean as map_mean,
    map_patch_maximum as map_patch_maximum,
    map_upper_tail as map_upper_tail,
)
from bnuq.metrics.registry import (
    CLASSIFICATION_SCORES as CLASSIFICATION_SCORES,
    FEATURE_SCORES as FEATURE_SCORES,
    LOGIT_SCORES as LOGIT_SCORES,
    METRICS as METRICS,
    REGRESSION_SCORES as REGRESSION_SCORES,
    SCORES as SCORES,
    SELECTIVE as SELECTIVE,
    SEPARATIONS as SEPARATIONS,
)
from bnuq.metrics.regression import (
    crps_ensemble as crps_ensemble,
    crps_gaussian as crps_gaussian,
    crps_mixture as crps_mixture,
    crps_terms as crps_terms,
    gaussian_log_likelihood as gaussian_log_likelihood,
    mae as mae,
    pll_gaussian as pll_gaussian,
    pll_of_covariance as pll_of_covariance,
    pll_regression as pll_regression,
    predictive_moments as predictive_moments,
    rmse as rmse,
)
from bnuq.metrics.replicates import (
    DrawWeights as DrawWeights,
    bootstrap_error as bootstrap_error,
    draw_weights as draw_weights,
    jackknife_error as jackknife_error,
    part_weights as part_weights,
    plain_weights as plain_weights,
    standard_error as standard_error,
)
from bnuq.metrics.selective import (
    SelectiveScores as SelectiveScores,
    aurc as aurc,
    risk_coverage as risk_coverage,
    scod as scod,
    scod_of_replicates as scod_of_replicates,
    selective as selective,
    selective_of_replicates as selective_of_replicates,
    selective_bootstrap as selective_bootstrap,
)
from bnuq.metrics.significance import (
    TTest as TTest,
    holm as holm,
    nadeau_bengio as nadeau_bengio,
    stars as stars,
    student_cdf as student_cdf,
    student_quantile as student_quantile,
    t_test as t_test,
)
