"""Attack models and plot their errors over the size of the perturbation.

Finds the smallest change of each image that PGD can find and that makes the model wrong. The curve of a model is the fraction of images
that are misclassified within a radius. The models were trained on MNIST and classify the digits of scikit-learn here.

Run it with `python examples/attack_a_model.py [FOLDER]`. It writes attack_a_model.png.
"""

import os
import sys

import numpy as np

import tf_robust as tfr

folder = sys.argv[1] if len(sys.argv) > 1 else "."
path = os.path.join(folder, "attack_a_model.png")
models = {
    "cross-entropy": "zoo:mnist/lenet_cross_entropy",
    "AugMix": "zoo:mnist/lenet_augmix",
    "adversarial training": "zoo:mnist/lenet_adversarial",
}
images, labels = tfr.images(100, data="digits")  # float32 [N, H, W, C] in [0, 1], int64 [N]

distances = {}
for name, model in models.items():
    attacked, success = tfr.attack(model, images, labels, "pgd_distance", norm="linf", return_success=True)
    sizes = np.abs(attacked - images).max(axis=(1, 2, 3))  # 0: misclassified without an attack
    distances[name] = {"pgd_linf": np.where(success, sizes, np.inf)}
    accuracies = [f"{radius:g}: {np.mean(distances[name]['pgd_linf'] > radius):.2f}" for radius in (0, 0.05, 0.1, 0.2)]
    print(f"{name:20}  accuracy within", "  ".join(accuracies))

tfr.report.attack_curves(distances).save(path, scale_factor=2)
