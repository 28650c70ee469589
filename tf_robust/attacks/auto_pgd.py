"""APGD: projected gradient ascent with momentum that finds its step size by itself (Croce and Hein, 2020, Algorithm 1).

    z(k+1) = P(x(k) + size * steepest(gradient)),  x(k+1) = P(x(k) + a (z(k+1) - x(k)) + (1 - a) (x(k) - x(k-1)))

The step size begins at two radii. At a checkpoint it is halved, and the point goes back to the best one so far, if the
loss rose in too few of the steps since the last checkpoint, or if the best loss is what it was there and the size was
not halved there. Where the authors' code differs from the paper's box, this is the box: the code judges one step
earlier, and never by the second rule at the first checkpoint.
"""

import typing

import numpy as np
import tensorflow as tf

from tf_robust.attacks.gradient import BallAttack

_FIRST_SIZE = 2.0  # of the step, in radii
_SHARE = 0.75  # of the new step, against that of momentum
_RISING = 0.75  # of the steps between checkpoints that have to raise the loss for the size to stay
_FIRST_PERIOD, _SHORTENED, _LEAST_PERIOD = 22, 3, 6  # between checkpoints, in percent of the steps


def checkpoints(steps):
    """[0, w_1, w_2, ...]: the iterations after which the step size is judged: ceil(p_j * steps), each once.

    p_0 = 0, p_1 = 0.22, p_(j+1) = p_j + max(p_j - p_(j-1) - 0.03, 0.06), in whole percent since 0.41 * 100 is not 41.
    """
    shares, period = [0], _FIRST_PERIOD
    while shares[-1] + period <= 100:
        shares.append(shares[-1] + period)
        period = max(period - _SHORTENED, _LEAST_PERIOD)
    return sorted({-(-share * steps // 100) for share in shares})


class _ApgdState(typing.NamedTuple):
    """What is known of the M images that are worked on; images are [M, H, W, C], the rest [M]."""
    place: tf.Tensor  # int32, in the batch
    here: tf.Tensor
    before: tf.Tensor  # the point before `here`
    best: tf.Tensor  # the point of the highest loss
    best_gradient: tf.Tensor
    best_loss: tf.Tensor
    checked_loss: tf.Tensor  # the best one, at the last checkpoint
    last_loss: tf.Tensor  # at `before`
    size: tf.Tensor  # of the step
    rises: tf.Tensor  # float, steps that raised the loss since the last checkpoint
    halved: tf.Tensor  # bool, at the last checkpoint


class AutoProjectedGradientDescent(BallAttack):
    """APGD (Croce and Hein, 2020, section 3), from a uniform point of the ball.

    Args:
        steps: >= 1; the model is asked steps + 1 times, since the last point is judged too.
        early_stop: leave an image as it is once it is misclassified (or of the wanted class), and work on the others
            only. Of these, and of all if not, the point of the highest loss is returned.
    """

    def __init__(self, *, steps=100, early_stop=True, **kwargs):
        super().__init__(**kwargs)
        if steps < 1:
            raise ValueError(f"Expected steps >= 1 for {type(self).__name__}, the number of its steps. Received: {steps}")
        self.steps, self.early_stop = steps, early_stop

    def attacked(self, predict, images, criterion, seed, indices):
        return self.ascend(predict, images, self.start(images, seed, indices, self.radius), criterion)

    def ascend(self, predict, images, start, criterion):
        """The points found from `start`; all [N, H, W, C]."""
        periods = tf.constant(self._periods(), tf.float32)

        def step(k, state, found):
            around, aim = tf.gather(images, state.place), criterion.at(state.place)
            loss, gradient, logits = self.gradient(predict, state.here, aim)
            state = _with_best(state, loss, gradient)
            done = aim.reached(logits) if self.early_stop else tf.zeros_like(state.halved)
            found = tf.tensor_scatter_nd_update(
                found, state.place[:, None], _rows(done, state.here, state.best))
            state, gradient = _checked(state, loss, gradient, periods[k])
            state = self._moved(state, gradient, around, tf.where(k == 0, 1.0, _SHARE))
            return k + 1, _ApgdState(*(tf.boolean_mask(part, ~done) for part in state)), found
        first = self._first(start)
        shapes = _ApgdState(*(tf.TensorShape([None, *part.shape[1:]]) for part in first))
        return tf.while_loop(
            lambda k, state, found: (k <= self.steps) & (tf.size(state.place) > 0), step,
            (tf.constant(0), first, start), shape_invariants=(tf.TensorShape([]), shapes, start.shape))[2]

    def _first(self, start):
        count = tf.shape(start)[0]
        size, lowest = tf.fill([count], np.float32(_FIRST_SIZE * self.radius)), tf.fill([count], np.float32(-np.inf))
        return _ApgdState(
            place=tf.range(count), here=start, before=start, best=start, best_gradient=tf.zeros_like(start),
            best_loss=lowest, checked_loss=lowest, last_loss=-lowest, size=size, rises=tf.zeros([count]),
            halved=tf.zeros([count], tf.bool))

    def _periods(self):
        """[steps + 1]: where x(k) follows a checkpoint, the steps since the one before it (first: 0); else -1."""
        periods, judged = np.full(self.steps + 1, -1), checkpoints(self.steps)
        for last, now in zip([0, *judged], judged):
            if now < self.steps:
                periods[now + 1] = now - last
        return periods

    def _moved(self, state, gradient, around, share):
        aimed = self.inside(state.here + _column(state.size) * self.norm.steepest(gradient), around, self.radius)
        moved = state.here + share * (aimed - state.here) + (1.0 - share) * (state.here - state.before)
        return state._replace(here=self.inside(moved, around, self.radius), before=state.here)


def _with_best(state, loss, gradient):
    better = loss > state.best_loss
    return state._replace(best=_rows(better, state.here, state.best),
                          best_gradient=_rows(better, gradient, state.best_gradient),
                          best_loss=tf.maximum(loss, state.best_loss))


def _checked(state, loss, gradient, period):
    """After a checkpoint (period >= 0), halves sizes and goes back where that is due: (climb, gradient at `here`)."""
    checkpoint = period >= 0.0
    stuck = ~state.halved & (state.best_loss == state.checked_loss)
    halve = checkpoint & ((state.rises < _RISING * period) | stuck)
    loss = tf.where(halve, state.best_loss, loss)
    rose = tf.cast(loss > state.last_loss, tf.float32)  # the step that led here counts for the next checkpoint
    state = state._replace(
        here=_rows(halve, state.best, state.here), last_loss=loss,
        size=tf.where(halve, state.size / 2, state.size),
        rises=tf.where(checkpoint, 0.0, state.rises) + rose, halved=tf.where(checkpoint, halve, state.halved),
        checked_loss=tf.where(checkpoint, state.best_loss, state.checked_loss))
    return state, _rows(halve, state.best_gradient, gradient)


def _rows(mask, chosen, others):
    """Images of the one where the mask [M] says so, else of the other; a broadcast `tf.where` takes far longer."""
    return tf.raw_ops.Select(condition=mask, x=chosen, y=others)


def _column(values):
    return values[:, None, None, None]
