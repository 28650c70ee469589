"""Attacks that follow the loss's gradient inside a ball around the image: one step, or several with projections."""

import tensorflow as tf

from tf_robust.attacks import norms
from tf_robust.attacks.attack import Attack, Predict, loss_and_gradient
from tf_robust.attacks.criterion import LOSSES, Criterion
from tf_robust.ops.draws import Draws
from tf_robust.utils.errors import unknown

_SMALLEST = -16.0  # smallest radius of the bisection: log2 of its fraction of the largest


class BallAttack(Attack):
    """Base class of attacks inside the ball of size `radius` around each image.

    Args:
        norm: `linf` or `l2`.
        radius: maximum size of a perturbation, >= 0.
        loss: the loss to maximize: cross_entropy, margin or difference_of_logits_ratio (`Criterion`).
    """

    def __init__(self, *, norm: str = "linf", radius: float = 8 / 255, loss: str = "cross_entropy", **kwargs):
        super().__init__(**kwargs)
        if loss not in LOSSES:
            raise unknown("loss of an attack", loss, LOSSES)
        self.norm, self.radius, self.loss = norms.norm(norm), float(radius), loss

    def gradient(self, predict: Predict, images: tf.Tensor, criterion: Criterion) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns (loss [N], gradient [N, H, W, C], logits [N, C]) of the attack's loss at images."""
        return loss_and_gradient(predict, images, getattr(criterion, self.loss))

    def project(self, points: tf.Tensor, images: tf.Tensor, radius: float | tf.Tensor) -> tf.Tensor:
        """Projects points into the balls around images, then clips them to [0, 1].

        Args:
            points: float32 [N, H, W, C].
            images: float32 [N, H, W, C], the centers.
            radius: a number or [N, 1, 1, 1].
        """
        return tf.clip_by_value(images + self.norm.projected(points - images, radius), 0.0, 1.0)

    def start(self, images: tf.Tensor, seed: tf.Tensor, indices: tf.Tensor, radius: float | tf.Tensor) -> tf.Tensor:
        """Returns points uniform in the ball around each image, clipped to [0, 1]."""
        drawn = self.norm.drawn(Draws(seed, indices, "start"), images.shape[1:])
        return tf.clip_by_value(images + radius * drawn, 0.0, 1.0)


