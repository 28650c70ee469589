"""Evaluates a loaded model on the data of a run."""

import contextlib
import dataclasses
import datetime
import functools
import os
from collections.abc import Callable

import tensorflow as tf

from tf_robust import evaluation
from tf_robust.configs.train import UNRECORDED_FLAGS
from tf_robust.data import WHOLE, has_splits
from tf_robust.data.source import Source
from tf_robust.evaluation.evaluation_data import EvaluationData, print_default_split, with_default_split, with_validation_of_card
from tf_robust.evaluation.evaluation_set import order_for_adaptation
from tf_robust.evaluation.model_checks import (
    check_columns,
    check_model_suits,
    load_surrogate,
    note_classes,
    with_checked_inputs,
    with_known_outputs,
    with_label_set_of_card,
    with_output_check,
    with_possible_attacks,
)
from tf_robust.saved_models import loading
from tf_robust.saved_models.loading import with_batch_statistics, with_embedding
from tf_robust.utils import environment, progress

_SECONDS_BETWEEN_LINES = 5.0  # of the sets of an evaluation


@dataclasses.dataclass(frozen=True)
class ModelEvaluation:
    """An evaluation of a model."""

    content: dict  # of `evaluation.json`
    classifier: loading.Classifier  # the model, with the input range that was found to fit
    predict: Callable[[tf.Tensor], tf.Tensor]  # the same, which prints a note, once, if its outputs do not look like the declared kind
    data: EvaluationData  # with the split and the attacks that were chosen for the model
    source: Source  # the evaluated images
    result: evaluation.Evaluation  # the records


def evaluate(
    classifier: loading.Classifier,
    data: EvaluationData,
    folder: str,
    *,
    row: str,
    saved_model: str,
    split_chosen: bool = False,
    model_name: str = "",
    log: Callable[[str], object] | None = None,
) -> ModelEvaluation:
    """Evaluates a loaded model.

    Args:
        classifier: the model.
        data: to evaluate it on.
        folder: of `measured.jsonl`, to which a record of each set is added; sets that have a record are not evaluated again.
        row: its name in tables.
        saved_model: path of the model, or its name.
        split_chosen: whether the user chose `evaluation_split`; otherwise data without splits are evaluated as a whole.
        model_name: of its architecture, if its card has none; empty: the name of its file.
        log: called with lines of progress; None: prints them.

    Raises:
        ValueError: the model takes other images or has another number of classes.
    """
    classifier, data, source = match_model_and_data(classifier, data, split_chosen)
    if not split_chosen:
        print_default_split(data)
    data = dataclasses.replace(data, eval_config=with_possible_attacks(data.eval_config, classifier, source))
    training_source, shifts = data.noise_source(), data.shifts(source)
    predict = with_output_check(classifier)
    surrogate = None
    if data.eval_config.surrogate:
        given = data.eval_config.surrogate if data.surrogate is None else data.surrogate
        surrogate = load_surrogate(given, source, classifier.interface.trust)
    validation = data.validation_source()
    if validation is not None:  # predictions on it are made as on the evaluated images
        validation = dataclasses.replace(validation, class_mask=source.class_mask)
    open_sets = data.open_sets(source, with_embedding(classifier) if data.eval_config.ood else None)
    imagenet = evaluation.is_imagenet(source, data.eval_config)
    card = evaluation.card_of(source, data.eval_config, training_source, imagenet, shifts, surrogate, validation, open_sets)
    card["sizes"] = evaluation.image_sizes(source, classifier)
    if classifier.batch_dependence:
        card["batch_dependence"] = classifier.batch_dependence
    digest, interface_fields = classifier.digest(), classifier.interface.conventions()
    adapted, order = data.eval_config.adaptation != "none", data.eval_config.adaptation_order
    if adapted:
        predict = with_output_check(with_batch_statistics(classifier))
        source = order_for_adaptation(source, order)
        shifts = [dataclasses.replace(shift, source=order_for_adaptation(shift.source, order)) for shift in shifts]
    with contextlib.ExitStack() as reading:
        for one in (source, *(shift.source for shift in shifts), *filter(None, [validation]), *open_sets.sources.values()):
            reading.enter_context(one.reading())
        result = evaluation.evaluate_records(
            predict,
            source,
            training_source,
            data.eval_config,
            data_dir=data.config.data_dir or None,
            path=os.path.join(folder, "measured.jsonl"),
            shifts=shifts,
            surrogate=surrogate,
            validation=validation,
            open_sets=open_sets,
            depends=lambda name: evaluation.dependencies(digest, interface_fields, card, name),
            log=log or progress.at_intervals(functools.partial(print, flush=True), _SECONDS_BETWEEN_LINES, evaluation.IMPORTANT),
        )
    no_mce = evaluation.why_no_mce(source, data.eval_config, result.metrics)
    content = {
        "row": row,
        "seed": data.seed,
        "method": str(classifier.card.get("method", "")),
        "data": data.config.data,
        "model": str(classifier.card.get("model", model_name or os.path.basename(os.path.abspath(classifier.path)))),
        "split": data.eval_config.evaluation_split,
        "options": recorded(data.eval_config),
        "card": card,
        "attacks": {
            record["set"]: {
                "accuracy_after": {name: count / record["count"] for name, count in record["correct_after"].items()},
                "warnings": record["warnings"],
            }
            for record in result.records
            if "correct_after" in record  # each member of AutoAttack
        },
        "rows": [metric.of_model(data.config.label_fraction, adapted).to_json() for metric in result.metrics],
        "versions": environment.describe(),
        "commit": environment.commit(),
        "date": datetime.date.today().isoformat(),
        "saved_model": saved_model,
        "model_digest": digest,
        "interface": interface_fields,
        **({"confidence": result.fitted} if result.fitted else {}),
        **({"notes": [no_mce]} if no_mce else {}),
    }
    return ModelEvaluation(content, classifier, predict, data, source, result)


def recorded(eval_config: evaluation.EvalConfig) -> dict:
    """Returns the fields of the configuration, for JSON; without paths, whose content the card describes."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in dataclasses.asdict(eval_config).items()
        if name not in UNRECORDED_FLAGS and (value or name != "corruptions")  # as before there was a choice
    }


def match_model_and_data(
    classifier: loading.Classifier, data: EvaluationData, split_chosen: bool
) -> tuple[loading.Classifier, EvaluationData, Source]:
    """Returns a model with the input range and the kind of output that fit the data, the data that suit the model, and the images.

    The data get the image size, the classes and the validation fraction of the model. Arguments and errors as in `evaluate`.
    """
    data = data if split_chosen else with_default_split(data, classifier.card)
    fits = data.eval_config.needs_validation_set and data.validation_images is None
    divided = data.eval_config.evaluation_split != WHOLE and not has_splits(data.config.data)
    held_out = data.images is None and (fits or divided)
    data = dataclasses.replace(
        data,
        config=with_validation_of_card(classifier.card, classifier.path, data.config) if held_out else data.config,
        model_size=loading.image_size_of(classifier),
        num_classes=classifier.num_classes or 0,
    )
    source = with_label_set_of_card(classifier, data.evaluation_source())
    check_model_suits(classifier, source)
    known = with_known_outputs(classifier, source)
    if not data.num_classes:  # which the model shows only in its outputs
        data = dataclasses.replace(data, num_classes=int(known(evaluation.first_images(source, 1)[0]).shape[1]))
        source = with_label_set_of_card(known, data.evaluation_source())
    check_columns(known, source)
    note_classes(source, data.num_classes)
    return with_checked_inputs(known, source), data, source
