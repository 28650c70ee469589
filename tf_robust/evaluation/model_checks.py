"""Checks that a loaded model suits the data it is evaluated on; possible mismatches are printed as notes."""

import dataclasses
import filecmp
import itertools
import os
import typing
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from tf_robust import data, evaluation
from tf_robust.configs import DataConfig
from tf_robust.data.class_mask import IMAGENET_CLASSES
from tf_robust.data.source import Source
from tf_robust.data.subsets import stratified_order
from tf_robust.saved_models import input_check
from tf_robust.saved_models.interface import declared_range, trainings
from tf_robust.saved_models.loading import Classifier
from tf_robust.utils.progress import print_note

CHECKED_IMAGES, IMAGES_PER_CLASS, MAX_IMAGES = 300, 10, 1000
IMAGES_FOR_OUTPUTS = 50
_CLASSES_OF_FOLDERS = "label_map=FILE maps class folders to columns of the logits, label_set=imagenet_r those of ImageNet-R"
_CLASSES_OF_LABELS = "a model of these classes, or labels that are columns of its scores"


def with_output_check(predict: Classifier) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a classifier that prints a note, once, if its outputs do not look like the declared kind."""
    notes: set[str] = set()

    def predict_and_check(images):
        logits = predict(images)
        note = "" if notes or not tf.executing_eagerly() else predict.check(logits)
        if note:
            notes.add(note)
            print(f"  Note: {note}", flush=True)
        return logits

    return predict_and_check


def with_label_set_of_card(predict: Classifier, source: Source) -> Source:
    """Returns a source with the label set that the model's card declares, if the source declares none and has as many classes."""
    label_set = predict.card.get("label_set")
    if label_set != "imagenet" or source.label_set or source.label_columns or source.num_classes != IMAGENET_CLASSES:
        return source
    print(f"  Note: label_set=imagenet, from the card of {predict.path}.", flush=True)
    return data.declared(source, label_set)


def with_validation_of_card(card: Mapping[str, typing.Any], path: str, config: DataConfig) -> DataConfig:
    """Returns a configuration whose validation (and, of data without splits, test) images a model was not trained on, by its card.

    A `validation_fraction` of 0 becomes that of the training, which is printed. Models of other data, without such a card, or of data with
    a validation split of their own are not concerned.

    Args:
        card: of the model.
        path: of the model, for messages.
        config: names the data.

    Raises:
        ValueError: the model was trained on some of these images.
    """
    held_out = fraction_not_trained_on(card, config.data)
    if held_out is None or data.has_splits(config.data) and data.has_validation(config.data, config.data_dir or None):
        return config
    if not held_out:
        raise ValueError(
            f"Expected validation images of {config.data} that {path} was not trained on. Received: a model that was trained on "
            "all training images (validation_fraction=0 in its card). Try: other data, or train it with validation_fraction=0.1"
        )
    check_unchanged(card, path, config)
    if config.validation_fraction > held_out:
        raise ValueError(
            f"Expected validation_fraction <= {held_out:g}, that of the training of {path}, which was trained on the other "
            f"images. Received: {config.validation_fraction:g}. Try: leave out validation_fraction"
        )
    if config.validation_fraction:
        return config
    print_note(f"validation_fraction={held_out:g}, from the card of {path}: images that it was not trained on.")
    return dataclasses.replace(config, validation_fraction=held_out)


def check_unchanged(card: Mapping[str, typing.Any], path: str, config: DataConfig) -> None:
    """Checks that data without splits have the images of a model's training, by its card: otherwise their splits are others.

    Args:
        card: of the model.
        path: of the model, for messages.
        config: names the data.

    Raises:
        ValueError: they have changed.
    """
    described = [one["division"] for one in trainings_on(card, config.data) if isinstance(one.get("division"), dict)]
    if not described or data.has_splits(config.data):
        return
    now = data.describe_division(config.data, data_range=config.data_range)
    changed = [one for one in described if one != now]
    if changed:
        before = changed[0]
        count = f"{now['images']} instead of {before.get('images')}" if now["images"] != before.get("images") else "with other labels"
        raise ValueError(
            f"Expected the images of {config.data} with which {path} was trained: of changed images, it is not known which ones it was "
            f"trained on. Received: images that have changed since ({count}). Try: keep new images in a folder or file of their own"
        )


def fraction_not_trained_on(card: Mapping[str, typing.Any], name: str) -> float | None:
    """Returns the fraction of a data set that was held out in the training of a model, by its card; None: other data, or not known."""
    fractions = [one.get("validation_fraction") for one in trainings_on(card, name)]
    return min((data.held_out_fraction(name, fraction) for fraction in fractions if fraction is not None), default=None)


def trainings_on(card: Mapping[str, typing.Any], name: str) -> list[dict[str, typing.Any]]:
    """Returns the trainings of a model on a data set, as `saved_models.interface.trainings`."""
    return [one for one in trainings(card) if is_same_data(one["data"], name)]