class FastGradient(BallAttack):
    """FGSM: one step to the ball's surface, x + radius * steepest(gradient) (Goodfellow et al., 2015).

    With `linf` the steepest direction is the gradient's sign, with `l2` the gradient over its length.

    Examples:
        >>> def model(images):  # the class is the brightest of four pixels
        ...     return tf.reshape(images, [-1, 4])
        >>> images = np.array([[[[0.5], [0.4]], [[0.1], [0.2]]]])
        >>> tfr.attacks.FastGradient(norm="linf", radius=0.06)(model, images, labels=[0]).numpy().round(2).ravel()
        array([0.44, 0.46, 0.16, 0.26])
    """

    takes_radius_as_tensor = True

    def perturb(self, predict: Predict, images: tf.Tensor, criterion: Criterion, seed: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
        _, gradient, _ = self.gradient(predict, images, criterion)
        return self.project(images + self.radius * self.norm.steepest(gradient), images, self.radius)


class ProjectedGradientDescent(BallAttack):
    """PGD: steps along the steepest direction, each projected into ball and cube (Madry et al., 2018).

    Args:
        steps: >= 1.
        step_size: as a fraction of the radius; 0: 2.5 / steps, which reaches the ball's surface from any start.
        random_start: start from a uniform point of the ball, not from the image.
        early_stop: stop for an image once it is misclassified (or assigned to the target class); otherwise every image
            takes all steps. The last point is returned.

    Examples:
        >>> def model(images):  # the class is the brightest of four pixels
        ...     return tf.reshape(images, [-1, 4])
        >>> images = np.array([[[[0.5], [0.4]], [[0.1], [0.2]]]])
        >>> attack = tfr.attacks.ProjectedGradientDescent(norm="l2", radius=0.1, steps=20, early_stop=False)
        >>> attacked = attack(model, images, labels=[0])
        >>> int(tf.argmax(model(attacked)[0])), round(float(tf.norm(attacked - images)), 3)
        (1, 0.1)
    """

    takes_radius_as_tensor = True

    def __init__(self, *, steps: int = 10, step_size: float = 0.0, random_start: bool = True, early_stop: bool = True, **kwargs):
        super().__init__(**kwargs)
        if steps < 1 or not step_size >= 0:
            raise ValueError(f"Expected steps >= 1 and step_size >= 0. Received: {steps}, {step_size}")
        self.steps, self.random_start, self.early_stop = steps, random_start, early_stop
        self.step_size = step_size or 2.5 / steps

    def perturb(self, predict: Predict, images: tf.Tensor, criterion: Criterion, seed: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
        start = self.start(images, seed, indices, self.radius) if self.random_start else images
        return self.ascend(predict, images, start, criterion, tf.fill([tf.shape(images)[0], 1, 1, 1], self.radius))

    def ascend(self, predict: Predict, images: tf.Tensor, start: tf.Tensor, criterion: Criterion, radius: tf.Tensor) -> tf.Tensor:
        """Returns the points after the last step from `start`.

        Args:
            predict: images -> logits.
            images: float32 [N, H, W, C], the centers of the balls.
            start: float32 [N, H, W, C].
            criterion: the goal for these images.
            radius: of each image's ball, [N, 1, 1, 1].
        """

        def step(active, points):
            current, centers, radii = (tf.gather(values, active) for values in (points, images, radius))
            goal = criterion.at(active)
            _, gradient, logits = self.gradient(predict, current, goal)
            moved = self.project(current + self.step_size * radii * self.norm.steepest(gradient), centers, radii)
            if self.early_stop:
                unreached = ~goal.reached(logits)
                active, moved = tf.boolean_mask(active, unreached), tf.boolean_mask(moved, unreached)
            return active, tf.tensor_scatter_nd_update(points, active[:, None], moved)

        _, points = tf.while_loop(
            lambda active, points: tf.size(active) > 0,
            step,
            (tf.range(tf.shape(images)[0]), start),
            shape_invariants=(tf.TensorShape([None]), start.shape),
            maximum_iterations=self.steps,
        )
        return points


class MinimalPGD(Attack):
    """Minimal perturbations by PGD: bisects, on a logarithmic scale, the smallest radius at which it succeeds for each image.

    From the largest possible radius down to 2^-16 of it; ten rounds leave 1.1 % between the radius that succeeded and one
    that did not. The first round starts anywhere in the ball, each further one at the end of the last, scaled to its own radius.
    An image on which no radius succeeds is returned unchanged.

    Args:
        norm: `linf` or `l2`.
        rounds: of bisection, >= 1.
        steps: of PGD in each round, on the margin: where several classes are almost equally near, the cross-entropy's gradient
            points to none of them.

    Examples:
        >>> def model(images):  # the class is the brightest of four pixels
        ...     return tf.reshape(images, [-1, 4])
        >>> images = np.array([[[[0.5], [0.4]], [[0.1], [0.2]]]])
        >>> attacked = tfr.attacks.MinimalPGD(norm="linf")(model, images, labels=[0])
        >>> int(tf.argmax(model(attacked)[0])), round(float(tf.reduce_max(abs(attacked - images))), 2)
        (1, 0.05)
    """

    def __init__(self, *, norm: str = "l2", rounds: int = 10, steps: int = 20, **kwargs):
        super().__init__(**kwargs)
        if rounds < 1:
            raise ValueError(f"Expected rounds >= 1. Received: {rounds}")
        self.norm, self.rounds = norms.norm(norm), rounds
        self.descent = ProjectedGradientDescent(norm=norm, steps=steps, loss="margin")

    def perturb(self, predict: Predict, images: tf.Tensor, criterion: Criterion, seed: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
        largest = self.norm.largest(images.shape[1:])
        zeros = tf.zeros([tf.shape(images)[0], 1, 1, 1])

        def bisect(number, low, high, last, points, best):
            middle = (low + high) / 2.0  # log2 of the radius as a fraction of the largest
            start = self.descent.project(images + (points - images) * 2.0 ** (middle - last), images, largest * 2.0**middle)
            points = self.descent.ascend(predict, images, start, criterion, largest * 2.0**middle)
            reached = norms.per_image(criterion.reached(predict(points)))
            return (
                number + 1,
                tf.where(reached, low, middle),
                tf.where(reached, middle, high),
                middle,
                points,
                tf.where(reached, points, best),
            )

        low, high = zeros + _SMALLEST, zeros
        start = self.descent.start(images, seed, indices, largest * 2.0 ** ((low + high) / 2.0))
        *_, best = tf.while_loop(lambda number, *_: number < self.rounds, bisect, (0, low, high, (low + high) / 2.0, start, images))
        return best
