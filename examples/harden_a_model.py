"""Harden a model of your own.

Trains a small Keras model on the digits of scikit-learn and makes it more robust to noise by a search among short fine-tunings. The
figure is the frontier of the search: the square is the initial model, the ring the chosen one, and lines interpolate weights.

Run it with `python examples/harden_a_model.py [FOLDER]`. It writes harden_a_model.png.
"""

import os
import sys

import keras
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import tf_robust as tfr

folder = sys.argv[1] if len(sys.argv) > 1 else "."
path = os.path.join(folder, "harden_a_model.png")
digits, targets = load_digits(return_X_y=True)
digits = digits.reshape(-1, 8, 8, 1).astype("float32") / 16  # in [0, 1]
x_train, x_test, y_train, y_test = train_test_split(digits, targets, test_size=400, random_state=0)
x_train, x_validation, y_train, y_validation = train_test_split(x_train, y_train, test_size=400, random_state=0)

keras.utils.set_random_seed(0)
layers = [keras.layers.Conv2D(16, 3, activation="relu"), keras.layers.Conv2D(32, 3, activation="relu")]
model = keras.Sequential([keras.Input([8, 8, 1]), *layers, keras.layers.Flatten(), keras.layers.Dense(10)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(x_train, y_train, epochs=15, verbose=0)

hardened = tfr.harden(
    model,
    data=(x_train, y_train),
    validation_data=(x_validation, y_validation),  # chooses the model
    test_data=(x_test, y_test),  # final evaluation
    target="noise",
    max_clean_loss=0.01,
    budget="240steps",  # or a time, such as 30m
    evaluations="clean,noise",
)
for metric in ("clean", "un", "nun"):  # on the test images: clean, uniform and non-uniform noise
    before, after = hardened.values[metric]
    print(f"{metric:5} {before:.3f} -> {after:.3f}")
# hardened.save("robust.keras") writes the model, hardened.report("harden.html") the report

title = "square: initial model; ring: chosen model"
hardened.frontier().properties(width=400, height=300, title=title).save(path, scale_factor=2)
Image.open(path).convert("RGB").quantize(256, kmeans=3).save(path)  # 256 colors: a smaller file
