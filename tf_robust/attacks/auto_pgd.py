"""APGD: projected gradient ascent with momentum and an adaptive step size (Croce and Hein, 2020, Algorithm 1).

    z(k+1) = P(x(k) + size * steepest(gradient)),  x(k+1) = P(x(k) + a (z(k+1) - x(k)) + (1 - a) (x(k) - x(k-1)))

The step size begins at two radii. At a checkpoint it is halved, and the search restarts from the best point so far, if the
loss rose in too few of the steps since the last checkpoint, or if neither the best loss nor the step size changed since
then. Where the authors' code differs from the paper's box, this is the box: the code evaluates the conditions one step
earlier, and never the second one at the first checkpoint.
"""

import typing

import numpy as np
import tensorflow as tf

from tf_robust.attacks.attack import Predict
from tf_robust.attacks.criterion import Criterion
from tf_robust.attacks.gradient import BallAttack
from tf_robust.attacks.norms import per_image
from tf_robust.attacks.target_classes import TargetClassesAttack

_FIRST_STEP = 2.0  # in radii
_NEW_STEP_WEIGHT = 0.75  # a: of the new step, the rest is momentum
_MIN_RISES = 0.75  # fraction of the steps between checkpoints that must raise the loss for the step size to stay
_FIRST_PERIOD, _PERIOD_DECREASE, _MIN_PERIOD = 22, 3, 6  # between checkpoints, in percent of the steps


