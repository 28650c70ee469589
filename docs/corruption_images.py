"""Draws docs/corruptions.jpg, one photograph of scikit-learn under the 15 corruptions of the benchmark: python docs/corruption_images.py"""

import os

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_sample_image

from tf_robust import corruptions, metrics

SEVERITY = 3

photograph = load_sample_image("china.jpg")[40:400:2, 180:540:2] / np.float32(255)
figure, axes = plt.subplots(4, 4, figsize=(8, 8.4), layout="constrained")
for axis, name in zip(axes.flat, ("clean", *metrics.BENCHMARK)):
    image = photograph if name == "clean" else corruptions.corrupt(photograph, name, SEVERITY, indices=0, constants="imagenet")
    axis.imshow(image)
    axis.set_title(name.replace("_", " "), fontsize=11)
    axis.axis("off")
target = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corruptions.jpg")
figure.savefig(target, dpi=90, pil_kwargs={"quality": 65, "optimize": True})
