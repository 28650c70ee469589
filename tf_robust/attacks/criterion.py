"""The goal of an attack, another class than the label or a given target class, and the losses for it."""

import tensorflow as tf

from tf_robust import losses


class Criterion:
    """The goal of an attack on N images. Every loss is per image, [N], and an attack maximizes it.

    Args:
        classes: int [N], the true labels, or the target classes with `targeted`.
        targeted: bool, whether `classes` are targets.
        rivals: int [N], one other class for each image, which the losses compare with the label; None: the strongest. The goal
            remains any class but the label.
    """

    def __init__(self, classes: tf.Tensor, targeted: bool = False, rivals: tf.Tensor | None = None):
        self.classes, self.targeted, self.rivals = classes, targeted, rivals

    def at(self, indices: tf.Tensor) -> "Criterion":
        """Returns the criterion of the images at `indices`, int [M]."""
        rivals = None if self.rivals is None else tf.gather(self.rivals, indices)
        return Criterion(tf.gather(self.classes, indices), self.targeted, rivals)

    def reached(self, logits: tf.Tensor) -> tf.Tensor:
        """Returns bool [N], whether each prediction meets the goal. Of equal logits the first counts, as in accuracies."""
        return (tf.argmax(logits, axis=1, output_type=self.classes.dtype) == self.classes) == self.targeted

    def rival(self, logits: tf.Tensor, rank: int | tf.Tensor) -> "Criterion":
        """Returns a targeted criterion: the target itself, or the label's strongest rival number `rank`.

        Args:
            logits: [N, C], which rank the rivals.
            rank: from 0, the strongest; the last rival stands for all ranks beyond.
        """
        if self.targeted:
            return self
        own = tf.one_hot(self.classes, tf.shape(logits)[1], on_value=True, off_value=False)
        order = tf.argsort(tf.where(own, logits.dtype.min, logits), axis=1, direction="DESCENDING", stable=True)
        rivals = tf.cast(order[:, tf.minimum(rank, tf.shape(logits)[1] - 2)], self.classes.dtype)
        return Criterion(rivals, targeted=True)

    def against(self, logits: tf.Tensor, rank: int | tf.Tensor) -> "Criterion":
        """Returns a criterion whose losses compare the label with its strongest rival number `rank`, as in `rival`."""
        return self if self.targeted else Criterion(self.classes, rivals=self.rival(logits, rank).classes)

    def class_of(self, logits: tf.Tensor) -> "Criterion":
        """Returns a criterion that targets the class of each largest logit, that is, the current prediction."""
        return Criterion(tf.argmax(logits, axis=1, output_type=self.classes.dtype), targeted=True)

    def cross_entropy(self, logits: tf.Tensor) -> tf.Tensor:
        """Returns the log-odds against the label, or minus those against the target or rival; of labels as probabilities the cross-entropy.

        An attack on the log-odds is one on the cross-entropy, which rises with them: it compares losses of one image, and follows the
        direction of the gradient. But the gradient of the cross-entropy vanishes in float32 where the prediction is confident.
        """
        if self.rivals is not None:
            return -losses.log_odds(self.rivals, logits)
        loss = losses.cross_entropy if self.classes.dtype.is_floating else losses.log_odds
        return -loss(self.classes, logits) if self.targeted else loss(self.classes, logits)

    def margin(self, logits: tf.Tensor) -> tf.Tensor:
        """Returns max over j != y of z_j - z_y; with a rival r, z_r - z_y; with a target t, z_t - max over j != t of z_j.

        Where it is > 0, the goal is reached.
        """
        own, other = self._own_and_other(logits)
        return own - other if self.targeted else other - own

    def difference_of_logits_ratio(self, logits: tf.Tensor) -> tf.Tensor:
        """Returns the margin over z_(1) - z_(3); with a rival or target, over z_(1) - (z_(3) + z_(4)) / 2.

        Invariant to the logits' scale. z_(i) is the i-th largest logit (Croce and Hein, 2020, eq. 6; with a rival eq. 7).

        Raises:
            ValueError: fewer than three classes, or four with a rival or target.
        """
        ranks = 3 if self.rivals is None and not self.targeted else 4
        if logits.shape[1] is not None and logits.shape[1] < ranks:
            raise ValueError(f"Expected at least {ranks} classes for the difference-of-logits ratio. Received: {logits.shape[1]}")
        highest = tf.math.top_k(logits, ranks).values
        scale = highest[:, 0] - tf.reduce_mean(highest[:, 2:], axis=1)
        return self.margin(logits) / (scale + 1e-12)

    def _own_and_other(self, logits):
        if self.rivals is not None:
            return tuple(tf.gather(logits, classes, axis=1, batch_dims=1) for classes in (self.classes, self.rivals))
        own = tf.one_hot(self.classes, tf.shape(logits)[1], on_value=True, off_value=False)
        lowest = logits.dtype.min
        return (tf.reduce_max(tf.where(own, logits, lowest), axis=1), tf.reduce_max(tf.where(own, lowest, logits), axis=1))


LOSSES = ("cross_entropy", "margin", "difference_of_logits_ratio")
