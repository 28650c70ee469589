"""Attacks a model with PGD within growing radii, and prints the accuracy that is left.

    python examples/attack_a_model.py
    python examples/attack_a_model.py --model=model.keras --data=folder:photos --norm=linf --radii 0.01 0.03

Without --model, it attacks a pretrained model of this package.
"""

import argparse

import numpy as np

import tf_robust as tfr
from tf_robust.saved_models import loading

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--model", default="zoo:digits/lenet_cross_entropy", help="a model file or folder, the workdir of a run, or zoo:NAME")
parser.add_argument("--data", default="digits", help="a data set, or folder:DIR with one subfolder of images per class")
parser.add_argument("--norm", default="l2", choices=("l2", "linf"))
parser.add_argument("--radii", type=float, nargs="+", default=(0.25, 0.5, 1.0, 2.0), help="on the [0, 1] pixel scale")
options = parser.parse_args()

model = loading.load_classifier(options.model)
height, *_ = loading.image_size_of(model) or (0,)  # 0: the images keep their size
images, labels = tfr.images(100, data=options.data, image_size=height)  # float32 [N, H, W, C] in [0, 1], int64 [N]
model = model.with_known_outputs(images)  # logits or probabilities, by the outputs themselves

for radius in options.radii:
    attacked = tfr.attack(model, images, labels, "pgd", norm=options.norm, radius=radius)
    predicted = np.argmax(model(attacked), axis=1)
    print(f"{options.norm} {radius:<6g} accuracy {np.mean(predicted == labels):.3f}")
