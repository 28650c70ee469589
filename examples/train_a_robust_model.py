"""Train a robust model.

A Keras model is trained plainly and by a robust method. The script prints the gain on noisy images and the cost on clean ones.

    python examples/train_a_robust_model.py
    python examples/train_a_robust_model.py --epochs=20 --folder=models

docs/guide/train_in_your_script.md explains the arguments; docs/advice.md names methods for other kinds of image degradation.
"""

import argparse
import os
import tempfile

import keras

import tf_robust as tfr

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--folder", default=None, help="folder for the models; default: a temporary folder")
options = parser.parse_args()
folder = options.folder or tempfile.mkdtemp()
os.makedirs(folder, exist_ok=True)


def arrays(split):
    """Returns images float32 [N, 28, 28, 1] in [0, 1] and labels int64 [N]; your own arrays, or a dataset of (x, y), will do as well."""
    source = tfr.data.open_source("synthetic_digits", split)
    return source.images.astype("float32") / 255, source.labels


def build():
    """Returns a Keras model, here of 15 classes."""
    keras.utils.set_random_seed(0)
    layers = [keras.Input([28, 28, 1]), keras.layers.Conv2D(16, 5, strides=2, activation="relu")]
    layers += [keras.layers.Conv2D(32, 3, strides=2, activation="relu"), keras.layers.Flatten(), keras.layers.Dense(15)]
    return keras.Sequential(layers)


def fit(model, name):
    """Trains with the callbacks of Keras; returns the file of the best epoch."""
    path = os.path.join(folder, f"{name}.keras")
    callbacks = [keras.callbacks.EarlyStopping(patience=5), keras.callbacks.ModelCheckpoint(path, save_best_only=True)]
    model.fit(*arrays("train"), validation_data=arrays("validation"), epochs=options.epochs, callbacks=callbacks, verbose=0)
    return path


plain = build()
plain.compile(keras.optimizers.Adam(0.003), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])

# the same script with a robust method: wrap the model, leave out the loss
robust = tfr.methods.Gaussian(build(), sigma=0.5, weight=1.0)  # cross-entropy on each image and on a noisy copy of it
robust.compile(keras.optimizers.Adam(0.003), metrics=["accuracy"])

for name, model in (("plain", plain), ("robust", robust)):
    path = fit(model, name)  # a plain Keras file in both cases
    values = tfr.evaluate(path, data="synthetic_digits", evaluations="clean,noise").values
    print(f"{name:6} clean {values['bal']:.3f}  uniform noise {values['un']:.3f}  {path}")
