"""Optimizers and learning-rate schedules of the papers, built on those of Keras."""

from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from tf_robust.utils.errors import unknown

OPTIMIZERS = ("adam", "sgd", "lars")
SCHEDULES = ("constant", "exponential", "steps", "cosine")


def updating(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Returns the optimizer that updates the weights: the inner one of a `LossScaleOptimizer`, which has its options."""
    return getattr(optimizer, "inner_optimizer", optimizer)


class LARS(keras.optimizers.SGD):
    """Layer-wise adaptive rate scaling (You et al., 2017), as in SimCLR: SGD with momentum on scaled gradients.

    A kernel's gradient g is scaled by trust * |w| / |g|, where it and the kernel w are nonzero. Biases, batch norm and the kernels of
    `exclude_from_scaling` take plain steps; a method excludes the layer of the logits, SimCLR's linear monitor.

    Args:
        learning_rate: a number or a schedule.
        momentum: of the steps.
        trust: coefficient of the ratio.
        name: of the optimizer.
        **kwargs: of `keras.optimizers.SGD`.
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule,
        momentum: float = 0.9,
        trust: float = 0.001,
        name: str = "lars",
        **kwargs,
    ):
        super().__init__(learning_rate, momentum=momentum, name=name, **kwargs)
        self.trust, self._excluded = trust, frozenset[int]()

    def build(self, variables: Sequence[keras.Variable]) -> None:
        super().build(variables)
        self._scaled = self._which_are_scaled(variables)

    def exclude_from_scaling(self, variables: Sequence[keras.Variable]) -> None:
        """Sets the variables that take plain steps, besides those of rank 0 or 1."""
        self._excluded = frozenset(id(v) for v in variables)
        if self.built:
            self._scaled = self._which_are_scaled(self._trainable_variables)

    def _which_are_scaled(self, variables):
        return [len(v.shape) > 1 and id(v) not in self._excluded for v in variables]

    def update_step(self, gradient: tf.Tensor, variable: keras.Variable, learning_rate: tf.Tensor) -> None:
        gradient = tf.convert_to_tensor(gradient)
        if self._scaled[self._get_variable_index(variable)]:
            lengths = tf.norm(tf.convert_to_tensor(variable)), tf.norm(gradient)
            nonzero = (lengths[0] > 0) & (lengths[1] > 0)
            gradient *= tf.where(nonzero, self.trust * tf.math.divide_no_nan(*lengths), 1.0)
        super().update_step(gradient, variable, learning_rate)

    def get_config(self) -> dict:
        return {**super().get_config(), "trust": self.trust}


class Warmup(keras.optimizers.schedules.LearningRateSchedule):
    """A linear ramp from 0 over the first steps, times another schedule.

    Args:
        schedule: the schedule to ramp up.
        steps: at step s < steps the rate is multiplied by (s + 1) / steps.
    """

    def __init__(self, schedule: keras.optimizers.schedules.LearningRateSchedule, steps: int):
        self.schedule, self.steps = schedule, steps

    def __call__(self, step: tf.Tensor | int) -> tf.Tensor:
        ramp = (tf.cast(step, tf.float32) + 1.0) / self.steps
        return self.schedule(step) * tf.minimum(ramp, 1.0)

    def get_config(self) -> dict:
        return {"schedule": self.schedule, "steps": self.steps}


def learning_rate_schedule(
    kind: str,
    peak: float,
    *,
    steps_per_epoch: int,
    epochs: int,
    warmup_epochs: float = 0.0,
    decay_rate: float = 0.89,
    decay_epochs: Sequence[float] = (),
    decay_factor: float = 0.1,
) -> keras.optimizers.schedules.LearningRateSchedule:
    """Returns the learning rate as a function of the global step.

    Args:
        kind: `constant`; `exponential`: times `decay_rate` after each epoch; `steps`: times `decay_factor` at each of
            `decay_epochs`; `cosine`: to 0 at the end, by step.
        peak: the rate at the start (after the warm-up), > 0.
        steps_per_epoch: number of steps in an epoch.
        epochs: number of epochs of the training run.
        warmup_epochs: linear ramp from 0 at the beginning; the schedule itself counts from step 0.
        decay_rate: > 0, of `exponential`.
        decay_epochs: > 0 and increasing, of `steps`.
        decay_factor: > 0, of `steps`.

    Raises:
        ValueError: an unknown kind, or an argument outside its range.
    """
    if kind not in SCHEDULES:
        raise unknown("schedule", kind, SCHEDULES)
    if not peak > 0:
        raise ValueError(f"Expected learning_rate > 0. Received: {peak}")
    if not warmup_epochs >= 0:
        raise ValueError(f"Expected learning_rate_warmup_epochs >= 0. Received: {warmup_epochs}")
    if kind == "steps" and (not decay_epochs or list(decay_epochs) != sorted(set(decay_epochs)) or decay_epochs[0] <= 0):
        raise ValueError(f"Expected decay_epochs > 0, in increasing order. Received: {decay_epochs}")
    for name, value in (("decay_rate", decay_rate), ("decay_factor", decay_factor)):
        if not value > 0:
            raise ValueError(f"Expected {name} > 0. Received: {value}")
    schedules = keras.optimizers.schedules
    builders: dict[str, Callable[[], keras.optimizers.schedules.LearningRateSchedule]] = {
        "constant": lambda: schedules.ExponentialDecay(peak, 1, 1.0),
        "exponential": lambda: schedules.ExponentialDecay(peak, steps_per_epoch, decay_rate, staircase=True),
        "steps": lambda: schedules.PiecewiseConstantDecay(
            [round(e * steps_per_epoch) - 1 for e in decay_epochs],  # Keras' boundaries are inclusive
            [peak * decay_factor**i for i in range(len(decay_epochs) + 1)],
        ),
        "cosine": lambda: schedules.CosineDecay(peak, steps_per_epoch * epochs),
    }
    schedule = builders[kind]()
    warmup_steps = round(warmup_epochs * steps_per_epoch)
    return Warmup(schedule, warmup_steps) if warmup_steps else schedule


def build(
    name: str,
    schedule: float | keras.optimizers.schedules.LearningRateSchedule,
    *,
    momentum: float = 0.9,
    nesterov: bool = False,
    ema: float = 0.0,
    global_clipnorm: float = 0.0,
) -> keras.optimizers.Optimizer:
    """Returns a Keras optimizer.

    Args:
        name: `adam`, `sgd` or `lars`.
        schedule: the learning rate, a number or a schedule.
        momentum: in [0, 1), of `sgd` and `lars`.
        nesterov: use Nesterov momentum, in `sgd` and `lars`.
        ema: momentum of the moving average of the weights; 0: no average.
        global_clipnorm: largest norm of the gradient, of all variables together; 0: not limited.

    Raises:
        ValueError: an unknown name, or a number outside its range.
    """
    for option, value in (("momentum", momentum), ("ema", ema)):
        if not 0 <= value < 1:
            raise ValueError(f"Expected {option} in [0, 1). Received: {value}")
    if not global_clipnorm >= 0:
        raise ValueError(f"Expected global_clipnorm >= 0. Received: {global_clipnorm}")
    options = {"use_ema": bool(ema), "ema_momentum": ema or 0.99, "global_clipnorm": global_clipnorm or None}
    if name == "adam":
        return keras.optimizers.Adam(schedule, **options)
    if name in ("sgd", "lars"):
        return {"sgd": keras.optimizers.SGD, "lars": LARS}[name](schedule, momentum=momentum, nesterov=nesterov, **options)
    raise unknown("optimizer", name, OPTIMIZERS)
