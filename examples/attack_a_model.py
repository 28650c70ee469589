"""Attacks a model with PGD within growing radii, and prints the accuracy that is left.

    python examples/attack_a_model.py
    python examples/attack_a_model.py --model=model.keras --data=folder:photos --norm=linf --radii 0.01 0.03

Without --model, it trains a small one first.
"""

import argparse
import tempfile

import numpy as np

import tf_robust as tfr
from tf_robust.saved_models import loading

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--model", help="a SavedModel, a .keras file or the workdir of a run; default: a small model, trained here")
parser.add_argument("--data", default="digits", help="a data set, or folder:DIR with one subfolder of images per class")
parser.add_argument("--norm", default="l2", choices=("l2", "linf"))
parser.add_argument("--radii", type=float, nargs="+", default=(0.25, 0.5, 1.0, 2.0), help="on the [0, 1] pixel scale")
options = parser.parse_args()

if options.model:
    model = loading.load_classifier(options.model)
else:
    model = tfr.train(f"{tempfile.mkdtemp()}/plain", data=options.data, epochs=5, evaluations="clean").model
images, labels = tfr.images(100, data=options.data)  # float32 [N, H, W, C] in [0, 1], int64 [N]

for radius in options.radii:
    attacked = tfr.attack(model, images, labels, "pgd", norm=options.norm, radius=radius)
    predicted = np.argmax(model(attacked), axis=1)
    print(f"{options.norm} {radius:<6g} accuracy {np.mean(predicted == labels):.3f}")
