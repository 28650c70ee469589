"""What an attack wants of the logits: another class than the label's, or a class that was named; and its losses."""

import tensorflow as tf

from tf_robust import losses


class Criterion:
    """What is wanted for N images. Every loss is per image, [N], and an attack raises it.

    Args:
        classes: int [N]: the true labels, or with `targeted` the classes that are wanted instead.
        targeted: whether `classes` are wanted.
    """

    def __init__(self, classes, targeted=False):
        self.classes, self.targeted = classes, targeted

    def at(self, places):
        """The goal of the images at int [M] places."""
        return Criterion(tf.gather(self.classes, places), self.targeted)

    def reached(self, logits):
        """bool [N]: whether the largest logit is as wanted. Of equal logits the first counts, as in accuracies."""
        return (tf.argmax(logits, axis=1, output_type=self.classes.dtype) == self.classes) == self.targeted

    def rival(self, logits, rank):
        """The goal of one class: the target, or the label's strongest rival but `rank`, a number from 0.

        logits: [N, classes], of which the ranks are taken; the last rival stands for those beyond.
        """
        if self.targeted:
            return self
        own = tf.one_hot(self.classes, tf.shape(logits)[1], on_value=True, off_value=False)
        order = tf.argsort(tf.where(own, logits.dtype.min, logits), axis=1, direction="DESCENDING", stable=True)
        rivals = tf.cast(order[:, tf.minimum(rank, tf.shape(logits)[1] - 2)], self.classes.dtype)
        return Criterion(rivals, targeted=True)

    def class_of(self, logits):
        """The goal that wants the class of the largest logit, as it is."""
        return Criterion(tf.argmax(logits, axis=1, output_type=self.classes.dtype), targeted=True)

    def cross_entropy(self, logits):
        """Of the label; with a target, minus that of the target. In nats."""
        loss = losses.cross_entropy(self.classes, logits)
        return -loss if self.targeted else loss

    def margin(self, logits):
        """max over j != y of z_j - z_y; with a target t, z_t - max over j != t of z_j. Above 0 where reached."""
        own, other = self._own_and_other(logits)
        return own - other if self.targeted else other - own

    def difference_of_logits_ratio(self, logits):
        """The margin over z_(1) - z_(3); with a target, over z_(1) - (z_(3) + z_(4)) / 2. Free of the logits' scale.

        z_(i) is the i-th largest logit (Croce and Hein, 2020, eq. 6 and 7; there the targeted numerator is z_t - z_y).

        Raises:
            ValueError: fewer than three classes, with a target four.
        """
        ranks = 4 if self.targeted else 3
        if logits.shape[1] is not None and logits.shape[1] < ranks:
            raise ValueError(f"Expected at least {ranks} classes for the difference-of-logits ratio. Received: {logits.shape[1]}")
        highest = tf.math.top_k(logits, ranks).values
        spread = highest[:, 0] - tf.reduce_mean(highest[:, 2:], axis=1)
        return self.margin(logits) / (spread + 1e-12)

    def _own_and_other(self, logits):
        own = tf.one_hot(self.classes, tf.shape(logits)[1], on_value=True, off_value=False)
        lowest = logits.dtype.min
        return (tf.reduce_max(tf.where(own, logits, lowest), axis=1), tf.reduce_max(tf.where(own, lowest, logits), axis=1))


LOSSES = ("cross_entropy", "margin", "difference_of_logits_ratio")
