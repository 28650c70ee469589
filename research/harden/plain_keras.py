"""Trains a classifier by plain Keras, without any code of tf_robust, and writes a Keras file.

    python -m research.harden.plain_keras --network=resnet8 --train=train.npz --test=test.npz --output=start.keras

The files have the arrays `images`, uint8 [N, H, W, C], and `labels`, int [N].
"""

import argparse
import dataclasses
import os
import time
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf


def resnet8(shape: tuple[int, ...], classes: int) -> keras.Model:
    """Returns a ResNet with one basic block in each of three stages; images in [0, 255] -> logits."""
    inputs = keras.Input(shape)
    x = keras.layers.Rescaling(1 / 127.5, -1)(inputs)
    x = keras.layers.ReLU()(_convolution(x, 16))
    for filters, stride in ((16, 1), (32, 2), (64, 2)):
        shortcut = x if stride == 1 else _convolution(x, filters, stride, size=1)
        x = keras.layers.ReLU()(_convolution(x, filters, stride))
        x = keras.layers.ReLU()(keras.layers.add([_convolution(x, filters), shortcut]))
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, keras.layers.Dense(classes)(x))


def lenet(shape: tuple[int, ...], classes: int) -> keras.Model:
    """Returns LeNet-5 with ReLU and max pooling; images in [0, 1] -> probabilities."""
    return keras.Sequential(
        [
            keras.Input(shape),
            keras.layers.Conv2D(6, 5, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(16, 5, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(120, activation="relu"),
            keras.layers.Dense(84, activation="relu"),
            keras.layers.Dense(classes, activation="softmax"),
        ]
    )


def mobilenet(shape: tuple[int, ...], classes: int) -> keras.Model:
    """Returns MobileNetV2 of `keras.applications` with random weights; images in [0, 255] -> probabilities."""
    inputs = keras.Input(shape)
    network = keras.applications.MobileNetV2(alpha=0.35, input_shape=shape, weights=None, classes=classes)
    return keras.Model(inputs, network(keras.layers.Rescaling(1 / 127.5, -1)(inputs)))


def vit(shape: tuple[int, ...], classes: int) -> keras.Model:
    """Returns a vision transformer with patches of 4 pixels, 64 values and 4 blocks; images in [0, 255] -> logits."""
    inputs = keras.Input(shape)
    x = keras.layers.Conv2D(64, 4, 4)(keras.layers.Rescaling(1 / 127.5, -1)(inputs))
    x = keras.layers.Reshape((-1, 64))(x)
    x = x + keras.layers.Embedding(x.shape[1], 64)(keras.ops.arange(x.shape[1])[None])
    for _ in range(4):
        normalized = keras.layers.LayerNormalization(epsilon=1e-6)(x)
        x = x + keras.layers.MultiHeadAttention(4, 16)(normalized, normalized)
        hidden = keras.layers.Dense(128, activation="gelu")(keras.layers.LayerNormalization(epsilon=1e-6)(x))
        x = x + keras.layers.Dense(64)(hidden)
    x = keras.layers.GlobalAveragePooling1D()(keras.layers.LayerNormalization(epsilon=1e-6)(x))
    return keras.Model(inputs, keras.layers.Dense(classes)(x))


def _convolution(x, filters, stride=1, size=3):
    x = keras.layers.Conv2D(filters, size, stride, padding="same", use_bias=False, kernel_initializer="he_normal")(x)
    return keras.layers.BatchNormalization(momentum=0.9)(x)


@dataclasses.dataclass(frozen=True)
class Training:
    """How a network is trained: SGD with momentum 0.9 and cosine decay.

    Attributes:
        network: (shape, number of classes) -> model.
        epochs: of training.
        learning_rate: at the initial model.
        batch_size: images per step.
        crop_flip: whether images are randomly cropped (after padding by an eighth of their size) and flipped.
        high: images are in [0, high].
        from_logits: whether the model returns logits.
    """

    network: Callable[[tuple[int, ...], int], keras.Model]
    epochs: int
    learning_rate: float
    batch_size: int
    crop_flip: bool = True
    high: float = 255.0
    from_logits: bool = False


TRAININGS = {
    "resnet8": Training(resnet8, 15, 0.1, 128, from_logits=True),
    "lenet": Training(lenet, 12, 0.05, 64, crop_flip=False, high=1.0),
    "mobilenet": Training(mobilenet, 50, 0.05, 64),
    "vit": Training(vit, 15, 0.05, 128, from_logits=True),
}


def load(path: str, examples: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first images, uint8 [N, H, W, C], and labels, int [N], of a file; examples: how many, 0 for all."""
    with np.load(path) as file:
        images, labels = file["images"], file["labels"]
    return images[: examples or None], labels[: examples or None]


def training_batches(images: np.ndarray, labels: np.ndarray, training: Training, seed: int) -> tf.data.Dataset:
    """Returns the batches of an epoch, which are shuffled and augmented anew in each epoch."""
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(images), seed=seed)
    if training.crop_flip:
        dataset = dataset.map(_crop_flip, tf.data.AUTOTUNE)
    return _scaled(dataset.batch(training.batch_size, drop_remainder=True), training)


def test_batches(images: np.ndarray, labels: np.ndarray, training: Training) -> tf.data.Dataset:
    """Returns all images in their order."""
    return _scaled(tf.data.Dataset.from_tensor_slices((images, labels)).batch(250), training)


def _scaled(dataset, training):
    scale = training.high / 255
    return dataset.map(lambda images, labels: (scale * tf.cast(images, tf.float32), labels), tf.data.AUTOTUNE).prefetch(2)


def _crop_flip(image, label):
    height, width, _ = image.shape
    vertical, horizontal = height // 8, width // 8
    image = tf.image.random_crop(tf.pad(image, [[vertical] * 2, [horizontal] * 2, [0, 0]]), image.shape)
    return tf.image.random_flip_left_right(image), label


def compile_model(model: keras.Model, training: Training, learning_rate: float | keras.optimizers.schedules.LearningRateSchedule) -> None:
    """Compiles a model with SGD and cross-entropy."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=training.from_logits)
    model.compile(keras.optimizers.SGD(learning_rate, momentum=0.9), loss, metrics=["accuracy"])


def save(model: keras.Model, path: str) -> None:
    """Writes a Keras file; an interrupted call leaves no file of this name."""
    temporary = os.path.join(os.path.dirname(path), f"unfinished-{os.path.basename(path)}")
    model.save(temporary)
    os.replace(temporary, path)


def parser() -> argparse.ArgumentParser:
    """Returns a parser of the arguments that the scripts of this folder share."""
    arguments = argparse.ArgumentParser(allow_abbrev=False)
    arguments.add_argument("--network", choices=TRAININGS, required=True)
    arguments.add_argument("--train", required=True, help="npz file of training images")
    arguments.add_argument("--output", required=True, help="Keras file to write")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--examples", type=int, default=0, help="number of training images; 0: all")
    return arguments


def main() -> None:
    """Trains, saves and tests a network."""
    arguments = parser()
    arguments.add_argument("--test", required=True, help="npz file of test images")
    arguments.add_argument("--epochs", type=int, default=0, help="0: those of the network")
    given = arguments.parse_args()
    keras.utils.set_random_seed(given.seed)
    training = TRAININGS[given.network]
    images, labels = load(given.train, given.examples)
    batches = training_batches(images, labels, training, given.seed)
    epochs = given.epochs or training.epochs
    model = training.network(images.shape[1:], int(labels.max()) + 1)
    compile_model(model, training, keras.optimizers.schedules.CosineDecay(training.learning_rate, epochs * len(batches)))
    begin = time.monotonic()
    model.fit(batches, epochs=epochs, verbose=2)
    seconds = time.monotonic() - begin
    save(model, given.output)
    _, accuracy = model.evaluate(test_batches(*load(given.test), training), verbose=0)
    print(f"{given.network}: {seconds:.0f} s for {epochs} epochs, test accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
