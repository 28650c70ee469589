"""The worst case of attacks that have nothing to tune, each on what the ones before it left standing.

After AutoAttack (Croce and Hein, 2020, section 6), of whose members the targeted APGD and FAB are not here.
"""

import numpy as np
import tensorflow as tf

from tf_robust.attacks import norms
from tf_robust.attacks.attack import Attack
from tf_robust.attacks.auto_pgd import AutoProjectedGradientDescent
from tf_robust.attacks.criterion import Criterion
from tf_robust.attacks.square import Square
from tf_robust.models.outputs import output


class Ensemble(Attack):
    """APGD on cross-entropy, APGD on the difference-of-logits ratio, then Square.

    Where the model has too few classes for the ratio (less than 3, with targets 4), the margin takes its place.

    An image on which no member succeeded is returned as the point with the highest margin among the members'.

    Args:
        norm: `linf` or `l2`. radius: largest size of a perturbation, >= 0. queries: of the model by Square, an image,
            after the first one, >= 1. Everything else holds for each member.
    """

    def __init__(self, *, norm="linf", radius=8 / 255, queries=5000, **kwargs):
        super().__init__(**kwargs)
        ball = {"norm": norm, "radius": radius, **kwargs}
        self.norm, self.radius = norms.norm(norm), radius
        self.cross_entropy, self.ratio, self.margin = (AutoProjectedGradientDescent(loss=loss, **ball) for loss in (
            "cross_entropy", "difference_of_logits_ratio", "margin"))
        self.square = Square(steps=queries, **ball)

    def check(self, shape):
        norms.check_radius(self.radius, self.norm, shape)

    def __call__(self, model, images, labels, *, targets=None, indices=None):
        found = self.cross_entropy(model, images, labels, targets=targets, indices=indices).numpy()
        images, labels = np.asarray(images), np.asarray(labels)
        targeted, wanted = targets is not None, labels if targets is None else np.asarray(targets)
        indices = np.arange(len(images)) if indices is None else np.asarray(indices)
        margins, standing, classes = self._judged(model, found, wanted, targeted)
        for member in (self.ratio if classes >= (4 if targeted else 3) else self.margin, self.square):
            left = np.flatnonzero(standing)
            if not len(left):
                break
            points = member(model, images[left], labels[left], targets=wanted[left] if targeted else None,
                            indices=indices[left]).numpy()
            higher, still, _ = self._judged(model, points, wanted[left], targeted)
            better = ~still | (higher > margins[left])
            found[left[better]] = points[better]
            margins[left], standing[left] = np.maximum(higher, margins[left]), still
        return tf.constant(found)

    __call__.__doc__ = Attack.__call__.__doc__

    def _judged(self, model, images, wanted, targeted):
        """(margins [N], bool [N] whether the attack has not succeeded, classes of the model)"""
        margins, standing, classes = np.zeros(len(images), np.float32), np.zeros(len(images), bool), 0
        for start in range(0, len(images), self.batch_size):
            part = slice(start, start + self.batch_size)
            logits = tf.convert_to_tensor(output(model, tf.constant(images[part]), "logits"))
            criterion, classes = Criterion(tf.constant(wanted[part], tf.int64), targeted), logits.shape[1]
            margins[part], standing[part] = criterion.margin(logits), ~criterion.reached(logits).numpy()
        return margins, standing, classes
