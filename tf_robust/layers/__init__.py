"""Augmentations and corruptions as Keras layers, for `dataset.map` and inside a model."""

from tf_robust.layers.augmentations import AugMix, PatchGaussian, RandomCorruption, StatelessAugmentation

__all__ = ["AugMix", "PatchGaussian", "RandomCorruption", "StatelessAugmentation"]
