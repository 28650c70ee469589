"""What a corruption is: what is drawn for each image, and what is then done with it."""

import dataclasses
import typing

import tensorflow as tf

from tf_robust.corruptions import severities
from tf_robust.ops.draws import Draws
from tf_robust.utils.errors import unknown


@dataclasses.dataclass(frozen=True)
class Corruption:
    """A corruption of the common-corruption benchmark, at five severities (Hendrycks and Dietterich, 2019).

    Attributes:
        name: as in the benchmark.
        apply: (images, *constants, **drawn) -> images: float32 [N, H, W, C] in [0, 1] -> the same, not yet clipped.
            Deterministic.
        draw: (draws, (H, W, C), *constants) -> {name: tensor [N, ...]}, from `Draws`; None where nothing is random.
    """
    name: str
    apply: typing.Callable
    draw: typing.Callable = None

    def __call__(self, images, severity, *, seed=0, indices=None, constants="auto"):
        """float32 [N, H, W, C] in [0, 1] -> the same; arguments as `corruptions.corrupt`."""
        shape = static_shape(images)
        numbers = self.constants(severity, shape, constants)
        return tf.clip_by_value(self.apply(images, *numbers, **self.drawn(images, severity, seed, indices, numbers)), 0.0, 1.0)

    def constants(self, severity, shape, which="auto"):
        """The numbers of one severity: of the set `which`, or of the one made for images nearest in size."""
        if severity not in range(1, 6):
            raise ValueError(f"Expected severity in 1..5. Received: {severity}")
        if which != "auto" and which not in severities.SETS:
            raise unknown("set of constants", which, ("auto", *severities.SETS))
        return severities.constants_of(self.name, severity, severities.nearest_set(*shape[:2]) if which == "auto" else which)

    def drawn(self, images, severity, seed, indices, numbers):
        """What is random about these images, {name: tensor [N, ...]}: a function of seed, severity and indices alone."""
        if self.draw is None:
            return {}
        indices = tf.range(tf.shape(images)[0]) if indices is None else indices
        return self.draw(Draws(seed, indices, self.name, severity), static_shape(images), *numbers)


def static_shape(images):
    """(H, W, C) of a batch.

    Raises:
        ValueError: they are not known when the graph is built, or C is neither 1 nor 3.
    """
    shape = tuple(images.shape[1:])
    if len(shape) != 3 or None in shape or shape[2] not in (1, 3) or 0 in shape:
        raise ValueError(f"Expected images [N, H, W, C] with known H and W and C = 1 or 3. Received shape: {images.shape}; "
                         f"inside Dataset.map, tf.ensure_shape makes a shape known")
    return shape