def checkpoints(steps: int) -> list[int]:
    """Returns [0, w_1, w_2, ...], the iterations after which the step size is adapted: ceil(p_j * steps), each once.

    p_0 = 0, p_1 = 0.22, p_(j+1) = p_j + max(p_j - p_(j-1) - 0.03, 0.06), in whole percent since 0.41 * 100 is not 41.
    """
    percents, period = [0], _FIRST_PERIOD
    while percents[-1] + period <= 100:
        percents.append(percents[-1] + period)
        period = max(period - _PERIOD_DECREASE, _MIN_PERIOD)
    return sorted({-(-percent * steps // 100) for percent in percents})


class _State(typing.NamedTuple):
    """The search on the M images that are still active; points and gradients are [M, H, W, C], the rest [M]."""

    indices: tf.Tensor  # int32, positions in the batch
    points: tf.Tensor
    previous: tf.Tensor  # the points one step before
    best: tf.Tensor  # the points of the highest loss
    best_gradient: tf.Tensor
    best_loss: tf.Tensor
    checkpoint_loss: tf.Tensor  # the best loss at the last checkpoint
    last_loss: tf.Tensor  # at `previous`
    step_size: tf.Tensor
    rises: tf.Tensor  # float, number of steps since the last checkpoint that raised the loss
    halved: tf.Tensor  # bool, whether the last checkpoint halved the step size


class AutoProjectedGradientDescent(BallAttack):
    """APGD (Croce and Hein, 2020, section 3), from a uniform point of the ball.

    Args:
        steps: >= 1; the model is queried steps + 1 times, since the last point is evaluated too.
        early_stop: stop for an image once it is misclassified (or assigned to the target class). For all other images the
            point of the highest loss is returned.

    Examples:
        >>> def model(images):  # the class is the brightest of four pixels
        ...     return tf.reshape(images, [-1, 4])
        >>> images = np.array([[[[0.5], [0.4]], [[0.1], [0.2]]]])
        >>> attacked = tfr.attacks.AutoProjectedGradientDescent(radius=0.06, steps=20, loss="margin")(model, images, labels=[0])
        >>> int(tf.argmax(model(attacked)[0])), bool(tf.reduce_all(abs(attacked - images) < 0.0601))
        (1, True)
    """

    takes_radius_as_tensor = True

    def __init__(self, *, steps: int = 100, early_stop: bool = True, **kwargs):
        super().__init__(**kwargs)
        if steps < 1:
            raise ValueError(f"Expected steps >= 1 for {type(self).__name__}, the number of its steps. Received: {steps}")
        self.steps, self.early_stop = steps, early_stop

    def perturb(self, predict: Predict, images: tf.Tensor, criterion: Criterion, seed: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
        return self.ascend(predict, images, self.start(images, seed, indices, self.radius), criterion)

    def ascend(self, predict: Predict, images: tf.Tensor, start: tf.Tensor, criterion: Criterion) -> tf.Tensor:
        """Returns the result of the search from `start`; images, start and result are [N, H, W, C]."""
        periods = tf.constant(self._periods(), tf.float32)

        def step(k, state, results):
            centers, goal = tf.gather(images, state.indices), criterion.at(state.indices)
            loss, gradient, logits = self.gradient(predict, state.points, goal)
            state = _with_best(state, loss, gradient)
            done = goal.reached(logits) if self.early_stop else tf.zeros_like(state.halved)
            results = tf.tensor_scatter_nd_update(results, state.indices[:, None], _select(done, state.points, state.best))
            state, gradient = _adapt(state, loss, gradient, periods[k])
            state = self._move(state, gradient, centers, tf.where(k == 0, 1.0, _NEW_STEP_WEIGHT))
            return k + 1, _State(*(tf.boolean_mask(part, ~done) for part in state)), results

        initial = self._initial_state(start)
        shapes = _State(*(tf.TensorShape([None, *part.shape[1:]]) for part in initial))
        return tf.while_loop(
            lambda k, state, results: (k <= self.steps) & (tf.size(state.indices) > 0),
            step,
            (tf.constant(0), initial, start),
            shape_invariants=(tf.TensorShape([]), shapes, start.shape),
        )[2]

    def _initial_state(self, start):
        count = tf.shape(start)[0]
        step_size, lowest = tf.fill([count], tf.cast(_FIRST_STEP * self.radius, tf.float32)), tf.fill([count], np.float32(-np.inf))
        return _State(
            indices=tf.range(count),
            points=start,
            previous=start,
            best=start,
            best_gradient=tf.zeros_like(start),
            best_loss=lowest,
            checkpoint_loss=lowest,
            last_loss=-lowest,
            step_size=step_size,
            rises=tf.zeros([count]),
            halved=tf.zeros([count], tf.bool),
        )

    def _periods(self):
        """Returns [steps + 1]: where x(k) follows a checkpoint, the steps since the previous one (first: 0); else -1."""
        periods, iterations = np.full(self.steps + 1, -1), checkpoints(self.steps)
        for last, current in zip([0, *iterations], iterations):
            if current < self.steps:
                periods[current + 1] = current - last
        return periods

    def _move(self, state, gradient, centers, weight):
        target = self.project(state.points + per_image(state.step_size) * self.norm.steepest(gradient), centers, self.radius)
        moved = state.points + weight * (target - state.points) + (1.0 - weight) * (state.points - state.previous)
        return state._replace(points=self.project(moved, centers, self.radius), previous=state.points)


class TargetedAutoPGD(TargetClassesAttack, AutoProjectedGradientDescent):
    """APGD-T: APGD on the targeted difference-of-logits ratio, against each of the strongest other classes (section 4 and eq. 7).

    Examples:
        >>> def model(images):  # the class is the brightest of four pixels
        ...     return tf.reshape(images, [-1, 4])
        >>> images = np.array([[[[0.5], [0.4]], [[0.1], [0.2]]]])
        >>> attack = tfr.attacks.TargetedAutoPGD(radius=0.2, steps=20, target_classes=3)
        >>> attack.attempts(classes=4, targeted=False), attack.attempts(classes=4, targeted=True)
        (3, 1)
        >>> int(tf.argmax(model(attack(model, images, labels=[0], targets=[3]))[0]))
        3
    """

    takes_radius_as_tensor = True

    def __init__(self, *, loss: str = "difference_of_logits_ratio", **kwargs):
        super().__init__(loss=loss, **kwargs)

    def perturb(self, predict: Predict, images: tf.Tensor, criterion: Criterion, seed: tf.Tensor, indices: tf.Tensor) -> tf.Tensor:
        return super().perturb(predict, images, self.goal(predict, images, criterion, seed), seed, indices)


def _with_best(state, loss, gradient):
    better = loss > state.best_loss
    return state._replace(
        best=_select(better, state.points, state.best),
        best_gradient=_select(better, gradient, state.best_gradient),
        best_loss=tf.maximum(loss, state.best_loss),
    )


def _adapt(state, loss, gradient, period):
    """At a checkpoint (period >= 0), halves step sizes and returns to the best points where a condition holds.

    Returns:
        (state, gradient at its points)
    """
    checkpoint = period >= 0.0
    stuck = ~state.halved & (state.best_loss == state.checkpoint_loss)
    halve = checkpoint & ((state.rises < _MIN_RISES * period) | stuck)
    loss = tf.where(halve, state.best_loss, loss)
    rose = tf.cast(loss > state.last_loss, tf.float32)  # the step to these points counts for the next checkpoint
    state = state._replace(
        points=_select(halve, state.best, state.points),
        last_loss=loss,
        step_size=tf.where(halve, state.step_size / 2, state.step_size),
        rises=tf.where(checkpoint, 0.0, state.rises) + rose,
        halved=tf.where(checkpoint, halve, state.halved),
        checkpoint_loss=tf.where(checkpoint, state.best_loss, state.checkpoint_loss),
    )
    return state, _select(halve, state.best_gradient, gradient)


def _select(mask, images, others):
    """Returns whole images by a mask [M]; a broadcast `tf.where` takes far longer."""
    return tf.raw_ops.Select(condition=mask, x=images, y=others)
