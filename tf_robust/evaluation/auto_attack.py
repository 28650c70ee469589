"""Robust accuracy under AutoAttack: member by member, resumable, with warnings where the result may be too high."""

import numpy as np
import tensorflow as tf

from tf_robust import attacks
from tf_robust.attacks.attack import Predict, loss_and_gradient, occurring_classes
from tf_robust.attacks.criterion import Criterion
from tf_robust.evaluation.evaluation_set import EvaluationSet, ScoreSet
from tf_robust.models.outputs import checked_logits
from tf_robust.ops import image_ops
from tf_robust.utils import progress
from tf_robust.utils.files import decoded, encoded

_CALLS = 5  # with the same images, to notice random outputs
_RANDOM = 1e-4  # relative difference of the logits of two calls
_PROBABILITIES = 1e-5  # tolerance of the range and the sum of probabilities
_STEP = 2 / 255  # along the gradient, by which the margin must change
_ROUNDING = 8 * 2.0**-24  # of float32, relative: of a sum of a few numbers
_SQUARE = 0.002  # of accuracy that Square may take away from what the attacks with gradients leave


def accuracy(attack: attacks.AutoAttack, positions: np.ndarray) -> ScoreSet:
    """Returns a function that counts the images that are classified correctly after each member of AutoAttack in turn.

    What a member leaves of a batch is stored in the `parts` of the evaluation set: an interrupted evaluation resumes there.

    Args:
        attack: with its batch size.
        positions: int [N], of the images in the data set.
    """

    def score(predict: Predict, evaluation_set: EvaluationSet) -> dict:
        batches: list[dict[str, np.ndarray]] = []
        warnings: list[str] = []
        start = 0
        for images, labels in progress.batches(evaluation_set.open().unbatch().batch(attack.batch_size), evaluation_set.name):
            images, labels = image_ops.check_images(images), labels.numpy()
            warnings = warnings if batches else model_warnings(predict, images, labels)
            indices = positions[start : start + len(images)]
            batches.append(_correct_after_members(attack, predict, images, labels, indices, evaluation_set))
            start += len(images)
        if not batches:
            raise ValueError(f"Expected images to evaluate {evaluation_set.name!r} on. Received: none")
        correct = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
        counts = {name: int(values.sum()) for name, values in correct.items()}
        return {
            "kind": "accuracy",
            "count": start,
            "correct": counts["square"],
            "which": encoded(np.packbits(correct["square"])),
            "correct_after": counts,
            "warnings": warnings + square_warnings(counts, start),
        }

    return score


def _correct_after_members(attack, predict, images, labels, indices, evaluation_set):
    """Returns {"clean" or member: bool [B]}: whether the images are still classified correctly after it and those before it."""
    logits = checked_logits(predict(tf.constant(images)), labels, repr(evaluation_set.name))
    correct = logits.argmax(axis=1) == labels
    after, parts = {"clean": correct}, evaluation_set.parts
    for name, member in attack.members(len(occurring_classes(logits))).items():
        part, active = f"{name}/{indices[0]}", np.flatnonzero(correct)
        correct = correct.copy()
        if part in parts:
            correct &= np.unpackbits(decoded(parts[part], np.uint8), count=len(labels)).astype(bool)
        elif len(active):
            attacked = member(predict, images[active], labels[active], indices=indices[active])
            scores = checked_logits(predict(attacked), labels[active], repr(evaluation_set.name))
            correct[active] = scores.argmax(axis=1) == labels[active]
            parts[part] = encoded(np.packbits(correct))
        after[name] = correct
    return after


def model_warnings(predict: Predict, images: np.ndarray, labels: np.ndarray) -> list[str]:
    """Returns a message for each property of a model that makes AutoAttack unreliable, as RobustBench warns of them.

    Args:
        predict: images -> logits.
        images: float32 [N, H, W, C], of which a sign is sought.
        labels: int [N].

    Raises:
        ValueError: no gradient flows through the model.
    """
    images = tf.constant(images)
    calls = [np.asarray(predict(images)) for _ in range(_CALLS)]
    correct = calls[0].argmax(axis=1) == labels
    found = [_random_message(calls), _probabilities_message(calls[0])]
    if correct.any():
        criterion = Criterion(tf.constant(labels[correct], tf.int64))
        margins, gradients, _ = loss_and_gradient(predict, tf.boolean_mask(images, correct), criterion.margin)
        # a step along the gradient changes nothing beyond rounding, of which the gradient of a saturated softmax may consist
        moved = tf.clip_by_value(tf.boolean_mask(images, correct) + _STEP * tf.sign(gradients), 0.0, 1.0)
        changes = np.abs(criterion.margin(tf.convert_to_tensor(predict(moved))) - margins)
        vanishing = int((changes <= _ROUNDING * np.abs(margins)).sum())
        message = f"The gradient vanishes for {vanishing} of {correct.sum()} images: attacks with gradients cannot find a direction."
        found.append(message if vanishing else "")
    return [message for message in found if message]


def _random_message(calls):
    finite = [np.where(np.isfinite(logits), logits, 0.0) for logits in calls]  # classes that are masked out are -infinity
    scaled = [logits / (np.linalg.norm(logits, axis=1, keepdims=True) + 1e-10) for logits in finite]
    largest = max(np.linalg.norm(one - scaled[0], axis=1).max() for one in scaled)
    if largest <= _RANDOM:
        return ""
    return (
        f"The outputs for the same images differ between calls (by {largest:.2g} of their size): the model draws random numbers, and an "
        "attack that averages over them may be stronger."
    )


def _probabilities_message(logits):
    inside = (logits > -_PROBABILITIES).all() and (logits < 1 + _PROBABILITIES).all()
    if not inside or (np.abs(logits.sum(axis=1) - 1) > _PROBABILITIES).any():
        return ""
    return (
        "The outputs look like probabilities, not logits: their gradients vanish where the model is confident. Try: outputs=probabilities"
    )


def square_warnings(counts: dict[str, int], total: int) -> list[str]:
    """Returns a message if Square takes away more than 0.002 of the accuracy that the attacks with gradients leave.

    Args:
        counts: {member: number of images that are classified correctly after it}.
        total: number of images.
    """
    taken = (counts["fab_t"] - counts["square"]) / total
    if taken <= _SQUARE:
        return []
    return [
        f"Square, which uses no gradients, takes away another {taken:.3f} of accuracy: gradients may be masked, and a stronger or adapted "
        "attack may find more."
    ]
