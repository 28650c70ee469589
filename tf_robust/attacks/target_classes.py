"""Attacks that aim at each of the strongest other classes of an image in turn, after which any misclassification counts."""

import tensorflow as tf

from tf_robust.attacks.attack import Predict
from tf_robust.attacks.criterion import Criterion
from tf_robust.attacks.gradient import BallAttack


class TargetClassesAttack(BallAttack):
    """Base class: attempt number k aims at the class with the k-th highest logit besides the label, on the unchanged image.

    With target classes given, these alone are aimed at.

    Args:
        target_classes: largest number of classes to aim at, >= 1; a model with fewer other classes has fewer attempts.
        restarts: attempts for each of them.
    """

    def __init__(self, *, target_classes: int = 9, restarts: int = 1, **kwargs):
        super().__init__(restarts=restarts, **kwargs)
        if target_classes < 1:
            raise ValueError(f"Expected target_classes >= 1. Received: {target_classes}")
        self.target_classes = target_classes

    def attempts(self, classes: int, targeted: bool) -> int:
        return self.restarts * (1 if targeted else min(self.target_classes, classes - 1))

    def goal(self, predict: Predict, images: tf.Tensor, criterion: Criterion, seed: tf.Tensor) -> Criterion:
        """Returns the criterion of the attempt number seed[1], whose losses are those against one other class."""
        return criterion.against(predict(images), tf.cast(seed[1], tf.int32) // self.restarts)
