"""AugMix (Hendrycks et al., 2020): an image mixed with chains of simple operations on it.

    A(x) = (1 - m) x + m * sum over i of w_i chain_i(x),    m ~ Beta(alpha, alpha), w ~ Dirichlet(alpha, ..., alpha)

A chain applies one to three operations, each with a newly drawn amount. The result for an image depends on (seed, its index)
alone.
"""

from collections.abc import Sequence

import tensorflow as tf

from tf_robust.ops import pillow_ops
from tf_robust.ops.draws import Draws
from tf_robust.ops.image_ops import to_levels
from tf_robust.ops.tiles import in_tiles

__all__ = ["augmix"]

LONGEST = 3  # operations in a chain
TILE_BYTES = 2**21  # of the images of a tile, each operation of which takes a fixed time besides
NINE = ("autocontrast", "equalize", "posterize", "rotate", "solarize", "shear_x", "shear_y", "translate_x", "translate_y")
NAMES = (*NINE, "color", "contrast", "brightness", "sharpness")  # the last four are also corruptions of the benchmark


# `seed` and `indices` are not annotated: annotated arguments with a default become flags
def augmix(
    images: tf.Tensor,
    seed=0,
    indices=None,
    severity: float = 3.0,
    width: int = 3,
    depth: int = -1,
    alpha: float = 1.0,
    all_ops: bool = False,
) -> tf.Tensor:
    """Applies AugMix to images.

    Args:
        images: float32 [N, H, W, C] in [0, 1], C = 1 or 3. Rounded to 255 levels for the chains.
        seed: int, or int [2].
        indices: int [N], positions in the data set; None: 0..N-1.
        severity: amounts are drawn from levels between 0.1 and this, of 10.
        width: number of chains.
        depth: operations in a chain, 1 to 3; -1: drawn for each chain.
        alpha: of the Dirichlet and Beta distributions of the weights.
        all_ops: also change color, contrast, brightness and sharpness, which overlap with the corruption benchmark.

    Returns:
        float32 [N, H, W, C] in [0, 1]

    Raises:
        ValueError: an argument is out of range, or the images' size is not known.

    Examples:
        >>> from tf_robust.data.augmix import augmix
        >>> images, _ = tfr.images(4, data="digits")
        >>> mixed = augmix(images, seed=0)
        >>> mixed.shape.as_list(), bool(np.allclose(augmix(images[2:], seed=0, indices=[2, 3]), mixed[2:]))
        ([4, 28, 28, 1], True)
    """
    images = _checked(images)
    indices = tf.range(tf.shape(images)[0]) if indices is None else indices

    def mix(images, indices):
        return _mixed(images, draw(seed, indices, images.shape[1:], severity, width, depth, alpha, all_ops), all_ops)

    return in_tiles(mix, images, indices, TILE_BYTES)


def _mixed(images, drawn, all_ops):
    """Mixes images with their chains."""
    lam = drawn["lam"][:, None]
    weights = tf.unstack(drawn["weights"] * (lam * (1.0 / 255.0)), axis=1)
    mixed = tf.add_n(
        [
            _per_image(1.0 - lam[:, 0]) * images,
            *(_per_image(weight) * tf.cast(chain, tf.float32) for weight, chain in zip(weights, _chains(images, drawn, all_ops))),
        ]
    )
    return tf.minimum(mixed, 1.0)  # the sum of the weights may exceed 1 in its last bit


def augmix_chain(images: tf.Tensor, seed: tf.Tensor, *, severity: float = 3.0, depth: int = -1, all_ops: bool = False) -> tf.Tensor:
    """Applies one chain of AugMix, for methods that weight the chains: images and int [2] seed -> images in [0, 1].

    Args:
        images: float32 [N, H, W, C] in [0, 1].
        seed: int [2].
        severity: amounts are drawn from levels between 0.1 and this, of 10.
        depth: operations in a chain, 1 to 3; -1: drawn for each chain.
        all_ops: also change color, contrast, brightness and sharpness.
    """
    images = _checked(images)
    drawn = draw(seed, tf.shape(images)[0], images.shape[1:], severity, 1, depth, 1.0, all_ops)
    return tf.cast(_chains(images, drawn, all_ops)[0], tf.float32) * (1.0 / 255.0)


