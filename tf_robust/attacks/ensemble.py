"""The worst case of several attacks without tuning parameters, each run on the images that the previous ones failed on.

After AutoAttack (Croce and Hein, 2020, section 6), of whose members the targeted APGD and FAB are not included.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_robust.attacks import norms
from tf_robust.attacks.attack import Attack
from tf_robust.attacks.auto_pgd import AutoProjectedGradientDescent
from tf_robust.attacks.criterion import Criterion
from tf_robust.attacks.square import Square
from tf_robust.models.outputs import Model, output


class Ensemble(Attack):
    """APGD on cross-entropy, APGD on the difference-of-logits ratio, then Square.

    Where the model has too few classes for the ratio (fewer than 3, with targets 4), the margin takes its place.

    An image on which no member succeeded is returned as the point with the highest margin among the members'.

    Args:
        norm: `linf` or `l2`.
        radius: maximum size of a perturbation, >= 0.
        queries: of the model by Square, per image, after the first one, >= 1.
        **kwargs: of `Attack`, for every member.
    """

    def __init__(self, *, norm: str = "linf", radius: float = 8 / 255, queries: int = 5000, **kwargs):
        super().__init__(**kwargs)
        ball = {"norm": norm, "radius": radius, **kwargs}
        self.norm, self.radius = norms.norm(norm), radius
        self.cross_entropy, self.ratio, self.margin = (
            AutoProjectedGradientDescent(loss=loss, **ball) for loss in ("cross_entropy", "difference_of_logits_ratio", "margin")
        )
        self.square = Square(steps=queries, **ball)

    def check(self, shape: Sequence[int]) -> None:
        norms.check_radius(self.radius, self.norm, shape)

    def __call__(
        self,
        model: Model,
        images: npt.ArrayLike,
        labels: npt.ArrayLike,
        *,
        targets: npt.ArrayLike | None = None,
        indices: npt.ArrayLike | None = None,
    ) -> tf.Tensor:
        attacked = self.cross_entropy(model, images, labels, targets=targets, indices=indices).numpy()
        images, labels = np.asarray(images), np.asarray(labels)
        targeted, goals = targets is not None, labels if targets is None else np.asarray(targets)
        indices = np.arange(len(images)) if indices is None else np.asarray(indices)
        margins, robust, classes = self._evaluate(model, attacked, goals, targeted)
        for member in (self.ratio if classes >= (4 if targeted else 3) else self.margin, self.square):
            active = np.flatnonzero(robust)
            if not len(active):
                break
            points = member(
                model, images[active], labels[active], targets=goals[active] if targeted else None, indices=indices[active]
            ).numpy()
            new_margins, still_robust, _ = self._evaluate(model, points, goals[active], targeted)
            better = ~still_robust | (new_margins > margins[active])
            attacked[active[better]] = points[better]
            margins[active], robust[active] = np.maximum(new_margins, margins[active]), still_robust
        return tf.constant(attacked)

    __call__.__doc__ = Attack.__call__.__doc__

    def _evaluate(self, model, images, goals, targeted):
        """Returns (margins [N], bool [N] whether the attack failed, number of classes)."""
        margins, robust, classes = np.zeros(len(images), np.float32), np.zeros(len(images), bool), 0
        for start in range(0, len(images), self.batch_size):
            batch = slice(start, start + self.batch_size)
            logits = tf.convert_to_tensor(output(model, tf.constant(images[batch]), "logits"))
            criterion, classes = Criterion(tf.constant(goals[batch], tf.int64), targeted), logits.shape[1]
            margins[batch], robust[batch] = criterion.margin(logits), ~criterion.reached(logits).numpy()
        return margins, robust, classes
