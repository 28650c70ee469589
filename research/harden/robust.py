"""Trains a model that is already robust: one trained by plain Keras, fine-tuned with AugMix + JSD (Hendrycks et al., 2020).

python -m research.harden.robust --network=resnet8 --start=start.keras --train=train.npz --test=test.npz --output=robust.keras
"""

import time

import keras

import tf_robust as tfr
from research.harden import plain_keras

EPOCHS = 15
LEARNING_RATE = 0.05
JSD_WEIGHT = 12.0


def main() -> None:
    """Fine-tunes, saves and tests a network."""
    arguments = plain_keras.parser()
    arguments.add_argument("--start", required=True, help="Keras file to fine-tune")
    arguments.add_argument("--test", required=True, help="npz file of test images")
    arguments.add_argument("--epochs", type=int, default=EPOCHS)
    given = arguments.parse_args()
    keras.utils.set_random_seed(given.seed)
    training = plain_keras.TRAININGS[given.network]
    images, labels = plain_keras.load(given.train, given.examples)
    classifier = keras.models.load_model(given.start)
    model = tfr.methods.NoisyMix(
        classifier,
        mixing=False,
        noise="none",
        jsd_weight=JSD_WEIGHT,
        seed=given.seed,
        input_range=(0.0, training.high),
        from_logits=training.from_logits,
    )
    batches = plain_keras.training_batches(images, labels, training, given.seed)
    steps = len(batches)
    schedule = keras.optimizers.schedules.CosineDecay(LEARNING_RATE, given.epochs * steps)
    model.compile(keras.optimizers.SGD(schedule, momentum=0.9), metrics=["accuracy"])
    begin = time.monotonic()
    views = tfr.data.views(batches, model.views, seed=model.seed, input_range=model.input_range)
    model.fit(views, epochs=given.epochs, steps_per_epoch=steps, verbose=2)
    seconds = time.monotonic() - begin
    plain_keras.save(classifier, given.output)
    plain_keras.compile_model(classifier, training, LEARNING_RATE)
    _, accuracy = classifier.evaluate(plain_keras.test_batches(*plain_keras.load(given.test), training), verbose=0)
    print(f"AugMix + JSD: {seconds:.0f} s for {given.epochs} epochs, test accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