def draw(
    seed: int | tf.Tensor,
    indices: int | tf.Tensor,
    shape: Sequence[int],
    severity: float = 3.0,
    width: int = 3,
    depth: int = -1,
    alpha: float = 1.0,
    all_ops: bool = False,
) -> dict[str, tf.Tensor]:
    """Draws the random numbers of AugMix for some images; arguments as in `augmix`, and shape: (H, W, C).

    Returns:
        {"operation": int32 [N, width, 3], positions in NAMES; "amount": float32 [N, width, 3], arguments of Pillow's functions;
        "depth": int32 [N, width], how many of the three are applied; "weights": float32 [N, width], of the chains;
        "lam": float32 [N], mixing coefficient of all chains together}

    Raises:
        ValueError: an argument is out of range.
    """
    if not 0.1 < severity <= 10:
        raise ValueError(f"Expected severity in (0.1, 10]. Received: {severity}")
    if width < 1 or depth not in (-1, 1, 2, 3):
        raise ValueError(f"Expected width >= 1 and depth 1, 2, 3 or -1. Received: width={width}, depth={depth}")
    if not alpha > 0:
        raise ValueError(f"Expected alpha > 0. Received: {alpha}")
    draws = Draws(seed, indices, "augmix")
    operation = draws.integers([width, LONGEST], 0, len(NAMES if all_ops else NINE))
    level = draws.uniform([width, LONGEST], 0.1, severity)
    sign = tf.cast(2 * draws.integers([width, LONGEST], 0, 2) - 1, tf.float32)
    longest = draws.integers([width], 1, LONGEST + 1)
    gammas = draws.gamma(float(alpha), [width])
    return {
        "operation": operation,
        "amount": _amounts(operation, level, sign, shape),
        "depth": longest if depth == -1 else tf.fill(tf.shape(longest), depth),
        "weights": gammas / tf.reduce_sum(gammas, axis=1, keepdims=True),
        "lam": draws.beta(float(alpha), float(alpha)),
    }


def _amounts(operation, level, sign, shape):
    """Returns the arguments of Pillow's functions at a level in 0..10: [..., ] each."""
    height, width, _ = shape

    def truncated(maximum):
        return tf.floor(level * (maximum / 10))

    amounts = {
        "posterize": 4.0 - truncated(4),
        "rotate": sign * truncated(30),
        "solarize": 256.0 - truncated(256),
        "shear_x": sign * level * 0.03,
        "shear_y": sign * level * 0.03,
        "translate_x": sign * truncated(width / 3),
        "translate_y": sign * truncated(height / 3),
    }
    enhance = level * 0.18 + 0.1
    amounts.update(dict.fromkeys(NAMES[len(NINE) :], enhance))
    table = tf.stack([amounts.get(name, tf.zeros_like(level)) for name in NAMES], axis=-1)
    return tf.gather(table, operation, batch_dims=operation.shape.rank)


def _chains(images, drawn, all_ops):
    """Returns the chains before mixing: a list of uint8 [N, H, W, C]."""
    width = drawn["operation"].shape[1]
    levels = tf.tile(to_levels(images), [width, 1, 1, 1])
    operation, amount = (tf.reshape(tf.transpose(drawn[name], [2, 1, 0]), [LONGEST, -1]) for name in ("operation", "amount"))
    depth = tf.reshape(tf.transpose(drawn["depth"]), [-1])
    for step in range(LONGEST):
        chosen = tf.where(step < depth, operation[step], -1)
        levels = pillow_ops.apply_chosen(levels, chosen, amount[step], NAMES if all_ops else NINE)
    return tf.split(levels, width)


def _checked(images):
    images = tf.convert_to_tensor(images, tf.float32)
    shape = images.shape[1:]
    if images.shape.rank != 4 or None in shape or shape[-1] not in (1, 3):
        raise ValueError(f"Expected images [N, H, W, C] with known H and W and C = 1 or 3. Received shape: {images.shape}")
    return images


def _per_image(numbers):
    return numbers[:, None, None, None]
