"""Attacks that follow the loss's gradient inside a ball around the image: one step, or several with projections."""

import tensorflow as tf

from tf_robust.attacks import norms
from tf_robust.attacks.attack import Attack, loss_and_gradient
from tf_robust.attacks.criterion import LOSSES
from tf_robust.ops.draws import Draws
from tf_robust.utils.errors import unknown

_SMALLEST = -16.0  # of a bisection: power of 2 of the largest radius


class BallAttack(Attack):
    """An attack inside the ball of size `radius` around each image.

    Args:
        norm: `linf` or `l2`. radius: largest size of a perturbation, >= 0. loss: what is raised: cross_entropy, margin or
            difference_of_logits_ratio (`Criterion`).
    """

    def __init__(self, *, norm="linf", radius=8 / 255, loss="cross_entropy", **kwargs):
        super().__init__(**kwargs)
        if loss not in LOSSES:
            raise unknown("loss of an attack", loss, LOSSES)
        self.norm, self.radius, self.loss = norms.norm(norm), float(radius), loss

    def check(self, shape):
        norms.check_radius(self.radius, self.norm, shape)

    def gradient(self, predict, images, criterion):
        """(loss [N], gradient [N, H, W, C], logits [N, C]) of the attack's loss at images."""
        return loss_and_gradient(predict, images, getattr(criterion, self.loss))

    def inside(self, points, images, radius):
        """Points [N, H, W, C] brought into the balls around images and into [0, 1]. radius: a number or [N, 1, 1, 1]."""
        return tf.clip_by_value(images + self.norm.projected(points - images, radius), 0.0, 1.0)

    def start(self, images, seed, indices, radius):
        """Uniform in the ball around each image, cut off at [0, 1]."""
        drawn = self.norm.drawn(Draws(seed, indices, "start"), images.shape[1:])
        return tf.clip_by_value(images + radius * drawn, 0.0, 1.0)


class FastGradient(BallAttack):
    """FGSM: one step to the ball's surface, x + radius * steepest(gradient) (Goodfellow et al., 2015).

    With `linf` the steepest direction is the gradient's sign, with `l2` the gradient over its length.
    """

    def attacked(self, predict, images, criterion, seed, indices):
        _, gradient, _ = self.gradient(predict, images, criterion)
        return self.inside(images + self.radius * self.norm.steepest(gradient), images, self.radius)


class ProjectedGradientDescent(BallAttack):
    """PGD: steps along the steepest direction, each brought back into ball and cube (Madry et al., 2018).

    Args:
        steps: >= 1. step_size: as a share of the radius; 0: 2.5 / steps, so that the ball's surface can be reached from any
            start. random_start: from a uniform point of the ball, not from the image.
        early_stop: leave an image as it is once it is misclassified (or of the wanted class), and work on the others only;
            if not, every image takes all steps, and the last point is returned.
    """

    def __init__(self, *, steps=10, step_size=0.0, random_start=True, early_stop=True, **kwargs):
        super().__init__(**kwargs)
        if steps < 1 or not step_size >= 0:
            raise ValueError(f"Expected steps >= 1 and step_size >= 0. Received: {steps}, {step_size}")
        self.steps, self.random_start, self.early_stop = steps, random_start, early_stop
        self.step_size = step_size or 2.5 / steps

    def attacked(self, predict, images, criterion, seed, indices):
        start = self.start(images, seed, indices, self.radius) if self.random_start else images
        return self.ascend(predict, images, start, criterion, tf.fill([tf.shape(images)[0], 1, 1, 1], self.radius))

    def ascend(self, predict, images, start, criterion, radius):
        """The points after the last step from `start`, all [N, H, W, C]. radius: of each image's ball, [N, 1, 1, 1]."""
        def step(places, points):
            here, around, reach = (tf.gather(values, places) for values in (points, images, radius))
            aim = criterion.at(places)
            _, gradient, logits = self.gradient(predict, here, aim)
            moved = self.inside(here + self.step_size * reach * self.norm.steepest(gradient), around, reach)
            if self.early_stop:
                climbing = ~aim.reached(logits)
                places, moved = tf.boolean_mask(places, climbing), tf.boolean_mask(moved, climbing)
            return places, tf.tensor_scatter_nd_update(points, places[:, None], moved)
        _, points = tf.while_loop(
            lambda places, points: tf.size(places) > 0, step, (tf.range(tf.shape(images)[0]), start),
            shape_invariants=(tf.TensorShape([None]), start.shape), maximum_iterations=self.steps)
        return points


class MinimalPGD(Attack):
    """A small perturbation by PGD: the least radius at which it succeeds, bisected on a logarithmic scale, an image each.

    From the largest radius that there is down to 2^-16 of it; ten rounds leave 1.1 % between the radius that succeeded and one
    that did not. The first round starts anywhere in the ball, each further one where the last ended, brought to its own radius.
    An image on which no radius succeeds is returned as it is.

    Args:
        norm: `linf` or `l2`. rounds: of bisection, >= 1. steps: of PGD in each, on the margin: where classes are nearly equally
            near, the cross-entropy's gradient points to none of them.
    """

    def __init__(self, *, norm="l2", rounds=10, steps=20, **kwargs):
        super().__init__(**kwargs)
        if rounds < 1:
            raise ValueError(f"Expected rounds >= 1. Received: {rounds}")
        self.norm, self.rounds = norms.norm(norm), rounds
        self.descent = ProjectedGradientDescent(norm=norm, steps=steps, loss="margin")

    def attacked(self, predict, images, criterion, seed, indices):
        largest = self.norm.largest(images.shape[1:])
        zeros = tf.zeros([tf.shape(images)[0], 1, 1, 1])

        def one(number, low, high, last, here, best):
            middle = (low + high) / 2.0
            start = self.descent.inside(images + (here - images) * 2.0 ** (middle - last), images, largest * 2.0 ** middle)
            found = self.descent.ascend(predict, images, start, criterion, largest * 2.0 ** middle)
            won = tf.reshape(criterion.reached(predict(found)), [-1, 1, 1, 1])
            return (number + 1, tf.where(won, low, middle), tf.where(won, middle, high), middle, found,
                    tf.where(won, found, best))
        low, high = zeros + _SMALLEST, zeros
        start = self.descent.start(images, seed, indices, largest * 2.0 ** ((low + high) / 2.0))
        *_, best = tf.while_loop(lambda number, *_: number < self.rounds, one,
                                 (0, low, high, (low + high) / 2.0, start, images))
        return best
