"""AutoAugment (Cubuk et al., CVPR 2019): every image draws one of 25 sub-policies of two operations each.

Tables: the paper's appendix, as in two independent re-implementations (DeepVoltaire/AutoAugment, torchvision);
20 of CIFAR-10's 25 are also in the authors' own code (tensorflow/models, research/autoaugment), which trains on 95.
The operations are Pillow's, bilinear where they move pixels, with black fill. The authors' code interpolates by the nearest
pixel and fills with the data's mean color, others with gray (128).
"""

import typing
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_robust.ops import philox, pillow_ops
from tf_robust.utils.errors import unknown

# ((operation, probability, level), (operation, probability, level)), one row per sub-policy
POLICIES = {
    "cifar10": (
        (("invert", 0.1, 7), ("contrast", 0.2, 6)),
        (("rotate", 0.7, 2), ("translate_x", 0.3, 9)),
        (("sharpness", 0.8, 1), ("sharpness", 0.9, 3)),
        (("shear_y", 0.5, 8), ("translate_y", 0.7, 9)),
        (("autocontrast", 0.5, 8), ("equalize", 0.9, 2)),
        (("shear_y", 0.2, 7), ("posterize", 0.3, 7)),
        (("color", 0.4, 3), ("brightness", 0.6, 7)),
        (("sharpness", 0.3, 9), ("brightness", 0.7, 9)),
        (("equalize", 0.6, 5), ("equalize", 0.5, 1)),
        (("contrast", 0.6, 7), ("sharpness", 0.6, 5)),
        (("color", 0.7, 7), ("translate_x", 0.5, 8)),
        (("equalize", 0.3, 7), ("autocontrast", 0.4, 8)),
        (("translate_y", 0.4, 3), ("sharpness", 0.2, 6)),
        (("brightness", 0.9, 6), ("color", 0.2, 8)),
        (("solarize", 0.5, 2), ("invert", 0.0, 3)),
        (("equalize", 0.2, 0), ("autocontrast", 0.6, 0)),
        (("equalize", 0.2, 8), ("equalize", 0.6, 4)),
        (("color", 0.9, 9), ("equalize", 0.6, 6)),
        (("autocontrast", 0.8, 4), ("solarize", 0.2, 8)),
        (("brightness", 0.1, 3), ("color", 0.7, 0)),
        (("solarize", 0.4, 5), ("autocontrast", 0.9, 3)),
        (("translate_y", 0.9, 9), ("translate_y", 0.7, 9)),
        (("autocontrast", 0.9, 2), ("solarize", 0.8, 3)),
        (("equalize", 0.8, 8), ("invert", 0.1, 3)),
        (("translate_y", 0.7, 9), ("autocontrast", 0.9, 1)),
    ),
    "imagenet": (
        (("posterize", 0.4, 8), ("rotate", 0.6, 9)),
        (("solarize", 0.6, 5), ("autocontrast", 0.6, 5)),
        (("equalize", 0.8, 8), ("equalize", 0.6, 3)),
        (("posterize", 0.6, 7), ("posterize", 0.6, 6)),
        (("equalize", 0.4, 7), ("solarize", 0.2, 4)),
        (("equalize", 0.4, 4), ("rotate", 0.8, 8)),
        (("solarize", 0.6, 3), ("equalize", 0.6, 7)),
        (("posterize", 0.8, 5), ("equalize", 1.0, 2)),
        (("rotate", 0.2, 3), ("solarize", 0.6, 8)),
        (("equalize", 0.6, 8), ("posterize", 0.4, 6)),
        (("rotate", 0.8, 8), ("color", 0.4, 0)),
        (("rotate", 0.4, 9), ("equalize", 0.6, 2)),
        (("equalize", 0.0, 7), ("equalize", 0.8, 8)),
        (("invert", 0.6, 4), ("equalize", 1.0, 8)),
        (("color", 0.6, 4), ("contrast", 1.0, 8)),
        (("rotate", 0.8, 8), ("color", 1.0, 2)),
        (("color", 0.8, 8), ("solarize", 0.8, 7)),
        (("sharpness", 0.4, 7), ("invert", 0.6, 8)),
        (("shear_x", 0.6, 5), ("equalize", 1.0, 9)),
        (("color", 0.4, 0), ("equalize", 0.6, 3)),
        (("equalize", 0.4, 7), ("solarize", 0.2, 4)),
        (("solarize", 0.6, 5), ("autocontrast", 0.6, 5)),
        (("invert", 0.6, 4), ("equalize", 1.0, 8)),
        (("color", 0.6, 4), ("contrast", 1.0, 8)),
        (("equalize", 0.8, 8), ("equalize", 0.6, 3)),
    ),
}
SIGNED = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")  # negated for half of the images


