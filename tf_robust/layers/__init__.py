"""Augmentations, corruptions and calibration as Keras layers, for `dataset.map` and inside a model."""

from tf_robust.layers.augmentations import AugMix, PatchGaussian, RandomAugmentation, RandomCorruption
from tf_robust.layers.parameter import Parameter
from tf_robust.layers.scale_logits import ScaleLogits

__all__ = ["AugMix", "Parameter", "PatchGaussian", "RandomAugmentation", "RandomCorruption", "ScaleLogits"]
