"""Checks that a loaded model, or a surrogate, suits the data it is evaluated on; possible mismatches are printed as notes."""

import dataclasses
import itertools
import os
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from tf_robust import attacks, data, evaluation
from tf_robust.data.class_mask import IMAGENET_CLASSES
from tf_robust.data.source import Source
from tf_robust.data.subsets import stratified_order
from tf_robust.saved_models import input_check, loading
from tf_robust.saved_models.interface import declared_range
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


def _in_folders(source):
    return data.kind_of(source.name).class_folders


def check_model_suits(predict: Classifier, source: Source) -> None:
    """Checks that a model takes the images of a source and has its classes, in the order of its card; other class names are only noted."""
    predict.check_images_match(source.image_shape)
    if predict.num_classes:
        _check_classes(predict, source, predict.num_classes)
    names = predict.card.get("classes")  # cards of other programs may have any type
    if names and isinstance(names, list) and not source.label_columns and names != list(source.class_names):
        columns = {name: column for column, name in enumerate(names) if isinstance(name, str)}
        for column, name in enumerate(source.class_names):
            if columns.get(name, column) != column:
                raise ValueError(
                    f"Expected the class {name!r} in column {columns[name]}, as the card of {predict.path} says. Received: column {column} "
                    f"in {source.name}. Try: a label_map with the columns of the card, or none"
                )
        differing = [pair for pair in itertools.zip_longest(names, source.class_names) if pair[0] != pair[1]]
        print(
            f"  Note: the class names of the model and of {source.name} differ: {len(differing)} differ, the first "
            f"{differing[0][0]!r} and {differing[0][1]!r}.",
            flush=True,
        )


def note_classes(source: Source, num_classes: int) -> None:
    """Prints a note if only some of a model's classes compete, or if the data have mapped labels of only some of them."""
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
    """Returns a model with logits or probabilities for `outputs="auto"`, by its outputs on the first images; see `with_checked_batches`."""
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

    Compared are the first of some images, float32 [N, H, W, C] in [0, 1].
    """
    predict.batch_dependence = input_check.batch_dependence(predict, images)
    if note := input_check.note_on_batches(predict):
        print_note(note)
    return predict


def with_checked_inputs(predict: Classifier, source: Source) -> Classifier:
    """Checks the pixel scale and the class order of a model that this package did not export; see `input_check`.

    Returns the model, with the pixel scale that fits best in place of `input_range="auto"`. ValueError: another pixel scale or order of the
    classes clearly fits better; "auto" without the check.
    """
    if unchecked := _unchecked(predict):
        return unchecked
    count = min(max(CHECKED_IMAGES, IMAGES_PER_CLASS * source.num_classes), MAX_IMAGES)
    if source.random_access:  # which may be sorted by class, as arrays often are
        source = source.subset(stratified_order(np.asarray(source.labels))[:count])
    images, labels = evaluation.first_images(source, count)
    checked = with_fitting_range(predict, images, labels)
    logits = input_check.in_batches(checked, images)
    if not source.label_columns and not source.class_mask:
        input_check.check_class_order(logits, labels, source.class_names, _in_folders(source))
    note = input_check.note_on_chance(checked, logits, images, labels, source.class_names)
    if note:
        print_note(note)
    return checked


def with_fitting_range(predict: Classifier, images: np.ndarray, labels: np.ndarray) -> Classifier:
    """Checks the pixel scale of a model as `with_checked_inputs`, on images, float32 [N, H, W, C] in [0, 1], and labels, int [N]."""
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
    """Returns an evaluation whose attacks the model permits: without gradients Square in place of AutoAttack, none of the smoothed model.

    Other attacks and attack curves raise ValueError for a model without gradients.
    """
    chosen = {*eval_config.evaluations}
    if not chosen & {"adversarial", "attack_curves", "certified"} or predict.has_gradients(source.image_shape):
        return eval_config
    needs = ["evaluations=attack_curves"] if "attack_curves" in chosen else []
    if "adversarial" in chosen and eval_config.attack != ("autoattack",):
        by_gradient = [
            name for name in eval_config.attack if name != "square" and attacks.ATTACKS[name].__module__.startswith("tf_robust.")
        ]
        needs = [*(f"attack={name}" for name in by_gradient), *needs]
    if needs:
        raise ValueError(
            f"Expected a model with gradients for {', '.join(needs)}. Received: {predict.path}, {predict.why_no_gradients()}; "
            "or attack=square, which needs none, and no attack_curves"
        )
    without_gradients = f"{predict.path} has no gradients{', as its input is uint8' if predict.takes_uint8 else ''}"
    if "certified" in chosen and eval_config.smoothing_attack:
        print_note(f"{without_gradients}: it is certified, but not attacked (smoothing_attack=false).")
        eval_config = dataclasses.replace(eval_config, smoothing_attack=False)
    if "adversarial" not in chosen or "autoattack" not in eval_config.attack:
        return eval_config
    transferred = f", and by attacks transferred from {eval_config.surrogate}" if eval_config.surrogate else ""
    print_note(f"{without_gradients}: it is attacked by Square alone (attack=square){transferred}.")
    return dataclasses.replace(eval_config, attack=("square",))


def load_surrogate(model: Classifier | str | os.PathLike | keras.Model | Callable, source: Source, trust: bool = False) -> Classifier:
    """Returns a surrogate, a differentiable model on which attacks are computed that another model is then evaluated on.

    Its interface is found, unless it is known: probabilities are recognized by their sums, the pixel scale is that of its card or the one
    with which it classifies most images correctly, and images are resized to its input size in front of it. `trust`: run the Python code
    in a Keras file.
    """
    if isinstance(model, Classifier):
        surrogate = model
    else:
        load: Callable = loading.load_classifier if isinstance(model, (str, os.PathLike)) else loading.classifier_of
        interface = loading.ModelInterface(input_range="auto", trust=trust)
        size = loading.image_size_of(load(model, interface))
        if size and size != tuple(source.image_shape[:2]) and size[0] == size[1]:
            interface = dataclasses.replace(interface, input_size=size[0])
        surrogate = load(model, interface)
    surrogate.check_images_match(source.image_shape)
    if surrogate.num_classes and not source.has_columns_of(surrogate.num_classes):
        raise ValueError(
            f"Expected a surrogate with the {source.num_classes} classes of {source.name}. Received: {surrogate.path} with "
            f"{surrogate.num_classes} classes"
        )
    if not surrogate.has_gradients(source.image_shape):
        raise ValueError(f"Expected a surrogate with gradients. Received: {surrogate.path}, {surrogate.why_no_gradients()}")
    images, labels = evaluation.first_images(source, IMAGES_FOR_OUTPUTS)
    scaled = with_checked_inputs(with_checked_batches(surrogate.with_known_outputs(images), images), source)
    accuracy = float((scaled(images).numpy().argmax(axis=1) == labels).mean())
    print_note(
        f"attacks are transferred from {scaled.path} (input_range={scaled.interface.input_range}, outputs={scaled.interface.outputs}), "
        f"which classifies {accuracy:.0%} of {len(labels)} images correctly."
    )
    return scaled
