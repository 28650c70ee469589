"""The `Corruption` class: random draws for each image, and a deterministic function of images and draws."""

import dataclasses
from collections.abc import Callable, Sequence

import tensorflow as tf

from tf_robust import metrics
from tf_robust.corruptions import severities
from tf_robust.metrics import SEVERITIES
from tf_robust.ops.draws import Draws
from tf_robust.ops.tiles import in_tiles
from tf_robust.utils.errors import unknown

_RESERVED = {*metrics.MEANS, "mean", "mce", "relative_mce", "calibration_rms"}  # names of metrics corruptions/NAME
TILE_BYTES = 2**19  # of the images of a tile: with their intermediate results they fit a core's cache


@dataclasses.dataclass(frozen=True)
class Corruption:
    """A corruption at five severities.

    Of the common-corruption benchmark (Hendrycks and Dietterich, 2019) or of C-bar (Mintun et al., 2021).

    Attributes:
        name: as in the benchmark.
        apply: (images, *constants, **drawn) -> images: float32 [N, H, W, C] in [0, 1] -> the same, not yet clipped.
            Deterministic.
        draw: (draws, (H, W, C), *constants) -> {name: tensor [N, ...]}, from `Draws`; None if nothing is random.
        levels: the constants of severities 1 to 5, numbers or tuples of them, for images of all sizes; None: those of
            `severities.CONSTANTS`.
        clip: clip results to [0, 1]; false where they always lie there.
        in_tiles: process a few images at a time, which pays where there are many intermediate results.

    Examples:
        >>> darker = tfr.corruptions.Corruption("darker", lambda images, amount: images - amount, levels=(0.1, 0.2, 0.3, 0.4, 0.5))
        >>> round(float(tf.reduce_max(darker(tf.fill([1, 8, 8, 3], 0.9), severity=2))), 2)
        0.7
    """

    name: str
    apply: Callable[..., tf.Tensor]
    draw: Callable[..., dict[str, tf.Tensor]] | None = None
    levels: Sequence[float | tuple[float, ...]] | None = None
    clip: bool = True
    in_tiles: bool = False

    def __post_init__(self):
        if self.name in _RESERVED or not self.name.isidentifier():
            raise ValueError(f"Expected the name of a corruption, not a metric's. Received: {self.name!r}")
        if self.levels is not None and len(self.levels) != len(SEVERITIES):
            raise ValueError(f"Expected levels of severities 1 to 5 for {self.name}. Received: {len(self.levels)}")

    def __call__(
        self, images: tf.Tensor, severity: int, *, seed: int = 0, indices: tf.Tensor | None = None, constants: str = "auto"
    ) -> tf.Tensor:
        """Returns float32 [N, H, W, C] in [0, 1], corrupted; arguments as in `corruptions.corrupt`."""
        numbers, severity = self.constants(severity, static_shape(images), constants), int(severity)  # draws depend on the integer
        if images.shape[0] == 0:
            return images
        indices = tf.range(tf.shape(images)[0]) if indices is None else indices

        def corrupt(images, indices):
            drawn = self.drawn(images, severity, seed, indices, numbers)
            corrupted = self.apply(images, *numbers, **drawn)
            if self.levels is not None:  # not a published one, which the tests check
                corrupted = self._checked(corrupted, images)
            return tf.clip_by_value(corrupted, 0.0, 1.0) if self.clip else corrupted

        return in_tiles(corrupt, images, indices, TILE_BYTES) if self.in_tiles else corrupt(images, indices)

    def _checked(self, corrupted, images):
        """Returns corrupted images; the graph fails if values are not finite, or not in [0, 1] where they are not clipped."""
        if not corrupted.shape.is_compatible_with(images.shape):
            raise ValueError(f"Expected images {images.shape} from the corruption {self.name}. Received: {corrupted.shape}")
        corrupted = tf.debugging.check_numerics(tf.cast(corrupted, tf.float32), f"images of the corruption {self.name}")
        inside = tf.reduce_all((corrupted >= 0) & (corrupted <= 1))
        message = f"Expected images in [0, 1] from the corruption {self.name}, or clip=True"
        with tf.control_dependencies([] if self.clip else [tf.debugging.Assert(inside, [message])]):
            return tf.identity(corrupted)

    def constants(self, severity: int, shape: Sequence[int], constants: str = "auto") -> tuple[float, ...]:
        """Returns the constants of one severity.

        Args:
            severity: 1 to 5.
            shape: (H, W, ...) of the images.
            constants: name of a set; "auto": the set made for images nearest in size.

        Raises:
            ValueError: unknown severity or set.
        """
        if severity not in SEVERITIES:
            raise ValueError(f"Expected severity in 1..5. Received: {severity}")
        severity = int(severity)
        if constants != "auto" and constants not in severities.SETS:
            raise unknown("set of constants", constants, ("auto", *severities.SETS))
        chosen = severities.nearest_set(shape[0], shape[1]) if constants == "auto" else constants
        return severities.constants_of(self.name, severity, chosen, self.levels)

    def drawn(
        self, images: tf.Tensor, severity: int, seed: int, indices: tf.Tensor | None, constants: Sequence[float]
    ) -> dict[str, tf.Tensor]:
        """Returns the random inputs of `apply`, {name: tensor [N, ...]}: a function of seed, severity and indices alone."""
        if self.draw is None:
            return {}
        indices = tf.range(tf.shape(images)[0]) if indices is None else indices
        return self.draw(Draws(seed, indices, self.name, severity), static_shape(images), *constants)


def static_shape(images: tf.Tensor | tf.TensorSpec) -> tuple[int, int, int]:
    """Returns (H, W, C) of a batch.

    Raises:
        ValueError: H, W or C is not known when the graph is built, or C is neither 1 nor 3.
    """
    shape = tuple(images.shape[1:])
    if len(shape) != 3 or None in shape or shape[2] not in (1, 3) or 0 in shape:
        raise ValueError(
            f"Expected images [N, H, W, C] with known H and W and C = 1 or 3. Received shape: {images.shape}. "
            f"Try: tf.ensure_shape inside Dataset.map"
        )
    return shape
