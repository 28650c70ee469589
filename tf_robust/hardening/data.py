"""The images of a hardening search: training, validation and test images, and those of new conditions that are its target."""

import dataclasses

import numpy as np

from tf_robust import attacks, data, evaluation
from tf_robust.data import sources
from tf_robust.data.kinds import shift_data
from tf_robust.data.source import Source
from tf_robust.data.sources import Shift
from tf_robust.data.subsets import SUBSET_SEED, JoinedSource, split_train_val_test, stratified_parts, stratified_subset, without_validation
from tf_robust.evaluation.evaluation_data import EvaluationData, fraction_not_trained_on
from tf_robust.hardening.config import HardenConfig
from tf_robust.hardening.target import LabeledImages, ValidationSet
from tf_robust.saved_models.loading import Classifier
from tf_robust.utils.progress import print_note

HELD_OUT = 0.15  # fraction of data without splits, for validation and for test each
MAX_VALIDATION_IMAGES = 1000
MAX_CLEAN_IMAGES = 5000  # for the accuracy on unchanged images, which must not fall and is cheap
MIN_SHIFT_IMAGES = 20
ATTACK_STEPS = 10
SPLITS = ("train", "validation", "test")
_SEEN = (
    "The model may have been trained on any of these images, so its accuracy on unchanged images may be too high; "
    "what counts is the differences."
)


@dataclasses.dataclass(frozen=True)
class ShiftParts:
    """Images of new conditions, which are the target."""

    data: str  # name of the data set, as in `EvalConfig.shifts`
    validation: Shift
    test: Source  # for the final evaluation; its labels number its own classes
    train: int  # number of images that are trained on


@dataclasses.dataclass(frozen=True)
class Parts:
    """Images of a search: to fine-tune on, to choose on, and for the final evaluation."""

    train: Source
    validation: Source
    test: Source
    note: str  # on the initial model's own training; empty: none
    split: bool  # whether the parts were drawn from one set
    shift: ShiftParts | None  # None: the target is another

    @property
    def summary(self) -> str:
        """The numbers of images, for the terminal."""
        shift, seed = self.shift, f", split by seed {SUBSET_SEED}"
        train = len(self.train) - (shift.train if shift else 0)
        own = f"{train:,} training, {len(self.validation):,} validation and {len(self.test):,} test images{seed * self.split}."
        if not shift:
            return own
        trained = f"{shift.train:,} training, " if shift.train else ""
        return f"{own} Of {shift.data}: {trained}{len(shift.validation.source):,} validation and {len(shift.test):,} test images{seed}."


def parts_of(
    given: EvaluationData, validation: Source | None = None, test: Source | None = None, *, config: HardenConfig = HardenConfig()
) -> Parts:
    """Returns the images of a search: the splits of the data, or 70, 15 and 15 % of data without splits (or `validation_fraction`).

    Images given for validation or test are not taken from the data. Raises ValueError if a class has fewer than two training images, given
    images have other channels or classes, or there are too few images of new conditions.
    """
    no_splits = given.images is not None or not data.has_splits(given.config.data)
    split = no_splits and (validation is None or test is None)
    parts = _parts_of_one_set(given, validation, test) if no_splits else _splits(given, validation, test)
    for name, one in (("validation", validation), ("test", test)):
        if one is not None:
            parts[name] = _like(given.like_images(one), parts["train"], name, given.config.image_fit)
    _check_classes(parts)
    shift = None
    if config.shift:
        parts["train"], shift = _with_shift(parts["train"], given, shift_data(config.shift), config.adapt)
    return Parts(**parts, note=_SEEN if no_splits else "", split=split, shift=shift)


def validation_set(parts: Parts, config: HardenConfig, given: EvaluationData) -> ValidationSet:
    """Returns the images on which models are compared: at most 1,000 validation images, stratified, or as many of the new conditions.

    The accuracy on unchanged images is that of at most 5,000.
    """
    probabilities = evaluation.noise_probabilities(parts.train, given.eval_config) if config.target == "noise" else None
    attack = attacks.ProjectedGradientDescent(norm=config.attack_norm, radius=config.attack_radius, steps=ATTACK_STEPS)
    shifted = None
    if parts.shift:
        shift_images, labels = evaluation.stratified_images(parts.shift.validation.source, MAX_VALIDATION_IMAGES)
        shifted = LabeledImages(shift_images, np.take(parts.shift.validation.columns, labels), parts.shift.validation.class_mask)
    images, labels = evaluation.stratified_images(parts.validation, MAX_VALIDATION_IMAGES)
    return ValidationSet(
        images,
        labels,
        config.target,
        clean=LabeledImages(*evaluation.stratified_images(parts.validation, MAX_CLEAN_IMAGES)),
        probabilities=probabilities,
        attack=attack,
        class_mask=parts.validation.class_mask,
        shift=shifted,
    )


def final_data(parts: Parts, given: EvaluationData) -> EvaluationData:
    """Returns the data of the final evaluation: the test images, and those of the new conditions as a shifted data set."""
    config = dataclasses.replace(given.config, label_map="")  # labels are mapped
    given = dataclasses.replace(given, images=parts.test, training_images=parts.train, config=config)
    if not parts.shift:
        return given
    name = parts.shift.data
    names = given.eval_config.shifts if name in given.eval_config.shifts else (*given.eval_config.shifts, name)
    eval_config = dataclasses.replace(given.eval_config, shifts=names)
    return dataclasses.replace(given, eval_config=eval_config, shift_images={**given.shift_images, name: parts.shift.test})


