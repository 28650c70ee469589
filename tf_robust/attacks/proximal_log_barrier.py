"""The proximal log-barrier attack: the smallest perturbation in l0, l1, l2 or linf that is misclassified.

Pooladian, Finlay, Hoheisel and Oberman, "A principled approach for generating adversarial images under non-smooth
dissimilarity metrics" (AISTATS 2020). It minimizes size(u) - alpha log(margin(x + u)) over perturbations u by
forward-backward steps that never leave what is misclassified: a gradient step of the barrier, the proximal operator
of the size, the cube; back-tracking where the model is right again; alpha falls from one outer loop to the next. The
closest point of each image is kept.

Where this differs, and why. The published constants (gradient step 0.1, barrier 0.1 * 0.75^k, proximal strength 1,
back to 0.05 of the way) have the units of pixels and logits; at strength 1 the l2 operator takes away any perturbation
shorter than 1 at every step. Here everything is relative, so neither scale matters. With g the margin's gradient, |g|*
its dual norm and d = margin / |g|* the distance to the boundary to first order:

- alpha = weight_k * size(u): barrier and size balance where d = alpha, a falling share of the distance;
- the step is t = step_size * alpha * |g|*^2 / |g|_2^2, one over the barrier's curvature along g at that place;
  forward by t * min(alpha / d, limit) * g / |g|*, backward with strength t * proximal_strength;
- back-tracking shortens t and takes the step again, since a mixture of two sparse perturbations is less sparse than
  either; at most six times, then the point stays. The next step begins one factor above the last that was tried;
- in l0 the forward step's largest value is given, and the strength is the one at which a share weight_k of the values
  is dropped. The operator is that of size and cube together (`proximal.l0_in_cube`), else values at the cube's faces
  could not be told apart;
- the start is a climb from slight noise (`initial.climbed`) unless another is asked for: from large noise, as
  published, the steps end in farther local minima. A point stays in the class it starts in, since the first, long steps
  would else lead into classes whose boundary is farther; instead several starts are tried;
- in the end the line from image to point is bisected (not for l0, whose size does not change on it).
"""

import numpy as np
import tensorflow as tf

from tf_robust.attacks import initial as begin, norms, proximal
from tf_robust.attacks.attack import Attack, finite, loss_and_gradient
from tf_robust.ops import image_ops
from tf_robust.utils.errors import unknown

_AXES = [1, 2, 3]
_TINY = 1e-30
_BACKTRACKS = 6
_STEP = {"l0": 10.0, "l1": 10.0, "l2": 3.0, "linf": 20.0}  # what a step_size of 1 means
_LIMIT = {"l1": 10.0, "l2": 2.0, "linf": 10.0}  # of the barrier's push, near the boundary
_LEAST_PACE = 0.1  # of l0: below it, nothing more is dropped, and only the values that are kept change


