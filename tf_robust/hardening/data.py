"""The images of a hardening search: training, validation and test images, and its target's images under new conditions."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from tf_robust import attacks, data, evaluation, metrics
from tf_robust.attacks.attack import Predict
from tf_robust.data import sources
from tf_robust.data.kinds import shift_data
from tf_robust.data.source import Source
from tf_robust.data.sources import Shift
from tf_robust.data.subsets import SUBSET_SEED, JoinedSource, split_train_val_test, stratified_parts, stratified_subset, without_validation
from tf_robust.evaluation.evaluation_data import EvaluationData, fraction_not_trained_on
from tf_robust.hardening.config import HardenConfig
from tf_robust.hardening.target import (
    PAIRS_PER_IMAGE,
    LabeledImages,
    ValidationSet,
    compact,
    corruptions_of,
    halfway_severities,
    weighted_pairs,
)
from tf_robust.saved_models.loading import Classifier
from tf_robust.utils.progress import print_note

HELD_OUT = 0.15  # fraction of data without splits, for validation and for test each
MAX_VALIDATION_IMAGES = 1000
MAX_CLEAN_IMAGES = 5000  # for the accuracy on unchanged images, which must not fall and is cheap
MIN_SHIFT_IMAGES = 20
MIN_OF_SEVERITY, MAX_OF_SEVERITY = 4, 40  # images of a corruption at each severity, to find that of the target
ATTACK_STEPS = 10
SPLITS = ("train", "validation", "test")
_SEEN = (
    "The model may have been trained on any of these images: then its clean accuracy is too high, and hardening seems to lose more of it "
    "than it does. Try: test images that it has never seen, as a folder with train and test, x_test in an npz file, or test_data in Python"
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
        numbers, seed = "{:,} training, {:,} validation and {:,} test images", f", split by seed {SUBSET_SEED}."
        own = len(self.train) - (self.shift.train if self.shift else 0), len(self.validation), len(self.test)
        text = numbers.format(*own) + (seed if self.split else ".")
        if shift := self.shift:
            text += f" Of {shift.data}: {numbers.format(shift.train, len(shift.validation.source), len(shift.test))}{seed}"
        return text


def parts_of(
    given: EvaluationData, validation: Source | None = None, test: Source | None = None, *, config: HardenConfig = HardenConfig()
) -> Parts:
    """Returns the images of a search: the splits of the data, or 70, 15 and 15 % of data without splits (or `validation_fraction`).

    Images given for validation or test are not taken from the data. Raises ValueError if a class has fewer than two training images, given
    images have other channels or classes, or there are too few images of new conditions.
    """
    own = {name: one for name, one in (("validation", validation), ("test", test)) if one is not None}
    no_splits = given.images is not None or not data.has_splits(given.config.data)
    parts = _parts_of_one_set(given, own) if no_splits else _splits(given, own)
    parts |= {name: _match(given.like_images(one), parts["train"], name, given.config.image_fit) for name, one in own.items()}
    _check_classes(parts)
    shift = None
    if config.shift:
        parts["train"], shift = _with_shift(parts["train"], given, shift_data(config.shift), config.adapt)
    return Parts(**parts, note=_SEEN if no_splits and test is None else "", split=no_splits and len(own) < 2, shift=shift)


def validation_set(
    parts: Parts,
    config: HardenConfig,
    given: EvaluationData,
    predict: Predict,
    images: int = MAX_VALIDATION_IMAGES,
    clean: int = MAX_CLEAN_IMAGES,
    severities: Mapping[str, int] | None = None,
) -> ValidationSet:
    """Returns the images on which models are compared: at most `images` for the target, stratified, of validation or the new conditions.

    The accuracy on unchanged images is computed on at most `clean`. `severities`: of the target's corruptions; None: by
    `halfway_severities` of the initial model, `predict`.
    """
    unchanged, labels = evaluation.stratified_images(parts.validation, images)
    mask, shift = parts.validation.class_mask, None
    more, labels_of_more = evaluation.stratified_images(parts.validation, clean)
    if parts.shift:
        target = parts.shift.validation
        shifted, classes = evaluation.stratified_images(target.source, images)
        shift = LabeledImages(compact(shifted), np.take(target.columns, classes), target.class_mask)
    noise = evaluation.noise_probabilities(parts.train, given.eval_config) if "noise" in config.weights else None
    names = list(dict.fromkeys(name for part in config.weights for name in corruptions_of(part)))
    if severities is None and names:
        per_corruption = min(MAX_OF_SEVERITY, max(MIN_OF_SEVERITY, PAIRS_PER_IMAGE * len(labels) // (len(names) * len(metrics.SEVERITIES))))
        severities = halfway_severities(predict, LabeledImages(unchanged, labels, mask), names, per_corruption, noise)
    attack = attacks.ProjectedGradientDescent(norm=config.attack_norm, radius=config.attack_radius, steps=ATTACK_STEPS)
    return ValidationSet(
        unchanged,
        labels,
        weighted_pairs(config.weights, severities or {}),
        clean=LabeledImages(compact(more), labels_of_more, mask),
        groups=evaluation.stratified_groups(parts.validation, clean, column) if (column := given.eval_config.groups) else None,
        probabilities=noise,
        attack=attack,
        class_mask=mask,
        shift=shift,
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


def _parts_of_one_set(given, own):
    """{split: source} of data without splits, as `open_source` divides it, except splits that are given."""
    fraction, complete = given.config.validation_fraction or HELD_OUT, given.source("all", mapped=False)
    if not own:
        parts = {split: split_train_val_test(complete, split, fraction) for split in SPLITS}
    elif len(own) == 2:
        parts = {"train": complete}
    else:
        held_out = "test" if "validation" in own else "validation"
        parts = {split: without_validation(complete, part, fraction) for split, part in (("train", "train"), (held_out, "validation"))}
    if given.config.train_examples:
        parts["train"] = stratified_subset(parts["train"], given.config.train_examples)
    parts["train"] = data.labelled_fraction(parts["train"], given.config.label_fraction, given.seed)
    return {split: given.map_labels(part) for split, part in parts.items()}


def _splits(given, own):
    """{split: source} of data with splits, except splits that are given; without a validation split a part of train is held out."""
    fraction = 0.0 if "validation" in own else given.config.validation_fraction or HELD_OUT
    given = dataclasses.replace(given, config=dataclasses.replace(given.config, validation_fraction=fraction))
    return {split: given.source(split) for split in SPLITS if split not in own}


def _check_classes(parts):
    """Raises ValueError if a class has images, but fewer than two training images; of some of a model's classes it notes those without."""
    train = parts["train"]
    held_out = np.concatenate([parts[name].read_labels() for name in ("validation", "test")])
    counts = np.bincount(train.read_labels(), minlength=train.num_classes)
    rare = [f"{train.class_names[i]!r} ({counts[i]})" for i in np.flatnonzero(counts < 2) if counts[i] or i in held_out]
    if rare and not train.label_columns:
        raise ValueError(
            f"Expected at least two training images of each class of {train.name}. Received: fewer of {len(rare)} "
            f"class{'es' * (len(rare) > 1)}, {_first(rare)}. Try: add images, or leave the class out of the data"
        )
    if absent := int((counts == 0).sum()):
        print_note(f"{absent:,} of the {len(counts):,} classes of the model have no training images: fine-tuning may make it forget them.")


