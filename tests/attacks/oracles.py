"""Options of quick attacks; linear classifiers, whose distance to the boundary is known, and sizes of perturbations by NumPy."""

import numpy as np
import tensorflow as tf

SHAPE = (4, 4, 1)
ORDERS = {"linf": np.inf, "l2": 2}
SHORT = {  # options of attacks for a quick run
    "pgd": {"steps": 4},
    "pgd_distance": {"rounds": 2, "steps": 3},
    "auto_pgd": {"steps": 4},
    "square": {"steps": 25},
    "auto_pgd_targeted": {"steps": 4, "target_classes": 2, "loss": "margin"},  # the ratio needs four classes
    "fab": {"steps": 4, "target_classes": 2},
    "autoattack": {"queries": 10, "steps": 4, "target_classes": 2},
    "plb": {"outer_steps": 2, "inner_steps": 5, "starts": 2},
}


class Linear:
    """Logits W x + b of two classes or more, for images near gray, so that the cube's faces are far away."""

    def __init__(self, classes=2, seed=0, scale=1.0):
        random = np.random.RandomState(seed)
        self.weights = (scale * random.randn(int(np.prod(SHAPE)), classes)).astype(np.float32)
        self.offset = (-0.5 * self.weights.sum(axis=0)).astype(np.float32)  # gray lies on every boundary

    def __call__(self, images):
        return tf.reshape(images, [-1, int(np.prod(SHAPE))]) @ self.weights + self.offset

    def distances(self, images, labels, order):
        """Returns the size of the smallest perturbation that changes each image's class, in the norm of `order` (1, 2, inf)."""
        logits = self(images).numpy().astype(np.float64)
        dual = {1: np.inf, 2: 2, np.inf: 1}[order]
        distances = np.full(len(labels), np.inf)
        for other in range(self.weights.shape[1]):
            for i, label in enumerate(labels):
                if other != label:
                    slope = np.linalg.norm(self.weights[:, label] - self.weights[:, other], dual)
                    distances[i] = min(distances[i], (logits[i, label] - logits[i, other]) / slope)
        return distances


def sample_images(model, count=24, seed=1, std=0.05):
    """Returns (float32 [N, *SHAPE] near gray, int64 [N], the model's predictions)."""
    images = (0.5 + std * np.random.RandomState(seed).randn(count, *SHAPE)).clip(0.2, 0.8).astype(np.float32)
    return images, np.argmax(model(images).numpy(), axis=1)


def wrong(model, images, labels):
    """Returns bool [N], whether the model's predictions differ from the labels."""
    return np.argmax(np.asarray(model(images)), axis=1) != labels


def sizes(perturbations, norm):
    """Returns the sizes [N] of perturbations in the norm, `linf` or `l2`."""
    return np.linalg.norm(perturbations.reshape(len(perturbations), -1), ORDERS[norm], axis=1)