def check_no_confidence(given: EvaluationData) -> None:
    """Raises ValueError if confidences are to be fitted: a search chooses the model on the validation images."""
    names = [name for name in ("calibrate", "abstain_accuracy", "conformal") if getattr(given.eval_config, name) not in ("none", 0.0)]
    if names:
        raise ValueError(
            f"{', '.join(names)} has no effect on harden, whose validation images are used to choose the model. "
            "Try: tf-robust evaluate of the hardened model, with other validation images"
        )


def fraction_held_out(
    given: EvaluationData, start: Classifier, validation: Source | None = None, test: Source | None = None
) -> float | None:
    """Returns the fraction of the data that neither the initial model nor a search is trained on; None: it is none of the usual parts."""
    if given.images is not None or validation is not None or test is not None and not data.has_splits(given.config.data):
        return None
    known = fraction_not_trained_on(start.card, given.config.data)
    held_out = given.config.validation_fraction or HELD_OUT
    return held_out if known is None else min(held_out, known)


def _parts_of_one_set(given, validation, test):
    """{split: source} of data without splits, as `open_source` divides it; what is given is not held out."""
    fraction = given.config.validation_fraction or HELD_OUT
    whole = given.source("all", mapped=False)
    if validation is None and test is None:
        parts = {split: split_train_val_test(whole, split, fraction) for split in SPLITS}
    elif validation is not None and test is not None:
        parts = {"train": whole, "validation": validation, "test": test}
    else:
        held_out = without_validation(whole, "validation", fraction)
        parts = {"train": without_validation(whole, "train", fraction)}
        parts |= {"validation": validation, "test": held_out} if test is None else {"validation": held_out, "test": test}
    if 0 < given.config.train_examples < len(parts["train"]):
        parts["train"] = stratified_subset(parts["train"], given.config.train_examples)
    parts["train"] = data.labelled_fraction(parts["train"], given.config.label_fraction, given.seed)
    own = {"validation": validation, "test": test}  # whose labels are mapped
    return {name: given.map_labels(part) if own.get(name) is None else part for name, part in parts.items()}


def _splits(given, validation, test):
    """{split: source} of data with splits; without one for validation a part of train is held out."""
    fraction = 0.0 if validation is not None else given.config.validation_fraction or HELD_OUT
    given = dataclasses.replace(given, config=dataclasses.replace(given.config, validation_fraction=fraction))
    chosen = {"validation": validation, "test": test}
    return {split: given.source(split) if chosen.get(split) is None else chosen[split] for split in SPLITS}


def _check_classes(parts):
    """Raises ValueError if a class has images, but fewer than two training images; notes classes without any."""
    train, others = parts["train"], [parts[name].read_labels() for name in ("validation", "test")]
    counts = np.bincount(train.read_labels(), minlength=train.num_classes)
    rare = [int(column) for column in np.flatnonzero(counts < 2) if counts[column] or any((labels == column).any() for labels in others)]
    if (absent := int((counts == 0).sum())) and not rare:
        print_note(f"{absent:,} of the {len(counts):,} classes of the model have no training images: fine-tuning may make it forget them.")
    if rare:
        names = ", ".join(f"{train.class_names[column]!r} ({counts[column]})" for column in rare[:5])
        raise ValueError(
            f"Expected at least two training images of each class of {train.name}. Received: fewer of {len(rare)} "
            f"class{'es' * (len(rare) > 1)}, {names}{', ...' if len(rare) > 5 else ''}. Try: add images, or leave the class out of the data"
        )


def _like(given, train, split, image_fit):
    """Images given for validation or test, with the size of the training images."""
    named = {given.class_names, train.class_names}
    numbered = tuple(map(str, range(train.num_classes))) in named
    if given.num_classes != train.num_classes or len(named) > 1 and not numbered:
        raise ValueError(
            f"Expected {split} images of the {train.num_classes} classes of {train.name}: {_first(train.class_names)}. "
            f"Received: {given.num_classes}: {_first(given.class_names)}"
        )
    if given.image_shape[2] != train.image_shape[2]:
        raise ValueError(f"Expected {split} images with {train.image_shape[2]} channels. Received: {given.image_shape[2]}")
    return given.resized(train.image_shape[:2], image_fit)


def _first(names):
    return f"{', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"


def _with_shift(train, given, name, adapt):
    """(the training images, with a third of those of the new conditions if `adapt`; the other parts of these)."""
    if name == given.config.data:
        raise ValueError(f"Expected images of new conditions as the target. Received: {name}, the data themselves")
    shift = sources.open_shift(given.config, name, train)
    if not shift.source.random_access:
        raise ValueError(f"Expected a target that can be split. Received: {name}, which is read as a stream. Try: folder:DIR")
    labels, parts = shift.source.read_labels(), 3 if adapt else 2
    counts = np.bincount(labels, minlength=shift.source.num_classes)
    rare = [f"{shift.source.class_names[i]!r} ({counts[i]})" for i in np.flatnonzero((counts > 0) & (counts < parts))]
    if rare or len(labels) < MIN_SHIFT_IMAGES:
        raise ValueError(
            f"Expected at least {MIN_SHIFT_IMAGES} images in {name}, of which {parts} or more of each class, to split them into "
            f"{'training, ' * adapt}validation and test images. Received: {len(labels)}{', of ' * bool(rare)}{_first(rare)}"
        )
    *adapted, validation, test = [shift.source.subset(positions) for positions in stratified_parts(labels, parts)]
    own = ShiftParts(name, dataclasses.replace(shift, source=validation), test, len(adapted[0]) if adapted else 0)
    return (JoinedSource.of(train, adapted[0], shift.columns) if adapted else train), own
