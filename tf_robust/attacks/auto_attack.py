"""AutoAttack, standard version: four attacks without tuning parameters, each on the images that the previous ones failed on.

Croce and Hein, 2020, section 6: APGD on cross-entropy, APGD-T on the targeted difference-of-logits ratio, FAB-T, Square.
"""

import numpy as np
import tensorflow as tf

from tf_robust.attacks import norms
from tf_robust.attacks.attack import Attack, occurring_classes
from tf_robust.attacks.auto_pgd import AutoProjectedGradientDescent, TargetedAutoPGD
from tf_robust.attacks.criterion import Criterion
from tf_robust.attacks.fast_adaptive_boundary import FastAdaptiveBoundary
from tf_robust.attacks.square import Square
from tf_robust.models.outputs import output

RATIO_CLASSES = 4  # that the targeted difference-of-logits ratio needs


class AutoAttack(Attack):
    """APGD-CE, APGD-T, FAB-T, then Square (Croce and Hein, 2020).

    Where the model has too few classes for the targeted difference-of-logits ratio (fewer than 4), the margin takes its place.

    An image on which no member succeeded is returned as the point with the highest margin among the members'.

    Args:
        norm: `linf` or `l2`.
        radius: maximum size of a perturbation, >= 0.
        steps: of APGD and FAB, >= 1; the standard version has 100.
        target_classes: of APGD-T and FAB-T, >= 1; the standard version has 9.
        queries: of the model by Square, per image, after the first one, >= 1; the standard version has 5,000.
        **kwargs: of `Attack`, for every member; the standard version has one restart.

    Examples:
        >>> attack = tfr.attacks.AutoAttack(norm="linf", radius=0.06, steps=10, queries=50)
        >>> list(attack.members(classes=4))
        ['apgd_ce', 'apgd_t', 'fab_t', 'square']
        >>> def model(images):  # the class is the brightest of four pixels
        ...     return tf.reshape(images, [-1, 4])
        >>> attacked = attack(model, np.array([[[[0.5], [0.4]], [[0.1], [0.2]]]]), labels=[0])
        >>> int(tf.argmax(model(attacked)[0]))
        1
    """

    takes_radius_as_tensor = True

    def __init__(
        self,
        *,
        norm: str = "linf",
        radius: float = 8 / 255,
        steps: int = 100,
        target_classes: int = 9,
        queries: int = 5000,
        **kwargs,
    ):
        super().__init__(**kwargs)
        ball = {"norm": norm, "radius": radius, **kwargs}
        self.norm, self.radius = norms.norm(norm), radius
        self._cross_entropy = AutoProjectedGradientDescent(steps=steps, **ball)
        self._targeted, self._targeted_margin = (
            TargetedAutoPGD(steps=steps, target_classes=target_classes, loss=loss, **ball)
            for loss in ("difference_of_logits_ratio", "margin")
        )
        self._boundary = FastAdaptiveBoundary(steps=steps, target_classes=target_classes, **ball)
        self._square = Square(steps=queries, **ball)

    def _within(self, radius):
        other = super()._within(radius)
        for name, member in vars(self).items():
            if isinstance(member, Attack):
                setattr(other, name, member._within(radius))
        return other

    def members(self, classes: int) -> dict[str, Attack]:
        """Returns {name: attack} in the order in which they run.

        Args:
            classes: number of the model's classes that are not masked out.
        """
        targeted = self._targeted if classes >= RATIO_CLASSES else self._targeted_margin
        return {"apgd_ce": self._cross_entropy, "apgd_t": targeted, "fab_t": self._boundary, "square": self._square}

    def _attacked(self, model, images, labels, targets, indices):
        attacked = self._cross_entropy(model, images, labels, targets=targets, indices=indices).numpy()
        targeted, goals = targets is not None, labels if targets is None else np.asarray(targets, np.int64)
        indices = np.arange(len(images)) if indices is None else np.asarray(indices)
        margins, robust, classes = self._evaluate(model, attacked, goals, targeted)
        for member in list(self.members(classes).values())[1:]:
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
        return attacked

    def _evaluate(self, model, images, goals, targeted):
        """Returns (margins [N], bool [N] whether the attack failed, number of classes that are not masked out)."""
        margins, robust, classes = np.zeros(len(images), np.float32), np.zeros(len(images), bool), 0
        size = self.images_per_batch(images.shape[1:])
        for start in range(0, len(images), size):
            batch = slice(start, start + size)
            logits = tf.convert_to_tensor(output(model, tf.constant(images[batch]), "logits"))
            criterion = Criterion(tf.constant(goals[batch], tf.int64), targeted)
            classes = max(classes, len(occurring_classes(logits.numpy())))
            margins[batch], robust[batch] = criterion.margin(logits), ~criterion.reached(logits).numpy()
        return margins, robust, classes