def autoaugment(
    images: tf.Tensor,
    seed: tf.Tensor,
    *,
    policy: typing.Literal["cifar10", "imagenet"] = "cifar10",
    magnitudes: typing.Literal["paper", "official"] = "paper",
) -> tf.Tensor:
    """Applies one of a policy's 25 sub-policies to each image; each of its two operations with its own probability.

    Images are rounded to 256 levels, as Pillow's operations require.

    Args:
        images: float32 [N, H, W, C] in [0, 1].
        seed: int [2].
        policy: the table for CIFAR-10 or for ImageNet.
        magnitudes: strength of a level of 0 to 9. `paper`: ten even steps over the ranges of its Table 1; `official`: as in
            the authors' CIFAR code, tenths of the ranges, translations of up to 10 pixels of 32, 4 bits at most.
    """
    chosen, amounts = draw(seed, tf.shape(images)[0], policy, images.shape[1:3], magnitudes)
    levels = tf.cast(tf.round(images * 255.0), tf.uint8)
    for step in range(2):
        levels = pillow_ops.apply_chosen(levels, chosen[:, step], amounts[:, step], operations(policy))
    return tf.cast(levels, tf.float32) * (1.0 / 255.0)


def draw(
    seed: tf.Tensor, count: int | tf.Tensor, policy: str, shape: Sequence[int], magnitudes: str = "paper"
) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws the operations of each of `count` images of `shape` (H, W); other arguments as in `autoaugment`.

    Returns:
        (int32 [count, 2], positions in `operations(policy)`, -1 for none; float32 [count, 2], arguments of Pillow's functions)
    """
    names = operations(policy)  # a row has position, probability, argument, and 1 if its sign is random
    table = np.array(
        [
            [(names.index(name), chance, amount(name, level, shape, magnitudes), name in SIGNED) for name, chance, level in sub_policy]
            for sub_policy in POLICIES[policy]
        ],
        np.float32,
    )
    uniform = philox.uniform([count, 5], seed)
    rows = tf.gather(tf.constant(table), tf.cast(uniform[:, 0] * 25.0, tf.int32))
    positions, probabilities, amounts, signed = tf.unstack(rows, axis=2)  # [count, 2] each
    chosen = tf.where(uniform[:, 1:3] < probabilities, positions, tf.fill([count, 2], -1.0))
    negated = tf.cast(uniform[:, 3:] < 0.5, tf.float32) * signed
    return tf.cast(chosen, tf.int32), amounts * (1.0 - 2.0 * negated)


def operations(policy: str) -> tuple[str, ...]:
    """Returns the names of the operations that a policy uses; raises ValueError for an unknown policy."""
    if policy not in POLICIES:
        raise unknown("policy", policy, POLICIES)
    return tuple(sorted({name for sub_policy in POLICIES[policy] for name, _, _ in sub_policy}))


def amount(name: str, level: int, shape: Sequence[int], magnitudes: str = "paper") -> float:
    """Returns Pillow's argument for an operation at a level of 0 to 9, not negative; 0 if the operation takes none.

    Strength increases with the level, also of posterize and solarize, as in the authors' code. The factor of color,
    contrast, brightness and sharpness increases from 0.1 to 1.9 and has no sign (authors' code; others: 1 +- 0.1 for each level).
    shape: (H, W) in pixels. Raises ValueError for unknown magnitudes.
    """
    if magnitudes not in ("paper", "official"):
        raise unknown("magnitudes", magnitudes, ("paper", "official"))
    official = magnitudes == "official"
    steps, reach = (10, 10 / 32) if official else (9, 150 / 331)
    fraction = level / steps
    if name in ("translate_x", "translate_y"):
        return float(int(reach * shape[name == "translate_x"] * level / steps))
    return float(
        {
            "shear_x": 0.3 * fraction,
            "shear_y": 0.3 * fraction,
            "rotate": 30.0 * fraction,
            "posterize": 4 - int(4 * fraction) if official else 8 - round(4 * fraction),
            "solarize": 256 - int(256 * fraction),
            **dict.fromkeys(("color", "contrast", "brightness", "sharpness"), 0.1 + 1.8 * fraction),
        }.get(name, 0.0)
    )
