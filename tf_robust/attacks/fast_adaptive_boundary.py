"""FAB: minimal perturbations by projections onto the linearized decision boundary (Croce and Hein, 2020, "Minimally distorted ...").

Between the label y and another class t the boundary at x is the hyperplane z_t - z_y = 0, linearized. With d(x) the smallest
perturbation of x that reaches it inside the cube [0, 1], and x_0 the image,

    x <- clip((1 - a) (x + 1.05 d(x)) + a (x_0 + 1.05 d(x_0))),  a = min(|d(x)| / (|d(x)| + |d(x_0)|), 0.1)

A misclassified point is kept if it is the nearest so far, and moved back, x <- x_0 + 0.9 (x - x_0). The paper's final search along a
line is left out, as in the authors' code.
"""

import tensorflow as tf

from tf_robust.attacks import norms
from tf_robust.attacks.attack import Predict
from tf_robust.attacks.criterion import Criterion
from tf_robust.attacks.norms import per_image
from tf_robust.attacks.target_classes import TargetClassesAttack

_OVERSHOOT = 1.05
_MAX_BIAS = 0.1  # largest weight of the step from the image
_BACKWARD = 0.9  # fraction of the distance that a misclassified point keeps
_NEGLIGIBLE = 1e-8  # slopes below this fraction of the largest one count as 0
_MAX_ROUNDS = 100  # of Newton's method, which takes about ten