def _match(given, train, split, image_fit):
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
    """The training images, with a third of the images of new conditions if `adapt`, and the other parts of these."""
    if name == given.config.data:
        raise ValueError(f"Expected images of new conditions as the target. Received: {name}, the data themselves")
    shift = sources.open_shift(given.config, name, train)
    source, count = shift.source, 3 if adapt else 2
    if not source.random_access:
        raise ValueError(f"Expected a target that can be split. Received: {name}, which is read as a stream. Try: folder:DIR")
    labels = source.read_labels()
    rare = [f"{source.class_names[i]!r} ({n})" for i, n in enumerate(np.bincount(labels)) if 0 < n < count]
    if rare or len(labels) < MIN_SHIFT_IMAGES:
        raise ValueError(
            f"Expected at least {MIN_SHIFT_IMAGES} images in {name}, of which {count} or more of each class, to split them into "
            f"{'training, ' * adapt}validation and test images. Received: {len(labels)}{', of ' * bool(rare)}{_first(rare)}"
        )
    *adapted, validation, test = [source.subset(positions) for positions in stratified_parts(labels, count)]
    train = JoinedSource.of(train, adapted[0], shift.columns) if adapt else train
    return train, ShiftParts(name, dataclasses.replace(shift, source=validation), test, len(adapted[0]) if adapt else 0)
