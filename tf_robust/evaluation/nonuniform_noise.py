"""Probabilities of non-uniform noise (NUN) at each location, from the standard deviation of training images there."""

import numpy as np

from tf_robust import corruptions, data
from tf_robust.configs.evaluation import EvalConfig
from tf_robust.data.source import Source
from tf_robust.data.subsets import stratified_order

_STD_IMAGES = 50_000
_BATCH = 500
_stds: dict[tuple, np.ndarray] = {}  # cache by the fingerprint of the training set and the size of its images


def noise_probabilities(training_source: Source, eval_config: EvalConfig) -> np.ndarray:
    """Returns NUN's probability of each location [H, W], from (at most 50,000) training images.

    Args:
        training_source: training images.
        eval_config: has NUN's floor.
    """
    return probabilities(training_std(training_source), eval_config)


def probabilities(std: np.ndarray, eval_config: EvalConfig) -> np.ndarray:
    """Returns NUN's probability of each location from its standard deviation, [H, W] both; eval_config: has NUN's floor."""
    return corruptions.nonuniform_probabilities(std, floor=floor_of(eval_config, std))


def training_std(training_source: Source) -> np.ndarray:
    """Returns the standard deviation of each location [H, W] over (at most 50,000) training images; cached."""
    key = training_source.fingerprint(), tuple(training_source.image_shape), str(training_source.fit)
    if key not in _stds:
        _stds[key] = _computed_std(training_source)
    return _stds[key]


def _computed_std(training_source):
    if training_source.sorted_by_class and len(training_source) > _STD_IMAGES:
        training_source = training_source.subset(stratified_order(training_source.labels)[:_STD_IMAGES])
    batches = data.evaluation_batches(training_source, _BATCH).take(_STD_IMAGES // _BATCH)
    return corruptions.location_std(images for images, _ in batches)


def floor_of(eval_config: EvalConfig, std: np.ndarray) -> float:
    """Returns NUN's floor for the standard deviations of the locations [H, W]."""
    return corruptions.default_floor(std) if eval_config.nun_floor == "auto" else float(eval_config.nun_floor)
