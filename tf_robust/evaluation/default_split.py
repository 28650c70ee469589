"""The part of data without splits that a model is evaluated on unless the user chooses one."""

import dataclasses
import typing
from collections.abc import Mapping, Sequence

from tf_robust import data
from tf_robust.evaluation.evaluation_data import EvaluationData
from tf_robust.evaluation.model_checks import trainings_on
from tf_robust.utils.progress import print_note


def with_default_split(given: EvaluationData, card: Mapping[str, typing.Any], calibrated: Sequence[str] = ()) -> EvaluationData:
    """Returns data with the split to evaluate a model on: for data without splits, all images that it was not made of.

    Args:
        given: the data, with the default split.
        card: of the model; names the data that it was trained on.
        calibrated: formats whose integers are calibrated on training images.
    """
    name = given.config.data
    trained = trainings_on(card, name) if given.images is None else []
    if any(_is_unknown(one) for one in trained) and not data.has_splits(name):
        print_note(
            f"the model was trained on images of {name} that are not those of a split: its accuracies on them may be too high. "
            "Try: other images, such as the test images of that training"
        )
        trained = []
    part_only = trained or calibrated
    if given.images is None and (part_only or data.has_splits(name)):
        return given
    return dataclasses.replace(given, eval_config=dataclasses.replace(given.eval_config, evaluation_split="all"))


def _is_unknown(training):
    return training.get("validation_fraction", 0.0) is None


def print_default_split(given: EvaluationData, calibrated: Sequence[str] = ()) -> None:
    """Prints which images of data without splits are evaluated.

    Args:
        given: the data that `with_default_split` returned.
        calibrated: as there.
    """
    name, split = given.config.data, given.eval_config.evaluation_split
    if split == data.WHOLE and given.held_out:
        print_note(f"{name} has no splits: confidences are fitted on {given.held_out:g} of its images, all others are evaluated.")
    elif split == data.WHOLE and given.images is None:
        print_note(f"{name} has no splits: evaluated on all of its images.")
    elif given.images is None and not data.has_splits(name):
        reason = f"as {', '.join(calibrated)} is calibrated on the training part" if calibrated else "which the model was not trained on"
        print_note(
            f"{name} has no splits: evaluated on the {split} part, {reason}. To compare another model with it: evaluation_split={split}."
        )
