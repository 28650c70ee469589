"""Evaluates a Keras model on clean, noisy and corrupted images.

    python examples/evaluate_your_model.py
    python examples/evaluate_your_model.py --model=model.keras --data=folder:photos
    python examples/evaluate_your_model.py --model=model.keras --data=csv:labels.csv

Without --model, it trains a small plain Keras model first and saves it.
"""

import argparse
import os
import tempfile

import keras

import tf_robust as tfr


def plain_model():
    """Trains a small convolutional network on scikit-learn's digits, without anything from tf_robust, and returns its path."""
    images, labels = tfr.images(300, data="digits", evaluation_split="validation")  # float32 [N, 28, 28, 1] in [0, 1], int64 [N]
    layers = [keras.Input([28, 28, 1]), keras.layers.Conv2D(16, 5, strides=2, activation="relu"), keras.layers.Flatten()]
    model = keras.Sequential([*layers, keras.layers.Dense(10)])  # returns logits; a softmax is recognized
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(images, labels, epochs=20, verbose=0)
    model.save(path := os.path.join(tempfile.mkdtemp(), "model.keras"))
    return path


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--model", help="a SavedModel, a .keras file or the workdir of a run; default: a small model, trained here")
parser.add_argument("--data", default="digits", help="a data set, folder:DIR with one subfolder of images per class, csv:FILE, ...")
parser.add_argument("--subset", type=int, default=100, help="number of images; 0: all")
options = parser.parse_args()

model, evaluations = options.model or plain_model(), "clean,noise,corruptions"
result = tfr.evaluate(model, data=options.data, subset=options.subset, evaluations=evaluations, severities="3")  # default: all five
for metric in ("clean", "bal", "un", "nun", "corruptions/mean15", "corruptions/noise", "corruptions/blur", "corruptions/weather"):
    if metric in result.values:  # balanced sets have bal instead of clean
        print(f"{metric:20} {result.values[metric]:.3f}")
print("Report:", result.report(os.path.join(tempfile.mkdtemp(), "report.html")))  # summary, tables and charts in one file
