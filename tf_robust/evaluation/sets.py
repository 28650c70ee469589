"""Builds the evaluation sets of a configuration."""

import dataclasses
import functools
from collections.abc import Sequence

import tensorflow as tf

from tf_robust.attacks.attack import Predict
from tf_robust.configs.evaluation import EvalConfig
from tf_robust.data.source import Source
from tf_robust.data.sources import Shift
from tf_robust.evaluation import adaptation, slices, utility
from tf_robust.evaluation.attacked_sets import attacked_sets
from tf_robust.evaluation.batches import clean_batches
from tf_robust.evaluation.corrupted_sets import corrupted_sets, noisy_sets, sequence_sets
from tf_robust.evaluation.evaluation_set import EvaluationSet
from tf_robust.evaluation.metric_value import parse_metric


def check(source: Source, eval_config: EvalConfig) -> None:
    """Checks that the evaluations are possible on the images of a source.

    Raises:
        ValueError: they are not.
    """
    if "utility" in eval_config.evaluations:
        utility.check(source)
    if "slices" in eval_config.evaluations:
        slices.check(source, eval_config.groups)


def evaluation_sets(
    source: Source,
    training_source: Source | None,
    eval_config: EvalConfig,
    data_dir: str | None = None,
    shifts: Sequence[Shift] = (),
    surrogate: Predict | None = None,
) -> list[EvaluationSet]:
    """Returns the evaluation sets of a configuration.

    Args:
        source: images to evaluate on.
        training_source: images from which NUN computes its standard deviation per location; may be None without noise.
        eval_config: names the evaluations.
        data_dir: where TFDS keeps a corrupted set; None: its default.
        shifts: shifted data sets, each a set of its own.
        surrogate: differentiable model from which attacks are transferred; None: there are none.

    Raises:
        FileNotFoundError: the corrupted set does not exist or has no corruption.
        ValueError: the evaluation `utility` for images that are not corner
            digits.
    """
    check(source, eval_config)
    own = _sets(source, training_source, eval_config, data_dir, surrogate)
    own = [dataclasses.replace(one, class_mask=source.class_mask) for one in own]
    first = 1 if own and parse_metric(own[0].name).is_clean else 0
    shifted = [_shifted(shift) for shift in shifts]
    if eval_config.adaptation != "none":
        size = eval_config.adaptation_batch_size
        own = [adaptation.in_batches(one, len(source), size) for one in own]
        shifted = [adaptation.in_batches(one, len(shift.source), size) for one, shift in zip(shifted, shifts)]
    return [*own[:first], *shifted, *own[first:]]


def _shifted(shift):
    """The set of a shifted data set; its labels are columns of the model's output."""
    columns, source = tf.constant(shift.columns, tf.int64), shift.source

    def open_shift(images):
        return clean_batches(images).map(lambda images, labels: (images, tf.gather(columns, labels)))

    return EvaluationSet(
        f"shift/{shift.name}",
        lambda: open_shift(source),
        images=source,
        open_range=lambda first, last: open_shift(source.part(first, last)),
        class_mask=shift.class_mask,
    )


def _sets(source, training_source, eval_config, data_dir, surrogate):
    """The sets of the evaluated images."""
    clean = functools.cache(functools.partial(clean_batches, source))
    chosen = eval_config.evaluations

    def open_range(first, last):
        return clean_batches(source.part(first, last))

    sets = []
    if {"clean", "calibration", "slices"} & set(chosen):
        sets.append(EvaluationSet(clean_name(source), clean, images=source, open_range=open_range))
    sets += noisy_sets(source, training_source, eval_config, clean)
    sets += corrupted_sets(source, eval_config, clean, data_dir)
    if "perturbations" in chosen:
        sets += sequence_sets(source, eval_config)
    if "utility" in chosen:
        sets.append(EvaluationSet("bal/rare", lambda: _of_classes(clean(), utility.RARE)))
        sets.append(EvaluationSet("utility", clean, utility.score))
    return sets + attacked_sets(source, eval_config, surrogate)


def clean_name(source: Source) -> str:
    """Returns the name of the clean set: `clean`, or `bal` for the balanced corner-digit sets."""
    return "bal" if source.name.startswith("synthetic_") else "clean"


def _of_classes(batches, classes):
    """The images of some classes, in batches that may be smaller."""

    def select(images, labels):
        selected = tf.reduce_any(labels[:, None] == tf.constant(list(classes), labels.dtype), axis=1)
        return tf.boolean_mask(images, selected), tf.boolean_mask(labels, selected)

    return batches.map(select).filter(lambda images, labels: tf.size(labels) > 0)
