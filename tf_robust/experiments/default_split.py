"""The part of data without splits that a model is evaluated on unless the user chooses one."""

import dataclasses
from collections.abc import Sequence

from tf_robust import data
from tf_robust.experiments.evaluation_data import EvaluationData
from tf_robust.experiments.model_checks import is_same_data, print_note


def with_default_split(given: EvaluationData, trained_on: str, calibrated: Sequence[str] = ()) -> EvaluationData:
    """Returns data with the split to evaluate a model on: for data without splits, all images that it was not made of.

    Args:
        given: the data, with the default split.
        trained_on: data that the model was trained on, by its card; empty: not known.
        calibrated: formats whose integers are calibrated on training images.
    """
    name = given.config.data
    part_only = is_same_data(trained_on, name) or calibrated
    if given.images is None and (part_only or not data.is_unsplit(name)):
        return given
    return dataclasses.replace(given, eval_config=dataclasses.replace(given.eval_config, evaluation_split="all"))


def print_default_split(given: EvaluationData, calibrated: Sequence[str] = ()) -> None:
    """Prints which images of data without splits are evaluated.

    Args:
        given: the data that `with_default_split` returned.
        calibrated: as there.
    """
    name, split = given.config.data, given.eval_config.evaluation_split
    if split == data.UNSPLIT and given.held_out:
        print_note(f"{name} has no splits: confidences are fitted on {given.held_out:g} of its images, all others are evaluated.")
    elif split == data.UNSPLIT and given.images is None:
        print_note(f"{name} has no splits: evaluated on all of its images.")
    elif given.images is None and data.is_unsplit(name):
        reason = f"as {', '.join(calibrated)} is calibrated on the training part" if calibrated else "which the model was not trained on"
        print_note(
            f"{name} has no splits: evaluated on the {split} part, {reason}. To compare another model with it: --evaluation_split={split}."
        )
