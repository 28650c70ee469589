"""The shallow network of the NoisyMix paper's 2-D illustration (appendix A)."""

from collections.abc import Sequence

import keras

from tf_robust.models import heads

HIDDEN = 32


def mlp(input_shape: Sequence[int], num_classes: int, *, mean: heads.PerChannel = 0.5, std: heads.PerChannel = 1.0 / 6.0) -> keras.Model:
    """Builds a network with one hidden layer of 32 ReLU units, which is stage 1 and the embedding.

    Args:
        input_shape: (H, W, C), any size.
        num_classes: number of logits.
        mean: of the normalization inside the model, on the [0, 1] scale; a number, or one per channel.
        std: of the normalization; the defaults map [0, 1] to [-3, 3].

    Returns:
        keras.Model: float32 [N, H, W, C] in [0, 1] -> {"logits": [N, num_classes], "embedding": [N, 32]}
    """
    images, x = heads.normalized_input(input_shape, mean, std, 1, "mlp")
    embedding = keras.layers.Dense(HIDDEN, activation="relu", name="stage_1")(keras.layers.Flatten()(x))
    return heads.classifier(images, embedding, num_classes, "mlp")
