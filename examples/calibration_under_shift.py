"""Check a model's confidence under distribution shift.

A model can be calibrated on clean images and overconfident on corrupted ones. Temperature scaling, fitted on clean validation images,
corrects a part of it. Below the dashed line the model is overconfident; 95 % of the dots of a calibrated model are in the gray band.

Run it with `python examples/calibration_under_shift.py [FOLDER]`. It writes calibration_under_shift.png.
"""

import os
import sys

import numpy as np
import scipy.special
from PIL import Image

import tf_robust as tfr

folder = sys.argv[1] if len(sys.argv) > 1 else "."
path = os.path.join(folder, "calibration_under_shift.png")
model = tfr.load("zoo:digits/lenet_cross_entropy")
images, labels = tfr.images(299, data="digits")
validation, validation_labels = tfr.images(200, data="digits", evaluation_split="validation")
temperature = tfr.metrics.fit_temperature(model(validation)["logits"], validation_labels)

# 15 corruptions; ImageNet's constants are stronger than those for images of this size
shifted = [tfr.corruptions.corrupt(images, name, 3, constants="imagenet") for name in tfr.metrics.BENCHMARK]

outcomes = {}
for kind, sets in (("clean", [images]), ("shift", shifted)):
    logits = np.concatenate([model(one)["logits"] for one in sets])
    correct = logits.argmax(axis=1) == np.tile(labels, len(sets))
    for name, scale in ((kind, 1.0), (f"{kind}, scaled", temperature)):
        confidences = scipy.special.softmax(logits / scale, axis=1).max(axis=1)
        outcomes[name] = confidences, correct
        error = tfr.metrics.expected_calibration_error(confidences, correct)
        print(f"{name:13}  confidence {confidences.mean():.3f}  accuracy {correct.mean():.3f}  expected calibration error {error:.3f}")

chart = tfr.report.reliability_diagram(outcomes, bin_size=50)
chart.columns = 2
chart.save(path, scale_factor=2)
Image.open(path).convert("RGB").quantize(64, kmeans=3).save(path)  # 64 colors: a smaller file
