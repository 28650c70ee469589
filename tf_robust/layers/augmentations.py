"""Keras layers that call the functions of `data` and `corruptions`.

A layer draws anew at every call, from a generator that begins at its seed: as Keras' own layers do, also in `dataset.map` and in every
epoch. Where a step is given, its draws are a pure function of (seed, step, position in the batch): the same in every run, on every
device and in `dataset.map` with parallel calls.
"""

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_robust import corruptions
from tf_robust.data.augment import patch_gaussian
from tf_robust.data.augmix import augmix
from tf_robust.ops import image_ops, philox
from tf_robust.utils.errors import unknown


class RandomAugmentation(keras.layers.Layer):
    """Base class: images [N, H, W, C] or one image [H, W, C] -> float32 of the same shape; the images themselves if not `training`.

    Args:
        options: of the augmentation, by name: arguments of the subclass.
        seed: int, of the draws.
        input_range: (low, high) of the images, in and out.
        **kwargs: of `keras.layers.Layer`.

    Examples:
        >>> class Darken(tfr.layers.RandomAugmentation):
        ...     def augment(self, images, seed):
        ...         return images * tf.random.stateless_uniform([tf.shape(images)[0], 1, 1, 1], seed)
        >>> layer, images = Darken({}, seed=7), np.full((2, 8, 8, 3), 0.5)
        >>> bool(tf.reduce_all(layer(images) < 0.5)), bool(tf.reduce_all(layer(images, training=False) == 0.5))
        (True, True)
    """

    def __init__(self, options: dict[str, Any], *, seed: int = 0, input_range: Sequence[float] = (0.0, 1.0), **kwargs):
        super().__init__(**{"dtype": "float32", **kwargs})
        self.options = options
        low, high = input_range
        if not high > low:
            raise ValueError(f"Expected input_range=(low, high) with low < high. Received: {tuple(input_range)}")
        self.seed, self.input_range, self.built = seed, (float(low), float(high)), True

    @functools.cached_property
    def generator(self) -> tf.random.Generator:
        """The generator of draws without a step. Making it starts TensorFlow's runtime, so it is made by the first call."""
        with tf.init_scope(), tf.device("CPU:0"):  # where `dataset.map` runs
            return tf.random.Generator.from_seed(self.seed)

    def augment(self, images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Returns augmented images.

        Args:
            images: float32 [N, H, W, C] in [0, 1].
            seed: int64 [2].
        """
        raise NotImplementedError

    def call(self, images: tf.Tensor, step: tf.Tensor | int | None = None, training: bool = True) -> tf.Tensor:
        """Returns augmented images.

        Args:
            images: [N, H, W, C] or [H, W, C].
            step: a number for each batch, such as that of `dataset.enumerate()`, which determines the draws; None: new draws at
                every call.
            training: whether to augment.

        Raises:
            ValueError: integers with the default `input_range`.
            tf.errors.InvalidArgumentError: values outside `input_range`.
        """
        images = tf.convert_to_tensor(images)
        if images.dtype.is_integer and self.input_range == (0.0, 1.0):
            raise ValueError(f"Expected float images in [0, 1]. Received: {images.dtype.name}. Try: input_range=(0, 255)")
        images = tf.cast(images, tf.float32)
        if not training:
            return images
        (low, high), batch = self.input_range, images if images.shape.rank == 4 else images[None]
        unit = image_ops.unit_images(batch, (low, high))
        if step is None:
            seed = self.generator.uniform_full_int([2], tf.int64)
        else:
            seed = tf.stack([tf.constant(self.seed, tf.int64), tf.cast(step, tf.int64)])
        augmented = self.augment(unit, seed)
        augmented = tf.ensure_shape(augmented * (high - low) + low, batch.shape)
        return augmented if images.shape.rank == 4 else augmented[0]

    def compute_output_shape(self, input_shape: Sequence[int | None]) -> tuple[int | None, ...]:
        return tuple(input_shape)

    def get_config(self) -> dict:
        return {**super().get_config(), **self.options, "seed": self.seed, "input_range": self.input_range}


@keras.saving.register_keras_serializable("tf_robust")
class AugMix(RandomAugmentation):
    """AugMix (Hendrycks et al., 2020), `data.augmix.augmix`.

    Args:
        severity: amounts are drawn from levels between 0.1 and this, of 10.
        width: number of chains.
        depth: operations in a chain, 1 to 3; -1: drawn for each chain.
        alpha: of the Dirichlet and Beta distributions of the weights.
        all_ops: also change color, contrast, brightness and sharpness, which overlap with the corruption benchmark.
        **kwargs: `seed` and `input_range`.

    Examples:
        >>> layer = tfr.layers.AugMix(severity=3.0, width=1)
        >>> images = np.linspace(0, 1, 2 * 8 * 8 * 3).reshape(2, 8, 8, 3)
        >>> augmented = layer(images, step=5)
        >>> augmented.shape, np.array_equal(augmented, layer(images, step=5))  # a step determines the draws
        (TensorShape([2, 8, 8, 3]), True)
    """

    def __init__(self, *, severity: float = 3.0, width: int = 3, depth: int = -1, alpha: float = 1.0, all_ops: bool = False, **kwargs):
        super().__init__({"severity": severity, "width": width, "depth": depth, "alpha": alpha, "all_ops": all_ops}, **kwargs)

    def augment(self, images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return augmix(images, seed, **self.options)


@keras.saving.register_keras_serializable("tf_robust")
class PatchGaussian(RandomAugmentation):
    """Patch Gaussian (Lopes et al., 2019), `data.augment.patch_gaussian`.

    Args:
        size: side of the patch in pixels.
        sigma: standard deviation of the noise, as a fraction of the range.
        random_size: draw each image's side uniformly from 1..size instead of using `size`.
        random_sigma: draw each image's standard deviation uniformly from [0, sigma] instead of using `sigma`.
        **kwargs: `seed` and `input_range`.

    Examples:
        >>> layer = tfr.layers.PatchGaussian(size=4, sigma=0.5)
        >>> noise = layer(np.full((1, 16, 16, 3), 0.5)) - 0.5
        >>> 0 < int(tf.math.count_nonzero(noise)) <= 4 * 4 * 3  # one patch of 16 x 16 x 3 values
        True
    """

    def __init__(self, *, size: int = 25, sigma: float = 0.1, random_size: bool = False, random_sigma: bool = False, **kwargs):
        super().__init__({"size": size, "sigma": sigma, "random_size": random_size, "random_sigma": random_sigma}, **kwargs)

    def augment(self, images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return patch_gaussian(images, seed, **self.options)


@keras.saving.register_keras_serializable("tf_robust")
class RandomCorruption(RandomAugmentation):
    """One corruption, drawn for each call: for each batch, or before `dataset.batch` for each image.

    Args:
        names: of `corruptions.CORRUPTIONS`, to draw from. Train on others than those that you evaluate on.
        severities: 1 to 5, to draw from.
        **kwargs: `seed` and `input_range`.

    Examples:
        >>> layer = tfr.layers.RandomCorruption(["contrast"], severities=[3], input_range=(0, 255))
        >>> images = np.linspace(0, 255, 16 * 16 * 3).reshape(1, 16, 16, 3)
        >>> corrupted = tfr.corruptions.corrupt(images / 255, "contrast", 3)
        >>> np.allclose(layer(images), corrupted * 255, atol=0.01)
        True
    """

    def __init__(self, names: Sequence[str], *, severities: Sequence[int] = (1, 2, 3), **kwargs):
        super().__init__({"names": tuple(names), "severities": tuple(severities)}, **kwargs)
        for name in names:
            if name not in corruptions.CORRUPTIONS:
                raise unknown("corruption", name, corruptions.CORRUPTIONS)
        if not names or not severities or not set(severities) <= set(range(1, 6)):
            raise ValueError(f"Expected names, and severities in 1..5. Received: {tuple(names)}, {tuple(severities)}")

    def augment(self, images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        choices = list(itertools.product(self.options["names"], self.options["severities"]))
        drawn = philox.uniform([], seed, 0, len(choices), tf.int32)
        return tf.switch_case(
            drawn, [functools.partial(corruptions.CORRUPTIONS[name], images, severity, seed=seed) for name, severity in choices]
        )
