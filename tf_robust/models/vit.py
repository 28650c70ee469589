"""A small vision transformer for images of 28 to 64 pixels, in plain Keras layers (Dosovitskiy et al., 2021; Beyer et al., 2022).

It has patches of 4 pixels, learned positions, pre-norm blocks, and the mean over tokens in place of a class token.
"""

from collections.abc import Sequence

import keras

from tf_robust.models import heads


def _patches(x, patch):
    """Divides images [N, H, W, C] into flat patches [N, T, patch * patch * C], row by row."""
    _, height, width, channels = x.shape
    rows, columns = height // patch, width // patch
    x = keras.layers.Reshape((rows, patch, columns, patch, channels))(x)
    x = keras.layers.Permute((1, 3, 2, 4, 5))(x)
    return keras.layers.Reshape((rows * columns, patch * patch * channels))(x)


def _block(x, heads_count, hidden, name):
    """Returns a pre-norm transformer block's output, [N, T, E]."""
    width = x.shape[-1]
    y = keras.layers.LayerNormalization(epsilon=1e-6)(x)
    y = keras.layers.MultiHeadAttention(heads_count, width // heads_count)(y, y)
    x = keras.layers.Add()([x, y])
    y = keras.layers.LayerNormalization(epsilon=1e-6)(x)
    y = keras.layers.Dense(hidden, activation="gelu")(y)
    return keras.layers.Add(name=name)([x, keras.layers.Dense(width)(y)])


def vit_tiny4(
    input_shape: Sequence[int],
    num_classes: int,
    *,
    width: int = 192,
    depth: int = 6,
    mean: heads.PerChannel = 0.5,
    std: heads.PerChannel = 0.5,
    resize: int = 0,
) -> keras.Model:
    """Builds a vision transformer for small images: patches of 4x4 pixels, width 192, 6 blocks with 3 heads, 1.8 million weights.

    The layers of a block's perceptron have 2 * width units; each third of the blocks is a stage. The embedding has `width` numbers. Other
    arguments and outputs as in `tf_robust.models`.

    Args:
        input_shape: (H, W, C), sides divisible by 4.
        width: of the tokens, divisible by 64, the width of a head; or of a single head.
        depth: number of blocks, divisible by 3.
    """
    patch, heads_count = 4, max(1, width // 64)
    images, x = heads.normalized_input(input_shape, mean, std, 8, "vit_tiny4", resize)
    if x.shape[1] % patch or x.shape[2] % patch:
        raise ValueError(
            f"Expected images with sides divisible by {patch} for vit_tiny4. Received: {x.shape[1]}x{x.shape[2]}. Try: image_size=32"
        )
    if width % heads_count or depth % 3 or depth < 3:
        raise ValueError(f"Expected a width divisible by 64 (or below) and a depth divisible by 3. Received: {width}, {depth}")
    x = _patches(x, patch)
    # a bias per token and channel is the learned position
    x = keras.layers.EinsumDense(
        "nti,io->nto",
        output_shape=(x.shape[1], width),
        bias_axes="to",
        bias_initializer=keras.initializers.RandomNormal(stddev=0.02),
        name="patch_embedding",
    )(x)
    for block in range(1, depth + 1):
        x = _block(x, heads_count, 2 * width, f"stage_{3 * block // depth}" if not 3 * block % depth else None)
    x = keras.layers.LayerNormalization(epsilon=1e-6)(x)
    return heads.classifier(images, keras.layers.GlobalAveragePooling1D()(x), num_classes, "vit_tiny4")
