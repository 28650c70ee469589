"""Metrics of predictions, in NumPy: calibration, abstention, prediction sets, open sets, corruption errors, flips; and of embeddings.

Accuracies, errors, probabilities and confidences are fractions in [0, 1]. Only ratios to a reference network
(`mean_corruption_error`, `flip_rate`, ...) are in percent, as in the literature.
"""

from tf_robust.metrics.abstention import Threshold, accuracy_threshold, answered, aurra, examples_needed, response_rate_curve
from tf_robust.metrics.calibration import (
    brier_score,
    brier_scores,
    expected_calibration_error,
    negative_log_likelihood,
    negative_log_likelihoods,
    reliability_bins,
    rms_calibration_error,
)
from tf_robust.metrics.certification import certified_radii, largest_radius, samples_needed
from tf_robust.metrics.conformal import aps_scores, conformal_quantile
from tf_robust.metrics.corruption_error import (
    BAR,
    BENCHMARK,
    EXTRA,
    GROUPS,
    MEANS,
    SEVERITIES,
    corruption_means,
    mean_corruption_error,
    relative_mean_corruption_error,
)
from tf_robust.metrics.flips import CIFAR_PERTURBATIONS, PERTURBATIONS, flip_probability, flip_rate, mean_flip_probability, mean_flip_rate
from tf_robust.metrics.intervals import clopper_pearson_lower, wilson_interval
from tf_robust.metrics.linearized import aurra_values, expected_calibration_values, rms_calibration_values
from tf_robust.metrics.open_set import auroc, false_positive_rate, logit_scores, neighbor_scores
from tf_robust.metrics.paired import mcnemar, newcombe_interval, paired_difference, selected_difference
from tf_robust.metrics.references import reference_table
from tf_robust.metrics.representation import alignment, nearest_neighbour_accuracy, rank_correlations, uniformity
from tf_robust.metrics.scaling import fit_temperature, fit_vector_scaling
