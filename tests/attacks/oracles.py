"""Options of quick attacks; linear classifiers, whose distance to the boundary is known, and smooth ones, whose gradient is."""

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

    def __init__(self, classes=2, scale=1.0, shape=SHAPE, seed=0):
        random = np.random.RandomState(seed)
        self.weights = (scale * random.randn(int(np.prod(shape)), classes)).astype(np.float32)
        self.offset = (-0.5 * self.weights.sum(axis=0)).astype(np.float32)  # gray lies on every boundary

    def __call__(self, images):
        return tf.reshape(images, [-1, len(self.weights)]) @ self.weights + self.offset

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


class Waves:
    """Logits V sin(W x + b) + c, in TensorFlow and, with losses and their derivatives by hand, in float64 NumPy.

    Class 0 gets `ahead` more than the others. It records its queries.
    """

    def __init__(self, classes=4, ahead=0.0):
        random = np.random.RandomState(0)
        self.c = ahead * np.eye(classes)[0]
        self.w, self.b, self.v = 1.5 * random.randn(int(np.prod(SHAPE)), 12), random.randn(12), random.randn(12, classes)
        self.queries = []

    def __call__(self, images):
        w, b, v, c = (tf.constant(part, tf.float32) for part in (self.w, self.b, self.v, self.c))
        tf.numpy_function(lambda images: self.queries.append(images.copy()), [images], [])
        return tf.sin(tf.reshape(images, [-1, len(self.w)]) @ w + b) @ v + c

    def loss(self, kind, x, label):
        """Returns (loss, its derivative with respect to x) of one image."""
        inner = x.reshape(-1) @ self.w + self.b
        z = np.sin(inner) @ self.v + self.c
        by_z = np.zeros_like(z)
        other = max((j for j in range(len(z)) if j != label), key=lambda j: z[j])
        if kind == "cross_entropy":
            p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
            value, by_z = -np.log(p[label]), p - np.eye(len(z))[label]
        else:
            value = z[other] - z[label]
            by_z[other], by_z[label] = 1.0, -1.0
        if kind == "difference_of_logits_ratio":
            first, _, third = np.argsort(-z)[:3]
            range_ = z[first] - z[third]
            by_z /= range_
            by_z[first] -= value / range_**2
            by_z[third] += value / range_**2
            value /= range_
        return value, (self.w @ (np.cos(inner) * (self.v @ by_z))).reshape(x.shape)


def sample_images(model, count=24, std=0.05):
    """Returns (float32 [N, *SHAPE] near gray, int64 [N], the model's predictions)."""
    images = (0.5 + std * np.random.RandomState(1).randn(count, *SHAPE)).clip(0.2, 0.8).astype(np.float32)
    return images, np.argmax(model(images).numpy(), axis=1)


def median_radius(model, norm, count):
    """Returns sample images, their labels, their distances, and the radius that half of the distances exceed."""
    images, labels = sample_images(model, count)
    distances = model.distances(images, labels, ORDERS[norm])
    return images, labels, distances, float(np.median(distances))


def wrong(model, images, labels):
    """Returns bool [N], whether the model's predictions differ from the labels."""
    return np.argmax(np.asarray(model(images)), axis=1) != labels


def sizes(perturbations, norm):
    """Returns the sizes [N] of perturbations in the norm, `linf` or `l2`."""
    return np.linalg.norm(perturbations.reshape(len(perturbations), -1), ORDERS[norm], axis=1)