def is_same_data(name: str, other: str) -> bool:
    """Returns whether two names are those of one data set: of files, paths that end alike, if both exist with the same content."""
    paths = [one.partition(":")[2] if data.kind_of(one).has_path else "" for one in (name, other)]
    if not all(paths):
        return not any(paths) and name.partition(":")[0] == other.partition(":")[0]
    first, second = (os.path.normpath(os.path.expanduser(path)) for path in paths)
    if os.path.basename(first) != os.path.basename(second):
        return False
    return not (os.path.exists(first) and os.path.exists(second)) or _have_same_content(first, second)


def _have_same_content(first, second):
    """Whether two files, or the names and sizes of the files in two folders, are the same."""
    if os.path.samefile(first, second):
        return True
    if os.path.isfile(first) and os.path.isfile(second):
        return filecmp.cmp(first, second, shallow=False)
    return os.path.isdir(first) and os.path.isdir(second) and _sizes(first) == _sizes(second)


def _sizes(folder):
    """{path within a folder: size in bytes} of its files."""
    paths = (os.path.join(place, file) for place, _, files in os.walk(folder) for file in files)
    return {os.path.relpath(path, folder): os.path.getsize(path) for path in paths}


def _in_folders(source):
    return data.kind_of(source.name).class_folders


def check_model_suits(predict: Classifier, source: Source) -> None:
    """Checks that a model takes the images of a source and has its classes; class names that its card does not have are only noted.

    Raises:
        ValueError: another image shape or number of classes, or another order of the classes than in the card.
    """
    predict.check_images_match(source.image_shape)
    if predict.num_classes:
        _check_classes(predict, source, predict.num_classes)
    names = predict.card.get("classes")  # cards of other programs may have any type
    if names and isinstance(names, list) and not source.label_columns and names != list(source.class_names):
        _check_order_of_card(predict.path, names, source)
        differing = [pair for pair in itertools.zip_longest(names, source.class_names) if pair[0] != pair[1]]
        print(
            f"  Note: the class names of the model and of {source.name} differ: {len(differing)} differ, the first "
            f"{differing[0][0]!r} and {differing[0][1]!r}.",
            flush=True,
        )


def _check_order_of_card(path, names, source):
    columns = {name: column for column, name in enumerate(names) if isinstance(name, str)}
    for column, name in enumerate(source.class_names):
        if columns.get(name, column) != column:
            raise ValueError(
                f"Expected the class {name!r} in column {columns[name]}, as the card of {path} says. Received: column {column} in "
                f"{source.name}. Try: a label_map with the columns of the card, or none"
            )


def note_classes(source: Source, num_classes: int) -> None:
    """Prints a note if only some of a model's classes compete, or if the data have mapped labels of only some of them.

    Args:
        source: images to evaluate on.
        num_classes: of the model.
    """
    if source.class_mask and len(source.class_mask) < num_classes:
        count = f"{len(source.class_mask):,} of the model's {num_classes:,} classes"
        print_note(f"only {count} compete in {source.name}: the other outputs are ignored.")
    elif source.label_columns and len(source.label_columns) < num_classes:
        print_note(
            f"{source.name} has {len(source.label_columns):,} of the model's {num_classes:,} classes, and all of these compete. "
            "classes=present ignores the others."
        )


def check_columns(predict: Classifier, source: Source) -> None:
    """Checks the number of classes of a model that shows it only in its predictions, if the source has class names.

    Names are numbered by those that occur, so that a class without images would shift the others.

    Args:
        predict: the model, which returns logits.
        source: of images that suit it.

    Raises:
        ValueError: another number of classes.
    """
    if not predict.num_classes and source.class_names != tuple(map(str, range(source.num_classes))):
        _check_classes(predict, source, predict(evaluation.first_images(source, 1)[0]).shape[1])


def _check_classes(predict, source, num_classes):
    if source.has_columns_of(num_classes):
        return
    of_one = ", as it has one output" if predict.has_one_output else ""
    unmapped = _in_folders(source) and not source.label_columns
    absent = np.setdiff1d(np.arange(source.num_classes), source.complete.read_labels()) if unmapped else np.array([], int)
    empty = f"delete class folders without images, such as {source.class_names[absent[0]]!r}; " if absent.size else ""
    raise ValueError(
        f"Expected a model for the {source.num_classes} classes of {source.name}. Received: {predict.path} with "
        f"{num_classes} classes{of_one}. Try: {empty}{_CLASSES_OF_FOLDERS if _in_folders(source) else _CLASSES_OF_LABELS}"
    )


def with_known_outputs(predict: Classifier, source: Source) -> Classifier:
    """Returns a model with logits or probabilities for `outputs="auto"`, inferred from its outputs on the first images of a source, and
    checked by `with_checked_batches`."""
    images = evaluation.first_images(source, IMAGES_FOR_OUTPUTS)[0]
    known = with_checked_batches(predict.with_known_outputs(images), images)
    if known.has_one_output:
        second = f" {source.class_names[1]!r}" if len(source.class_names) == 2 else ""
        kind = "probability" if known.interface.outputs == "probabilities" else "logit"
        print_note(
            f"{known.path} has one output, which is read as the {kind} of the second class{second} (outputs={known.interface.outputs})."
        )
    elif predict.interface.outputs == "auto" and known.interface.outputs == "probabilities":
        print("  Note: outputs=probabilities: the sums over the classes are 1.", flush=True)
    return known


