"""Fitting images to the height and width of a source: cropped, stretched or padded."""

import dataclasses

import tensorflow as tf

from tf_robust.ops import image_ops
from tf_robust.utils.errors import unknown

FITS = ("crop", "stretch", "pad")
USUAL_SIZE = (224, 224)  # default for images of many sizes
_MARGIN = 256 / 224  # ImageNet's evaluation protocol: the shorter side becomes 256, of which 224 are kept


@dataclasses.dataclass(frozen=True)
class Fit:
    """Resizes one image [h, w, C] of any size, or a batch [N, h, w, C], to float32 [..., height, width, C]: bilinear, antialiased.

    Attributes:
        height: of the result, in pixels.
        width: of the result, in pixels.
        how: `crop` covers the result and crops the center; `stretch` ignores the aspect ratio; `pad` fits the image inside, at the
            center, on black.
        varying: the images have many sizes. `crop` then follows ImageNet's protocol: an image first covers 8/7 of the height and
            width, and training crops random windows instead.

    Raises:
        ValueError: unknown `how`.
    """

    height: int
    width: int
    how: str = "crop"
    varying: bool = False

    def __post_init__(self) -> None:
        if self.how not in FITS:
            raise unknown("image_fit", self.how, FITS)

    @property
    def random_windows(self) -> bool:
        """Whether training crops random windows of the images."""
        return self.varying and self.how == "crop"

    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        channels, target = images.shape[-1], tf.constant([self.height, self.width], tf.float32)
        shape = tf.cast(tf.shape(images)[-3:-1], tf.float32)
        if self.how == "stretch":
            scaled = tf.constant([self.height, self.width])
        elif self.how == "pad":
            side = tf.argmax(shape / target)
            scaled = tf.maximum(1, tf.cast(tf.round(shape * (target[side] / shape[side])), tf.int32))
        else:
            side = tf.argmin(shape / target)
            scaled = tf.cast(tf.round(shape * (target[side] * (_MARGIN if self.varying else 1.0)) / shape[side]), tf.int32)
        images = image_ops.resize(images, scaled[0], scaled[1])
        if self.how == "crop":
            top, left = (scaled[0] - self.height) // 2, (scaled[1] - self.width) // 2
            images = images[..., top : top + self.height, left : left + self.width, :]
        elif self.how == "pad":
            images = tf.image.pad_to_bounding_box(
                images, (self.height - scaled[0]) // 2, (self.width - scaled[1]) // 2, self.height, self.width
            )
        return tf.ensure_shape(images, [*images.shape[:-3], self.height, self.width, channels])

    def levels(self, images: tf.Tensor) -> tf.Tensor:
        """Applies the fit to uint8 images in 0..255; the result is rounded to uint8."""
        return tf.cast(tf.round(tf.clip_by_value(self(images), 0, 255)), tf.uint8)

    def __str__(self) -> str:
        size = f"{self.height}x{self.width}"
        if self.how == "stretch":
            return f"resized to {size}, whatever the aspect ratio"
        if self.how == "pad":
            return f"resized to fit inside {size}, padded with black"
        if not self.varying:
            return f"resized to cover {size}, center-cropped"
        return f"resized to cover {round(self.height * _MARGIN)}x{round(self.width * _MARGIN)}, center-cropped to {size}"
