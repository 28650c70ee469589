"""Fine-tunes a model as a Keras user would without tf_robust.

    python -m research.harden.plain_fine_tuning --network=resnet8 --start=start.keras --seconds=600 \\
        --train=train.npz --validation=validation.npz --output=plain.keras

Each learning rate has an equal part of the time, cosine decay, and the random crops and flips of the first training. The model with the
best accuracy on the unchanged validation images is kept.
"""

import math
import time

import keras
import tensorflow as tf

from research.harden import plain_keras
from research.harden.plain_keras import Training

LEARNING_RATES = (0.02, 0.005)


class TimedCosineDecay(keras.callbacks.Callback):
    """Decays the learning rate to 0 over a time, and ends the training then.

    Args:
        learning_rate: at the initial model.
        seconds: of the training, from the construction of this object.
    """

    def __init__(self, learning_rate: float, seconds: float):
        super().__init__()
        self.learning_rate, self.seconds, self._begin = learning_rate, seconds, time.monotonic()

    def on_train_batch_begin(self, batch, logs=None):
        progress = min(1.0, (time.monotonic() - self._begin) / self.seconds)
        self.model.optimizer.learning_rate = self.learning_rate * 0.5 * (1.0 + math.cos(math.pi * progress))

    def on_train_batch_end(self, batch, logs=None):
        if time.monotonic() - self._begin >= self.seconds:
            self.model.stop_training = True


def fine_tune(model: keras.Model, batches: tf.data.Dataset, training: Training, learning_rate: float, seconds: float) -> int:
    """Fine-tunes a model in place for a time, and returns the number of steps."""
    decay = TimedCosineDecay(learning_rate, seconds)
    plain_keras.compile_model(model, training, learning_rate)
    model.fit(batches.repeat(), epochs=1, verbose=2, callbacks=[decay])
    return int(model.optimizer.iterations)


def main() -> None:
    """Fine-tunes with each learning rate, and saves the best model."""
    arguments = plain_keras.parser()
    arguments.add_argument("--start", required=True, help="Keras file to fine-tune")
    arguments.add_argument("--validation", required=True, help="npz file of validation images")
    arguments.add_argument("--seconds", type=float, required=True, help="time for all learning rates")
    given = arguments.parse_args()
    training = plain_keras.TRAININGS[given.network]
    images, labels = plain_keras.load(given.train, given.examples)
    validation = plain_keras.test_batches(*plain_keras.load(given.validation), training)
    best, accuracies = None, []
    for rate in LEARNING_RATES:
        keras.utils.set_random_seed(given.seed)
        model = keras.models.load_model(given.start)
        batches = plain_keras.training_batches(images, labels, training, given.seed)
        steps = fine_tune(model, batches, training, rate, given.seconds / len(LEARNING_RATES))
        plain_keras.compile_model(model, training, rate)
        _, accuracy = model.evaluate(validation, verbose=0)
        print(f"rate {rate:g}: {steps} steps, validation accuracy {accuracy:.4f}", flush=True)
        best = best if accuracies and accuracy <= max(accuracies) else model
        accuracies.append(accuracy)
    plain_keras.save(best, given.output)


if __name__ == "__main__":
    main()
