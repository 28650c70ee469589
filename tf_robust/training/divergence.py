"""Divergence of a training: numbers that are not finite, found by the checks inside a step."""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tf_robust.attacks.attack import NOT_FINITE

Method = Any  # a `methods.base.Method`, which this package does not import


class TrainingDiverged(RuntimeError):
    """A loss term, the gradient, or the logits under an attack of the method are not finite."""


@contextlib.contextmanager
def named(method: Method, kept: str = "earlier checkpoints are kept") -> Iterator[None]:
    """Context in which the checks of a method's steps raise `TrainingDiverged`; other errors are raised as they are.

    Args:
        method: the method that is trained.
        kept: what remains of the training, for the message.

    Raises:
        TrainingDiverged: a check failed; the message names what is not finite, and the step.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        cause = _cause(error.message)
        if cause is None:
            raise
        step = int(method.optimizer.iterations.numpy())
        raise TrainingDiverged(
            f"Not finite at step {step}: {cause}. Training stopped; {kept}. Try: a lower learning rate or weight of the term."
        ) from error


def _cause(message):
    """Returns what is not finite according to the message of a failed check; None: the message is of another error."""
    for line in message.split("\n"):
        if "Tensor had" in line:  # of tf.debugging.check_numerics
            tensor, *_, values = line.split(" : ")
            return f"{tensor.strip()} ({values.strip()})"
    return f"{NOT_FINITE} (NaN or infinity)" if NOT_FINITE in message else None
