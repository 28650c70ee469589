"""Corrupt a photograph at several severities.

One corruption of each family of the common-corruption benchmark: noise, blur, weather and digital. The result is a pure function of
the image, its index and the seed: the same call always gives the same pixels.

Run it with `python examples/corrupt_an_image.py [FOLDER]`. It writes corrupt_an_image.png and prints how much the pixels change.
"""

import os
import sys

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_image

import tf_robust as tfr

CORRUPTIONS, SEVERITIES = ("gaussian_noise", "motion_blur", "fog", "pixelate"), (1, 3, 5)
folder = sys.argv[1] if len(sys.argv) > 1 else "."
path = os.path.join(folder, "corrupt_an_image.png")

photograph = load_sample_image("flower.jpg")[10:426, 110:526]  # uint8 [416, 416, 3]
image = np.asarray(Image.fromarray(photograph).resize((224, 224))) / np.float32(255)  # float32 in [0, 1]

lines = []
for name in CORRUPTIONS:
    corrupted = [tfr.corruptions.corrupt(image, name, severity, seed=0, indices=0).numpy() for severity in SEVERITIES]
    changes = [np.sqrt(np.mean((one - image) ** 2)) for one in corrupted]
    print(f"{name:15} RMS change", *(f"{change:.3f}" for change in changes))
    captions = ["clean", *(f"severity {severity}" for severity in SEVERITIES)]
    lines.append((name.replace("_", " "), np.stack([image, *corrupted]), captions))

tfr.report.captioned_images(path, lines)
Image.open(path).convert("RGB").quantize(256, kmeans=3).save(path)  # 256 colors: a smaller file