class FastAdaptiveBoundary(TargetClassesAttack):
    """FAB-T: for each of the strongest other classes, the nearest point beyond the boundary to it, if it is inside the ball.

    Where no such point is found, the nearest one is projected into the ball.

    Args:
        steps: >= 1; each takes one gradient and one query.
        early_stop: stop for an image once a misclassified point inside the ball is found; otherwise the nearest one is searched for.
        **kwargs: of `TargetClassesAttack`, without `loss`. Restarts begin at a random point of the ball with half the radius.

    Examples:
        >>> def model(images):  # the class is the brightest of four pixels
        ...     return tf.reshape(images, [-1, 4])
        >>> images = np.array([[[[0.5], [0.4]], [[0.1], [0.2]]]])
        >>> attacked = tfr.attacks.FastAdaptiveBoundary(radius=0.2, steps=20, early_stop=False)(model, images, labels=[0])
        >>> int(tf.argmax(model(attacked)[0])), round(float(tf.reduce_max(abs(attacked - images))), 2)  # the nearest point
        (1, 0.05)
    """

    takes_radius_as_tensor = True

    def __init__(self, *, steps: int = 100, early_stop: bool = True, **kwargs):
        super().__init__(loss="margin", **kwargs)
        if steps < 1:
            raise ValueError(f"Expected steps >= 1 for {type(self).__name__}, the number of its steps. Received: {steps}")
        self.steps, self.early_stop = steps, early_stop

    def perturb(self, predict: Predict, images: tf.Tensor, criterion: Criterion, seed: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
        start = images
        if self.restarts > 1:
            start = tf.where(seed[1] % self.restarts > 0, self.start(images, seed, indices, self.radius / 2), images)
        nearest = self._search(predict, images, start, self.goal(predict, images, criterion, seed))
        inside = self.norm.size(nearest - images) <= self.radius
        return tf.raw_ops.Select(condition=inside, x=nearest, y=self.project(nearest, images, self.radius))

    def _search(self, predict, images, start, criterion):
        """Returns the nearest points that meet the goal, images where there are none: [N, H, W, C]."""

        def step(active, points, nearest, distances):
            centers, goal = tf.gather(images, active), criterion.at(active)
            points = self._move(predict, points, centers, goal)
            reached, sizes = goal.reached(predict(points)), self.norm.size(points - centers)
            better = reached & (sizes < distances)
            kept = tf.raw_ops.Select(condition=better, x=points, y=tf.gather(nearest, active))
            distances = tf.where(better, sizes, distances)
            points = tf.raw_ops.Select(condition=reached, x=centers + _BACKWARD * (points - centers), y=points)
            done = (distances <= self.radius) & self.early_stop
            nearest = tf.tensor_scatter_nd_update(nearest, active[:, None], kept)
            active, points, distances = (tf.boolean_mask(part, ~done) for part in (active, points, distances))
            return active, points, nearest, distances

        active = tf.range(tf.shape(images)[0])
        return tf.while_loop(
            lambda active, *_: tf.size(active) > 0,
            step,
            (active, start, images, tf.fill(tf.shape(active), float("inf"))),
            shape_invariants=(tf.TensorShape([None]), start.shape, images.shape, tf.TensorShape([None])),
            maximum_iterations=self.steps,
        )[2]

    def _move(self, predict, points, centers, goal):
        """Returns the points after one step, from the linearized boundary at `points`; all are [N, H, W, C]."""
        margin, slopes, _ = self.gradient(predict, points, goal)
        offset = tf.reduce_sum(slopes * (points - centers), axis=[1, 2, 3])
        step, step_from_center = (
            nearest_on_hyperplane(self.norm, start, slopes, change) for start, change in ((points, -margin), (centers, offset - margin))
        )
        size, size_from_center = (tf.maximum(self.norm.size(part), 1e-8) for part in (step, step_from_center))
        bias = per_image(tf.minimum(size / (size + size_from_center), _MAX_BIAS))
        moved = (1.0 - bias) * (points + _OVERSHOOT * step) + bias * (centers + _OVERSHOOT * step_from_center)
        return tf.clip_by_value(moved, 0.0, 1.0)


def nearest_on_hyperplane(norm: type[norms.Norm], points: tf.Tensor, slopes: tf.Tensor, change: tf.Tensor) -> tf.Tensor:
    """Returns the smallest perturbation d with sum(slopes * d) = change and points + d in [0, 1].

    Each value moves by min(t v, room) towards `change`, up to a face of the cube: with v = |slope| in l2, v = 1 in linf. The change
    is a concave, piecewise linear function of t, so that Newton's method from t = 0 rises to the solution and ends there. Where the
    change is out of reach, the result is the corner that comes closest to it; where it is not finite, 0.

    Args:
        norm: L2 or Linf.
        points: float32 [N, H, W, C] in [0, 1].
        slopes: float32 [N, H, W, C].
        change: float32 [N], of either sign.
    """
    largest = tf.maximum(tf.reduce_max(tf.abs(slopes), axis=[1, 2, 3], keepdims=True), 1e-37)
    slopes = slopes / largest * per_image(tf.sign(change))
    slopes = tf.where(tf.abs(slopes) < _NEGLIGIBLE, 0.0, slopes)
    change = tf.abs(change) / tf.reshape(largest, [-1])
    change = tf.where(tf.math.is_finite(change), change, 0.0)
    weights, room = tf.abs(slopes), tf.where(slopes > 0.0, 1.0 - points, points)
    speeds = weights if norm is norms.L2 else tf.sign(weights)
    gains, rates = weights * room, weights * speeds  # of the change: at the face, and per unit of t before it

    def newton(time, _):
        moving = tf.cast(per_image(time) * speeds < room, tf.float32)
        rate, gained = (tf.reduce_sum(part, axis=[1, 2, 3]) for part in (moving * rates, (1.0 - moving) * gains))
        proposed = tf.where(rate > 0.0, tf.math.divide_no_nan(change - gained, rate), time)
        return tf.maximum(proposed, time), proposed > time * (1.0 + 1e-6)

    zeros = tf.zeros_like(change)
    time, _ = tf.while_loop(
        lambda _, rising: tf.reduce_any(rising), newton, (zeros, tf.ones_like(change, tf.bool)), maximum_iterations=_MAX_ROUNDS
    )
    return tf.sign(slopes) * tf.minimum(per_image(time) * speeds, room)
