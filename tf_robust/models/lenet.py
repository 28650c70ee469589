"""Networks for digits: LeNet (LeCun et al., 1989/1998) with ReLU and max pooling, and a multilayer perceptron.

Arguments and outputs as in `tf_robust.models`.
"""

from collections.abc import Sequence

import keras

from tf_robust.models import heads


def lenet(input_shape: Sequence[int], num_classes: int, *, mean: heads.PerChannel = 0.0, std: heads.PerChannel = 1.0) -> keras.Model:
    """Builds LeNet with LeNet-5's widths: 5x5 convolutions with 6 (zero-padded) and 16 filters, 2x2 pooling, dense 120, embedding 84.

    Images have at least 16 pixels per side.
    """
    images, x = heads.normalized_input(input_shape, mean, std, 16, "lenet")
    for stage, (filters, padding) in enumerate(((6, "same"), (16, "valid")), start=1):
        x = keras.layers.Conv2D(filters, 5, padding=padding, activation="relu")(x)
        x = keras.layers.MaxPooling2D(2, name=f"stage_{stage}")(x)
    x = keras.layers.Flatten()(x)
    x = keras.layers.Dense(120, activation="relu")(x)
    embedding = keras.layers.Dense(84, activation="relu")(x)
    return heads.classifier(images, embedding, num_classes, "lenet")


def mlp(input_shape: Sequence[int], num_classes: int, *, mean: heads.PerChannel = 0.5, std: heads.PerChannel = 1.0 / 6.0) -> keras.Model:
    """Builds a network with one hidden layer of 32 ReLU units, which is stage 1 and the embedding, for images of any size."""
    images, x = heads.normalized_input(input_shape, mean, std, 1, "mlp")
    embedding = keras.layers.Dense(32, activation="relu", name="stage_1")(keras.layers.Flatten()(x))
    return heads.classifier(images, embedding, num_classes, "mlp")