def with_checked_batches(predict: Classifier, images: np.ndarray) -> Classifier:
    """Returns a model with `batch_dependence`, and prints a note if its outputs depend on the other images of a batch.

    Args:
        predict: the model.
        images: float32 [N, H, W, C] in [0, 1], of which the first are compared.
    """
    predict.batch_dependence = input_check.batch_dependence(predict, images)
    if note := input_check.note_on_batches(predict):
        print_note(note)
    return predict


def with_checked_inputs(predict: Classifier, source: Source) -> Classifier:
    """Checks the pixel scale and the class order of a model that this package did not export; see `input_check`.

    Args:
        predict: the model.
        source: labelled images, which suit the model.

    Returns:
        The model, with the pixel scale that fits best in place of `input_range="auto"`.

    Raises:
        ValueError: another pixel scale or order of the classes clearly fits better; "auto" without the check.
    """
    if unchecked := _unchecked(predict):
        return unchecked
    count = min(max(CHECKED_IMAGES, IMAGES_PER_CLASS * source.num_classes), MAX_IMAGES)
    if source.random_access:  # which may be sorted by class, as arrays often are
        source = source.subset(stratified_order(np.asarray(source.labels))[:count])
    images, labels = evaluation.first_images(source, count)
    checked = with_fitting_range(predict, images, labels)
    logits = input_check.logits_of(checked, images)
    if not source.label_columns and not source.class_mask:
        input_check.check_class_order(logits, labels, source.class_names, _in_folders(source))
    note = input_check.note_on_chance(checked, logits, images, labels, source.class_names)
    if note:
        print_note(note)
    return checked


def with_fitting_range(predict: Classifier, images: np.ndarray, labels: np.ndarray) -> Classifier:
    """Checks the pixel scale of a model that this package did not export.

    Args:
        predict: the model.
        images: float32 [N, H, W, C] in [0, 1].
        labels: int [N], columns of the logits.

    Returns:
        The model, with the pixel scale that fits best in place of `input_range="auto"`.

    Raises:
        ValueError: another pixel scale clearly fits better; "auto" without the check.
    """
    if unchecked := _unchecked(predict):
        return unchecked
    checked = input_check.with_fitting_range(predict, images[:CHECKED_IMAGES], labels[:CHECKED_IMAGES], print_note)
    if predict.interface.input_range == "auto":
        print_note(f"input_range={checked.interface.input_range} fits {predict.path} best.")
    return checked


def _unchecked(predict):
    """A model whose pixel scale is known or not to be checked; None for others."""
    if declared_range(predict.card):
        return predict
    if predict.interface.check_inputs:
        return None
    if predict.interface.input_range == "auto":
        raise ValueError("Expected an input_range with check_inputs=false. Received: auto. Try: check_inputs")
    return predict


def with_possible_attacks(eval_config: evaluation.EvalConfig, predict: Classifier, source: Source) -> evaluation.EvalConfig:
    """Returns an evaluation whose attacks the model permits: if it has no gradients, Square alone in place of AutoAttack, and none of the
    smoothed model.

    Raises:
        ValueError: it has no gradients, and other attacks or attack curves were chosen.
    """
    chosen = {*eval_config.evaluations}
    if not chosen & {"adversarial", "attack_curves", "certified"} or predict.has_gradients(source.image_shape):
        return eval_config
    _check_attacks(eval_config, predict)
    if "certified" in chosen and eval_config.smoothing_attack:
        print_note(f"{_without_gradients(predict)}: it is certified, but not attacked (smoothing_attack=false).")
        eval_config = dataclasses.replace(eval_config, smoothing_attack=False)
    if "adversarial" not in chosen or eval_config.attack == ("square",):
        return eval_config
    transferred = f", and by attacks transferred from {eval_config.surrogate}" if eval_config.surrogate else ""
    print_note(f"{_without_gradients(predict)}: it is attacked by Square alone (attack=square){transferred}.")
    return dataclasses.replace(eval_config, attack=("square",))


def _without_gradients(predict):
    cause = ", as its input is uint8" if predict.takes_uint8 else ""
    return f"{predict.path} has no gradients{cause}"


def _check_attacks(eval_config, predict):
    """Raises ValueError for attacks that a model without gradients does not permit; AutoAttack alone is replaced by its last member."""
    needs = [f"attack={name}" for name in eval_config.attack if name != "square"] if eval_config.attack != ("autoattack",) else []
    needs = needs if "adversarial" in eval_config.evaluations else []
    needs += ["evaluations=attack_curves"] if "attack_curves" in eval_config.evaluations else []
    if needs:
        raise ValueError(
            f"Expected a model with gradients for {', '.join(needs)}. Received: {predict.path}, {predict.why_no_gradients()}; "
            "or attack=square, which needs none, and no attack_curves"
        )
