"""The proximal log-barrier attack: the smallest perturbation in l0, l1, l2 or linf that is misclassified.

Pooladian, Finlay, Hoheisel and Oberman, "A principled approach for generating adversarial images under non-smooth
dissimilarity metrics" (AISTATS 2020). It minimizes size(u) - alpha log(margin(x + u)) over perturbations u by
forward-backward steps that stay among misclassified points: a gradient step of the barrier, the proximal operator
of the size, clipping to the cube; backtracking where the model is right again; alpha decreases from one outer loop to the
next. The closest point of each image is kept.

Differences from the paper, and why. The published constants (gradient step 0.1, barrier 0.1 * 0.75^k, proximal strength 1,
backtracking to 0.05 of the way) have the units of pixels and logits; at strength 1 the l2 operator removes any perturbation
shorter than 1 at every step. Here everything is relative, so neither scale matters. With g the margin's gradient, |g|*
its dual norm and d = margin / |g|* the distance to the boundary to first order:

- alpha = weight_k * size(u): barrier and size balance where d = alpha, a decreasing fraction of the distance;
- the step is t = step_size * alpha * |g|*^2 / |g|_2^2, one over the barrier's curvature along g at that point;
  forward by t * min(alpha / d, limit) * g / |g|*, backward with strength t * proximal_strength;
- backtracking shortens t and repeats the step, since a mixture of two sparse perturbations is less sparse than
  either; at most six times, then the point stays. The next step begins one factor above the last t;
- in l0 the forward step's largest value is given, and the strength is the one at which a fraction weight_k of the values
  is dropped. The operator is that of size and cube together (`proximal.l0_in_cube`), otherwise values at the cube's faces
  could not be ranked;
- the start is gradient ascent from slight noise (`initial.ascend`) unless another is chosen: from large noise, as
  published, the steps end in farther local minima. A point stays in the class it starts in, since the first, long steps
  could lead into classes whose boundary is farther; instead several starts are tried;
- in the end the line from image to point is bisected (not for l0, whose size does not change on it).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tf_robust.attacks import initial as initial_points
from tf_robust.attacks import norms, proximal
from tf_robust.attacks.attack import Attack, Predict, finite, loss_and_gradient
from tf_robust.attacks.criterion import Criterion
from tf_robust.attacks.norms import per_image
from tf_robust.ops import image_ops
from tf_robust.utils.errors import unknown

_AXES = [1, 2, 3]
_TINY = 1e-30
_BACKTRACKS = 6
_STEP = {"l0": 10.0, "l1": 10.0, "l2": 3.0, "linf": 20.0}  # the step for step_size=1
_LIMIT = {"l1": 10.0, "l2": 2.0, "linf": 10.0}  # of the barrier's push, near the boundary
_MIN_PACE = 0.1  # of l0: below it, nothing more is dropped, and only the values that are kept change


class ProximalLogBarrier(Attack):
    """PLB (Pooladian et al., 2020): minimal-norm perturbations, untargeted or targeted.

    Takes starts * outer_steps * inner_steps gradients per image.

    An image that meets the goal already is returned unchanged, and so is one for which no start is found. NaN or infinite
    logits during the attack raise a ValueError.

    Args:
        norm: the norm to minimize, one of l0, l1, l2, linf.
        outer_steps: >= 1.
        inner_steps: >= 1.
        step_size: > 0, as a multiple of the norm's default step.
        barrier_weight: > 0, in the first outer loop, as a fraction of the distance.
        barrier_decay: in (0, 1], its factor from one outer loop to the next; with fewer than 30 outer loops a smaller one
            is better, so that the last weight is about 0.003.
        backtracking: in (0, 1), factor on a step that was too long.
        proximal_strength: > 0, weight of the size (not in l0).
        initial: `gradient`, `gaussian`, `uniform`, `blur` or `neighbour` (see `initial.start`).
        starts: >= 1, of which the closest point is kept: ascents towards the label's strongest rivals, one after the other
            (with a target, from other noise), or other noise; blur and neighbour have one only.
        candidates: float32 [M, H, W, C] in [0, 1], in which the nearest one is searched, also for images on which another
            start fails; the model evaluates all of them with every batch. None: none; for `neighbour` the attacked images
            of the batch: there, and only there, the result depends on the batch.

    Raises:
        ValueError: an argument is not as above.

    Examples:
        >>> def model(images):  # the class is the brightest of four pixels
        ...     return tf.reshape(images, [-1, 4])
        >>> images = np.array([[[[0.5], [0.4]], [[0.1], [0.2]]]])
        >>> attack = tfr.attacks.ProximalLogBarrier(norm="l0", initial="neighbour", candidates=images[:, :, ::-1])
        >>> attacked = attack(model, images, labels=[0])
        >>> int(tf.argmax(model(attacked)[0])), int(tf.math.count_nonzero(abs(attacked - images) > 1e-6))  # one value changes
        (1, 1)
    """

    def __init__(
        self,
        *,
        norm: str = "l2",
        outer_steps: int = 30,
        inner_steps: int = 10,
        step_size: float = 1.0,
        barrier_weight: float = 0.1,
        barrier_decay: float = 0.88,
        backtracking: float = 0.5,
        proximal_strength: float = 1.0,
        initial: str = "gradient",
        starts: int = 3,
        candidates: npt.ArrayLike | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.norm = norms.norm(norm, tuple(norms.NORMS))
        if min(outer_steps, inner_steps, starts) < 1:
            raise ValueError(
                f"Expected outer_steps >= 1, inner_steps >= 1 and starts >= 1. Received: {outer_steps}, {inner_steps}, {starts}"
            )
        if not (step_size > 0 and barrier_weight > 0 and proximal_strength > 0):
            raise ValueError(
                "Expected step_size, barrier_weight and proximal_strength > 0. Received: "
                f"{step_size}, {barrier_weight}, {proximal_strength}"
            )
        if not (0 < barrier_decay <= 1 and 0 < backtracking < 1):
            raise ValueError(f"Expected barrier_decay in (0, 1] and backtracking in (0, 1). Received: {barrier_decay}, {backtracking}")
        if initial not in initial_points.INITIAL:
            raise unknown("initial", initial, initial_points.INITIAL)
        self.outer_steps, self.inner_steps, self.step_size = outer_steps, inner_steps, step_size
        self.barrier_weight, self.barrier_decay, self.backtracking = barrier_weight, barrier_decay, backtracking
        self.proximal_strength, self.initial = proximal_strength, initial
        self.starts = 1 if initial in ("blur", "neighbour") else starts
        self.candidates = None if candidates is None else image_ops.check_images(candidates)

    def check(self, shape: Sequence[int]) -> None:
        if self.candidates is not None and self.candidates.shape[1:] != tuple(shape):
            raise ValueError(f"Expected candidates of the images' shape, {tuple(shape)}. Received: {self.candidates.shape[1:]}")

    @tf.autograph.experimental.do_not_convert  # not needed, and it takes ten times as long as tracing
    def perturb(self, predict: Predict, images: tf.Tensor, criterion: Criterion, seed: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
        def predict_finite(points):
            return finite(predict(points))

        candidates = self.candidates
        if candidates is None:
            candidates = images if self.initial == "neighbour" else images[:0]
        logits = predict_finite(images)
        active = tf.where(~criterion.reached(logits))[:, 0]
        originals, logits, indices = (tf.gather(part, active) for part in (images, logits, indices))
        goal = criterion.at(active)

        def attempt(number, closest, smallest):
            points, success = initial_points.start(
                self.initial,
                predict_finite,
                originals,
                goal,
                [seed[0], seed[1] * self.starts + tf.cast(number, seed.dtype)],
                indices,
                candidates,
                self.norm,
                goal.rival(logits, number),
            )
            rows = tf.where(success)[:, 0]

            def minimized():
                results = self.minimize(predict, tf.gather(originals, rows), tf.gather(points, rows), goal.at(rows))
                return tf.tensor_scatter_nd_update(points, rows[:, None], results)

            points = tf.cond(tf.size(rows) > 0, minimized, lambda: points)
            size = tf.where(success, self.norm.size(points - originals), np.inf)
            return number + 1, tf.where(per_image(size < smallest), points, closest), tf.minimum(size, smallest)

        def attack():
            infinite = tf.fill([tf.size(active)], np.float32(np.inf))
            closest = tf.while_loop(lambda *_: True, attempt, (0, originals, infinite), maximum_iterations=self.starts)[1]
            return tf.tensor_scatter_nd_update(images, active[:, None], closest)

        return tf.cond(tf.size(active) > 0, attack, lambda: images)

    def minimize(self, predict: Predict, images: tf.Tensor, points: tf.Tensor, criterion: Criterion) -> tf.Tensor:
        """Returns the closest points [N, H, W, C] found from `points`, which meet the goal, within their classes."""
        criterion = criterion.class_of(predict(points))

        def step(number, points, pace, closest, smallest):
            weight = self.barrier_weight * self.barrier_decay ** tf.cast(number // self.inner_steps, tf.float32)
            margin, gradient, _ = loss_and_gradient(predict, points, criterion.margin)
            points, pace = self.step(predict, images, points, pace, criterion, margin, gradient, weight)
            size = self.norm.size(points - images)
            closest = tf.where(per_image(size < smallest), points, closest)
            return number + 1, points, pace, closest, tf.minimum(size, smallest)

        size = self.norm.size(points - images)
        closest = tf.while_loop(
            lambda *_: True, step, (0, points, tf.ones_like(size), points, size), maximum_iterations=self.outer_steps * self.inner_steps
        )[3]
        if self.norm is norms.L0:
            return closest
        return initial_points.bisect_line(lambda points: finite(predict(points)), images, closest, criterion)

    def step(
        self,
        predict: Predict,
        images: tf.Tensor,
        points: tf.Tensor,
        pace: tf.Tensor,
        criterion: Criterion,
        margin: tf.Tensor,
        gradient: tf.Tensor,
        weight: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Takes one forward-backward step with backtracking; returns (points, pace).

        Args:
            predict: images -> logits.
            images: float32 [N, H, W, C].
            points: float32 [N, H, W, C].
            pace: [N], the fraction of a full step that the last step tried at the end.
            criterion: the goal.
            margin: [N], at the points.
            gradient: [N, H, W, C], of the margin.
            weight: of the barrier in this outer loop.
        """

        def attempt(active, points, pace):
            image, current, fraction, height, slope = (tf.gather(part, active) for part in (images, points, pace, margin, gradient))
            moved = self.forward_backward(image, current, fraction, height, slope, weight)
            reached = criterion.at(active).reached(finite(predict(moved)))
            points = tf.tensor_scatter_nd_update(points, active[:, None], tf.where(per_image(reached), moved, current))
            pace = tf.tensor_scatter_nd_update(pace, active[:, None], tf.where(reached, fraction, fraction * self.backtracking))
            return tf.boolean_mask(active, ~reached), points, pace

        pace = tf.minimum(pace / self.backtracking, 1.0)
        return tf.while_loop(
            lambda active, *_: tf.size(active) > 0,
            attempt,
            (tf.range(tf.shape(images)[0]), points, pace),
            shape_invariants=(tf.TensorShape([None]), points.shape, pace.shape),
            maximum_iterations=1 + _BACKTRACKS,
        )[1:]

    def forward_backward(
        self, images: tf.Tensor, points: tf.Tensor, pace: tf.Tensor, margin: tf.Tensor, gradient: tf.Tensor, weight: tf.Tensor
    ) -> tf.Tensor:
        """Returns the points [N, H, W, C] one step further; arguments as in `step`."""
        perturbations = points - images
        # scaled by the largest value: the squares of a confident model's tiny gradients would underflow
        largest = tf.reduce_max(tf.abs(gradient), axis=_AXES)
        gradient = gradient / per_image(tf.maximum(largest, 1e-37))
        step = pace * (self.step_size * _STEP[self.norm.name])
        if self.norm is norms.L0:
            forward = perturbations + per_image(step) * gradient
            return images + self._drop_values(forward, images, self.norm.size(perturbations), pace, weight)
        alpha = weight * self.norm.size(perturbations)
        steepness = tf.maximum(_DUAL[self.norm.name](gradient), _TINY)  # in units of the largest
        push = tf.minimum(alpha * steepness * largest / tf.maximum(margin, _TINY), _LIMIT[self.norm.name])
        step = step * alpha * steepness**2 / tf.maximum(_length(gradient) ** 2, 1.0)  # 1: the largest itself
        forward = perturbations + per_image(step * push / steepness) * gradient
        backward = proximal.PROXIMAL[self.norm.name](forward, self.proximal_strength * step)
        return tf.clip_by_value(images + backward, 0.0, 1.0)

    def _drop_values(self, forward, images, count, pace, weight):
        """Applies the l0 operator with the strength at which it keeps (1 - weight * pace) of `count` [N] values."""
        kept = tf.maximum(tf.minimum(tf.floor(count * (1.0 - tf.minimum(pace * weight, 1.0))), count - 1.0), 0.0)
        kept = tf.cast(tf.where(pace < _MIN_PACE, count, kept), tf.int32)
        gains = proximal.gain_of_keeping(forward, -images, 1.0 - images)
        gains = tf.sort(tf.reshape(gains, [tf.shape(images)[0], -1]), direction="DESCENDING")
        strength = tf.gather(gains, tf.minimum(kept, tf.shape(gains)[1] - 1), batch_dims=1)
        return proximal.l0_in_cube(forward, strength, -images, 1.0 - images)


def _length(gradients):
    return tf.sqrt(tf.reduce_sum(gradients**2, axis=_AXES))


_DUAL = {  # dual norms: the first-order rise of the margin by a perturbation of size 1
    "l1": lambda gradients: tf.reduce_max(tf.abs(gradients), axis=_AXES),
    "l2": _length,
    "linf": lambda gradients: tf.reduce_sum(tf.abs(gradients), axis=_AXES),
}