class ProximalLogBarrier(Attack):
    """Minimal-norm perturbations, untargeted or targeted. Takes starts * outer_steps * inner_steps gradients an image.

    An image that is as wanted already comes back unchanged, and so does one for which no start is found. It always
    ends: NaN or infinite logits on the way are a ValueError.

    Args:
        norm: what is minimized, one of l0, l1, l2, linf. outer_steps, inner_steps: >= 1.
        step_size: > 0, as a multiple of what suits the norm.
        barrier_weight: > 0, in the first outer loop, as a share of the distance. barrier_decay: in (0, 1], its factor
            from one outer loop to the next; with fewer outer loops than 30 a smaller one is better, so that the last
            weight is about 0.003.
        backtracking: in (0, 1), factor on a step that was too long.
        proximal_strength: > 0, weight of the size (not in l0).
        initial: `gradient`, `gaussian`, `uniform`, `blur` or `neighbour` (see `initial.start`).
        starts: >= 1, of which the closest point is kept: climbs towards the label's strongest rivals, one after the other
            (with a target, from other noise), or other noise; blur and neighbour have but one.
        candidates: float32 [M, H, W, C] in [0, 1], where neighbours are looked for, also for images where another
            start finds nothing; the model sees all of them with every batch. None: no such help; for `neighbour` the
            images of the batch that are attacked: there, and only there, what is found depends on the batch.

    Raises:
        ValueError: an argument is not as above.
    """

    def __init__(self, *, norm="l2", outer_steps=30, inner_steps=10, step_size=1.0, barrier_weight=0.1,
                 barrier_decay=0.88, backtracking=0.5, proximal_strength=1.0, initial="gradient", starts=3,
                 candidates=None, **kwargs):
        super().__init__(**kwargs)
        self.norm = norms.norm(norm, norms.NORMS)
        if min(outer_steps, inner_steps, starts) < 1:
            raise ValueError("Expected outer_steps >= 1, inner_steps >= 1 and starts >= 1. Received: "
                             f"{outer_steps}, {inner_steps}, {starts}")
        if not (step_size > 0 and barrier_weight > 0 and proximal_strength > 0):
            raise ValueError("Expected step_size, barrier_weight and proximal_strength > 0. Received: "
                             f"{step_size}, {barrier_weight}, {proximal_strength}")
        if not (0 < barrier_decay <= 1 and 0 < backtracking < 1):
            raise ValueError("Expected barrier_decay in (0, 1] and backtracking in (0, 1). Received: "
                             f"{barrier_decay}, {backtracking}")
        if initial not in begin.INITIAL:
            raise unknown("initial", initial, begin.INITIAL)
        self.outer_steps, self.inner_steps, self.step_size = outer_steps, inner_steps, step_size
        self.barrier_weight, self.barrier_decay, self.backtracking = barrier_weight, barrier_decay, backtracking
        self.proximal_strength, self.initial = proximal_strength, initial
        self.starts = 1 if initial in ("blur", "neighbour") else starts
        self.candidates = None if candidates is None else image_ops.check_images(candidates)

    def check(self, shape):
        if self.candidates is not None and self.candidates.shape[1:] != tuple(shape):
            raise ValueError(f"Expected candidates of the images' shape, {tuple(shape)}. Received: "
                             f"{self.candidates.shape[1:]}")

    @tf.autograph.experimental.do_not_convert  # not needed, and it takes ten times as long as tracing
    def attacked(self, predict, images, criterion, seed, indices):
        def checked(points):
            return finite(predict(points))
        candidates = self.candidates
        if candidates is None:
            candidates = images if self.initial == "neighbour" else images[:0]
        logits = checked(images)
        work = tf.where(~criterion.reached(logits))[:, 0]
        here, logits, indices = (tf.gather(part, work) for part in (images, logits, indices))
        aim = criterion.at(work)

        def attempt(number, closest, smallest):
            points, found = begin.start(
                self.initial, checked, here, aim, [seed[0], seed[1] * self.starts + tf.cast(number, seed.dtype)], indices,
                candidates, self.norm, aim.rival(logits, number))
            some = tf.where(found)[:, 0]

            def approach():
                near = self.approached(predict, tf.gather(here, some), tf.gather(points, some), aim.at(some))
                return tf.tensor_scatter_nd_update(points, some[:, None], near)
            points = tf.cond(tf.size(some) > 0, approach, lambda: points)
            size = tf.where(found, self.norm.size(points - here), np.inf)
            return number + 1, tf.where(_column(size < smallest), points, closest), tf.minimum(size, smallest)

        def attack():
            nothing = tf.fill([tf.size(work)], np.float32(np.inf))
            closest = tf.while_loop(lambda *_: True, attempt, (0, here, nothing), maximum_iterations=self.starts)[1]
            return tf.tensor_scatter_nd_update(images, work[:, None], closest)
        return tf.cond(tf.size(work) > 0, attack, lambda: images)

    def approached(self, predict, images, points, criterion):
        """The closest points [N, H, W, C] that are found from `points`, which are as wanted, in their classes."""
        criterion = criterion.class_of(predict(points))

        def step(number, points, pace, closest, smallest):
            weight = self.barrier_weight * self.barrier_decay ** tf.cast(number // self.inner_steps, tf.float32)
            margin, gradient, _ = loss_and_gradient(predict, points, criterion.margin)
            points, pace = self.moved(predict, images, points, pace, criterion, margin, gradient, weight)
            size = self.norm.size(points - images)
            closest = tf.where(_column(size < smallest), points, closest)
            return number + 1, points, pace, closest, tf.minimum(size, smallest)
        size = self.norm.size(points - images)
        closest = tf.while_loop(lambda *_: True, step, (0, points, tf.ones_like(size), points, size),
                                maximum_iterations=self.outer_steps * self.inner_steps)[3]
        if self.norm is norms.L0:
            return closest
        return begin.nearer(lambda points: finite(predict(points)), images, closest, criterion)

    def moved(self, predict, images, points, pace, criterion, margin, gradient, weight):
        """One forward-backward step with back-tracking: (points, pace [N]), pace: the share of a step last tried."""
        def attempt(places, points, pace):
            image, here, share, above, slope = (
                tf.gather(part, places) for part in (images, points, pace, margin, gradient))
            tried = self.forward_backward(image, here, share, above, slope, weight)
            reached = criterion.at(places).reached(finite(predict(tried)))
            points = tf.tensor_scatter_nd_update(points, places[:, None], tf.where(_column(reached), tried, here))
            pace = tf.tensor_scatter_nd_update(
                pace, places[:, None], tf.where(reached, share, share * self.backtracking))
            return tf.boolean_mask(places, ~reached), points, pace
        pace = tf.minimum(pace / self.backtracking, 1.0)
        return tf.while_loop(
            lambda places, *_: tf.size(places) > 0, attempt, (tf.range(tf.shape(images)[0]), points, pace),
            shape_invariants=(tf.TensorShape([None]), points.shape, pace.shape),
            maximum_iterations=1 + _BACKTRACKS)[1:]

    def forward_backward(self, images, points, pace, margin, gradient, weight):
        """Points [N, H, W, C] one step on. margin, pace: [N]; gradient: of the margin; weight: of this outer loop."""
        perturbations = points - images
        # a confident model's gradients are so small that their squares would vanish
        largest = tf.reduce_max(tf.abs(gradient), axis=_AXES)
        gradient = gradient / _column(tf.maximum(largest, 1e-37))
        step = pace * (self.step_size * _STEP[self.norm.name])
        if self.norm is norms.L0:
            forward = perturbations + _column(step) * gradient
            return images + self._fewer(forward, images, self.norm.size(perturbations), pace, weight)
        alpha = weight * self.norm.size(perturbations)
        steepness = tf.maximum(_DUAL[self.norm.name](gradient), _TINY)  # in units of the largest
        push = tf.minimum(alpha * steepness * largest / tf.maximum(margin, _TINY), _LIMIT[self.norm.name])
        step = step * alpha * steepness ** 2 / tf.maximum(_length(gradient) ** 2, 1.0)  # 1: the largest itself
        forward = perturbations + _column(step * push / steepness) * gradient
        backward = proximal.PROXIMAL[self.norm.name](forward, self.proximal_strength * step)
        return tf.clip_by_value(images + backward, 0.0, 1.0)

    def _fewer(self, forward, images, count, pace, weight):
        """The l0 operator, of the strength at which it keeps (1 - weight * pace) of `count` [N] values."""
        kept = tf.maximum(tf.minimum(tf.floor(count * (1.0 - tf.minimum(pace * weight, 1.0))), count - 1.0), 0.0)
        kept = tf.cast(tf.where(pace < _LEAST_PACE, count, kept), tf.int32)
        gains = proximal.gain_of_keeping(forward, -images, 1.0 - images)
        gains = tf.sort(tf.reshape(gains, [tf.shape(images)[0], -1]), direction="DESCENDING")
        strength = tf.gather(gains, tf.minimum(kept, tf.shape(gains)[1] - 1), batch_dims=1)
        return proximal.l0_in_cube(forward, strength, -images, 1.0 - images)


def _length(gradients):
    return tf.sqrt(tf.reduce_sum(gradients ** 2, axis=_AXES))


_DUAL = {  # how much the margin can rise to first order by a perturbation of size 1
    "l1": lambda gradients: tf.reduce_max(tf.abs(gradients), axis=_AXES),
    "l2": _length,
    "linf": lambda gradients: tf.reduce_sum(tf.abs(gradients), axis=_AXES)}


def _column(numbers):
    return tf.reshape(numbers, [-1, 1, 1, 1])
