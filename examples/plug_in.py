"""Add a corruption of your own and evaluate models on it.

Defines a glare, a bright spot at a random place of the image. An entry of `CORRUPTIONS` makes it known to evaluations. In a module of
your own, `tf-robust evaluate MODEL --plugin=MODULE --evaluations=clean,corruptions --corruptions=glare` does the same.

Run it with `python examples/plug_in.py [FOLDER]`. It writes plug_in.png.
"""

import os
import sys

import numpy as np
import tensorflow as tf

import tf_robust as tfr
from tf_robust import testing

folder = sys.argv[1] if len(sys.argv) > 1 else "."
path = os.path.join(folder, "plug_in.png")


def glare(images, radius, *, center):
    """Adds light that falls off with the distance from the center; float32 [N, H, W, C] in [0, 1]."""
    y = tf.linspace(0.0, 1.0, images.shape[1])[None, :, None] - center[:, :1, None]
    x = tf.linspace(0.0, 1.0, images.shape[2])[None, None, :] - center[:, 1:, None]
    return images + tf.exp(-(x**2 + y**2) / radius**2)[..., None]  # is clipped to [0, 1]


def draw(draws, shape, radius):
    """Returns the random inputs of each image: a function of seed, index and severity alone."""
    return {"center": draws.uniform([2], 0.2, 0.8)}


corruption = tfr.corruptions.Corruption("glare", glare, draw, levels=(0.1, 0.15, 0.2, 0.25, 0.3))  # radii of severities 1 to 5
testing.check_corruption(corruption)  # the contract of corruptions
tfr.corruptions.CORRUPTIONS["glare"] = corruption

values = {}
for name in ("cross_entropy", "augmix"):
    result = tfr.evaluate(f"zoo:digits/lenet_{name}", data="digits", evaluations="clean,corruptions", corruptions=("glare",))
    values[name] = [result.values[metric] for metric in ("clean", *(f"corruptions/glare/{severity}" for severity in range(1, 6)))]
    print(f"{name:14} clean and severities 1 to 5:", *(f"{value:.3f}" for value in values[name]))


def mosaic(four):
    """Returns four images [4, 28, 28, 1] as one, [56, 56, 1]."""
    return np.reshape(four, [2, 2, 28, 28, 1]).transpose(0, 2, 1, 3, 4).reshape(56, 56, 1)


digits, _ = tfr.images(4, data="digits")
shown = [digits, *(tfr.corruptions.corrupt(digits, "glare", severity) for severity in range(1, 6))]
names = ["clean", *(f"severity {severity}" for severity in range(1, 6))]
captions = [f"{name}\nplain {plain:.1%}\nAugMix {augmix:.1%}" for name, plain, augmix in zip(names, *values.values())]
panels = np.stack([mosaic(one) for one in shown])
tfr.report.captioned_images(path, [("accuracy under glare", panels[:3], captions[:3]), ("", panels[3:], captions[3:])])
