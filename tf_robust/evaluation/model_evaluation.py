"""Evaluates a loaded model on the data of a run, after checks that they suit each other; possible mismatches are printed as notes."""

import contextlib
import dataclasses
import datetime
import itertools
import os
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from tf_robust import attacks, data, evaluation
from tf_robust.configs.train import UNRECORDED_FLAGS
from tf_robust.data import WHOLE, has_splits
from tf_robust.data.class_mask import IMAGENET_CLASSES
from tf_robust.data.source import Source
from tf_robust.data.subsets import stratified_order
from tf_robust.evaluation import adversarial
from tf_robust.evaluation.evaluation_data import EvaluationData, print_default_split, with_default_split, with_validation_of_card
from tf_robust.evaluation.sets import order_for_adaptation
from tf_robust.saved_models import input_check, loading
from tf_robust.saved_models.interface import declared_range
from tf_robust.saved_models.loading import Classifier, with_batch_statistics, with_embedding
from tf_robust.utils import environment, progress
from tf_robust.utils.progress import print_note

CHECKED_IMAGES, IMAGES_PER_CLASS, MAX_IMAGES = 300, 10, 1000
IMAGES_FOR_OUTPUTS = 50
_CLASSES_OF_FOLDERS = "label_map=FILE maps class folders to columns of the logits, label_set=imagenet_r those of ImageNet-R"
_CLASSES_OF_LABELS = "a model of these classes, or labels that are columns of its scores"
_SECONDS_BETWEEN_LINES = 5.0  # of the sets of an evaluation


@dataclasses.dataclass(frozen=True)
class ModelEvaluation:
    """An evaluation of a model."""

    content: dict  # of `evaluation.json`
    classifier: Classifier  # the model, with the input range that was found to fit
    predict: Callable[[tf.Tensor], tf.Tensor]  # the same, which prints a note, once, if its outputs do not look like the declared kind
    data: EvaluationData  # with the split and the attacks that were chosen for the model
    source: Source  # the evaluated images
    result: evaluation.Evaluation  # the records


def evaluate_model(
    classifier: Classifier,
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
    classifier, config = with_possible_attacks(classifier, data.eval_config, source)
    data = dataclasses.replace(data, eval_config=config)
    training_source = data.noise_source()
    shifts = data.shifts(source) if config.shifts else []
    surrogate = None
    if config.surrogate:
        surrogate = load_surrogate(config.surrogate if data.surrogate is None else data.surrogate, source, classifier.interface.trust)
    validation = data.validation_source()
    if validation is not None:  # predictions on it are made as on the evaluated images
        validation = dataclasses.replace(validation, class_mask=source.class_mask)
    embedding = with_embedding(classifier) if config.ood or "sensitivity" in config.evaluations else None
    if "sensitivity" in config.evaluations and embedding is None:
        raise ValueError(
            "Expected a model with an output 'embedding', or a Keras model with a dense last layer, for the evaluation sensitivity. "
            f"Received: {classifier.path}"
        )
    open_sets = data.open_sets(source, embedding) if config.ood else evaluation.OpenSets()
    imagenet = evaluation.is_imagenet(source, config)
    card = evaluation.card_of(source, config, training_source, imagenet, shifts, surrogate, validation, open_sets)
    card["sizes"] = evaluation.image_sizes(source, classifier)
    if classifier.batch_dependence:
        card["batch_dependence"] = classifier.batch_dependence
    digest, interface_fields = classifier.digest(), classifier.interface.conventions()
    adapted, order = config.adaptation != "none", config.adaptation_order
    predict = with_output_check(with_batch_statistics(classifier) if adapted else classifier)
    if adapted:
        source = order_for_adaptation(source, order)
        shifts = [dataclasses.replace(shift, source=order_for_adaptation(shift.source, order)) for shift in shifts]
    with contextlib.ExitStack() as reading:
        for one in (source, *(shift.source for shift in shifts), *filter(None, [validation]), *open_sets.sources.values()):
            reading.enter_context(one.reading())
        result = evaluation.evaluate(
            predict,
            source,
            training_source,
            config,
            data_dir=data.config.data_dir or None,
            path=os.path.join(folder, "measured.jsonl"),
            shifts=shifts,
            surrogate=surrogate,
            encoder=embedding and embedding.outputs,
            validation=validation,
            open_sets=open_sets,
            depends=lambda name: evaluation.dependencies(digest, interface_fields, card, name),
            log=log or progress.at_intervals(progress.print_line, _SECONDS_BETWEEN_LINES, evaluation.IMPORTANT),
        )
    no_mce = evaluation.why_no_mce(source, config, result.metrics)
    notes = [*([no_mce] if no_mce else []), *adversarial.failed_notes(result.records)]
    content = {
        "row": row,
        "seed": data.seed,
        "method": str(classifier.card.get("method", "")),
        "data": data.config.data,
        "model": str(classifier.card.get("model", model_name or os.path.basename(os.path.abspath(classifier.path)))),
        "split": config.evaluation_split,
        "options": recorded(config),
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
        **({"notes": notes} if notes else {}),
    }
    return ModelEvaluation(content, classifier, predict, data, source, result)


def recorded(eval_config: evaluation.EvalConfig) -> dict:
    """Returns the fields of the configuration, for JSON; without paths, whose content the card describes."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in dataclasses.asdict(eval_config).items()
        if name not in UNRECORDED_FLAGS and (value or name != "corruptions")  # as before there was a choice
    }


def match_model_and_data(classifier: Classifier, data: EvaluationData, split_chosen: bool) -> tuple[Classifier, EvaluationData, Source]:
    """Returns a model with the input range and the kind of output that fit the data, the data that suit the model, and the images.

    The data get the image size, the classes and the validation fraction of the model. Arguments and errors as in `evaluate_model`.
    """
    data = data if split_chosen else with_default_split(data, classifier.card)
    config = data.config
    fits = data.eval_config.needs_validation_set and data.validation_images is None
    if data.images is None and (fits or data.eval_config.evaluation_split != WHOLE and not has_splits(config.data)):
        config = with_validation_of_card(classifier.card, classifier.path, config)
    data = dataclasses.replace(data.for_model(classifier), config=config)
    source = with_label_set_of_card(classifier, data.evaluation_source())
    check_model_suits(classifier, source)
    known = with_known_outputs(classifier, source)
    if not data.num_classes:  # which the model shows only in its outputs
        data = dataclasses.replace(data, num_classes=classes_of_outputs(known, source))
        source = with_label_set_of_card(known, data.evaluation_source())
        numbered = source.class_names == tuple(map(str, range(source.num_classes)))  # the classes that occur: there may be others
        if not numbered and not source.has_columns_of(data.num_classes):
            raise _other_classes(known, source, data.num_classes)
    note_classes(source, data.num_classes)
    return with_checked_inputs(known, source), data, source


def with_output_check(predict: Classifier) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a classifier that prints a note, once, if its outputs do not look like the declared kind."""
    notes: set[str] = set()

    def predict_and_check(images):
        logits = predict(images)
        note = "" if notes or not tf.executing_eagerly() else predict.check(logits)
        if note:
            notes.add(note)
            print_note(note, repeat=True)  # for each model, also if the text is the same
        return logits

    return predict_and_check


def with_label_set_of_card(predict: Classifier, source: Source) -> Source:
    """Returns a source with the label set that the model's card declares, if the source declares none and has as many classes."""
    label_set = predict.card.get("label_set")
    if label_set != "imagenet" or source.label_set or source.label_columns or source.num_classes != IMAGENET_CLASSES:
        return source
    print_note(f"label_set=imagenet, from the card of {predict.path}.", repeat=True)
    return data.declared(source, label_set)


def check_model_suits(predict: Classifier, source: Source) -> None:
    """Checks that a model takes the images of a source and has its classes, in the order of its card; other class names are only noted."""
    predict.check_images_match(source.image_shape)
    if predict.num_classes and not source.has_columns_of(predict.num_classes):
        raise _other_classes(predict, source, predict.num_classes)
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
        print_note(
            f"the class names of the model and of {source.name} differ: {len(differing)} differ, the first {differing[0][0]!r} and "
            f"{differing[0][1]!r}.",
            repeat=True,
        )


def _other_classes(predict, source, num_classes):
    of_one = ", as it has one output" if predict.has_one_output else ""
    in_folders, empty = data.kind_of(source.name).class_folders, ""
    if in_folders and not source.label_columns:
        absent = np.setdiff1d(np.arange(source.num_classes), source.complete.read_labels())
        empty = f"delete class folders without images, such as {source.class_names[absent[0]]!r}; " if absent.size else ""
    return ValueError(
        f"Expected a model for the {source.num_classes} classes of {source.name}. Received: {predict.path} with "
        f"{num_classes} classes{of_one}. Try: {empty}{_CLASSES_OF_FOLDERS if in_folders else _CLASSES_OF_LABELS}"
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
        print_note("outputs=probabilities: the sums over the classes are 1.", repeat=True)
    return known


def classes_of_outputs(predict: Classifier, source: Source) -> int:
    """Returns the number of classes of a model that does not state it, by its outputs on the first image."""
    return max(2, int(predict.scores(evaluation.first_images(source, 1)[0]).shape[1]))


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
    if not _checks_inputs(predict):
        return predict
    count = min(max(CHECKED_IMAGES, IMAGES_PER_CLASS * source.num_classes), MAX_IMAGES)
    if source.random_access:  # which may be sorted by class, as arrays often are
        source = source.subset(stratified_order(np.asarray(source.labels))[:count])
    images, labels = evaluation.first_images(source, count)
    logits = None if predict.interface.input_range == "auto" else input_check.in_batches(predict, images)
    checked = with_fitting_range(predict, images, labels, logits)
    logits = input_check.in_batches(checked, images) if logits is None else logits
    if not source.label_columns and not source.class_mask:
        input_check.check_class_order(logits, labels, source.class_names, data.kind_of(source.name).class_folders)
    if note := input_check.note_on_chance(checked, logits, images, labels, source.class_names):
        print_note(note)
    return checked


def with_fitting_range(predict: Classifier, images: np.ndarray, labels: np.ndarray, logits: np.ndarray | None = None) -> Classifier:
    """Checks the pixel scale of a model as `with_checked_inputs`, on images, float32 [N, H, W, C] in [0, 1], and labels, int [N].

    `logits`, [N, C], are those with its declared scale, if they are known.
    """
    if not _checks_inputs(predict):
        return predict
    known = None if logits is None else logits[:CHECKED_IMAGES]
    checked = input_check.with_fitting_range(predict, images[:CHECKED_IMAGES], labels[:CHECKED_IMAGES], print_note, known)
    if predict.interface.input_range == "auto":
        print_note(f"input_range={checked.interface.input_range} fits {predict.path} best.")
    return checked


def _checks_inputs(predict):
    """Whether the pixel scale of a model is to be checked: its card does not declare it."""
    if declared_range(predict.card):
        return False
    if predict.interface.input_range == "auto" and not predict.interface.check_inputs:
        raise ValueError("Expected an input_range with check_inputs=false. Received: auto. Try: check_inputs")
    return predict.interface.check_inputs


def with_possible_attacks(
    predict: Classifier, eval_config: evaluation.EvalConfig, source: Source
) -> tuple[Classifier, evaluation.EvalConfig]:
    """Returns a model with gradients, if the evaluation needs them, and an evaluation whose attacks the model permits.

    An ONNX file is converted to a Keras model. A model without gradients is attacked by Square in place of AutoAttack, and not attacked as
    a smoothed model; other attacks and attack curves raise ValueError.
    """
    chosen = {*eval_config.evaluations}
    of_attacks = "adversarial" in chosen and eval_config.attack != ("square",)
    of_smoothing = "certified" in chosen and eval_config.smoothing_attack
    if not (of_attacks or of_smoothing or "attack_curves" in chosen):
        return predict, eval_config
    predict, reason = with_gradients(predict, evaluation.first_images(source, loading.COMPARED)[0])
    if not reason:
        return predict, eval_config
    needs = []
    if "adversarial" in chosen and eval_config.attack != ("autoattack",):
        own = [name for name in eval_config.attack if attacks.ATTACKS[name].__module__.startswith("tf_robust.")]
        needs += [f"attack={name}" for name in own if name != "square"]
    if "attack_curves" in chosen:
        needs.append("evaluations=attack_curves")
    if needs:
        raise ValueError(
            f"Expected a model with gradients for {', '.join(needs)}. Received: {predict.path}, {reason}; "
            "or attack=square, which needs none, and no attack_curves"
        )
    without_gradients = f"{predict.path} has no gradients{', as its input is uint8' if predict.takes_uint8 else ''}"
    if "certified" in chosen and eval_config.smoothing_attack:
        print_note(f"{without_gradients}: it is certified, but not attacked (smoothing_attack=false).")
        eval_config = dataclasses.replace(eval_config, smoothing_attack=False)
    if "adversarial" not in chosen or "autoattack" not in eval_config.attack:
        return predict, eval_config
    transferred = f", and by attacks transferred from {eval_config.surrogate}" if eval_config.surrogate else ""
    print_note(f"{without_gradients}: it is attacked by Square alone (attack=square){transferred}.")
    return predict, dataclasses.replace(eval_config, attack=("square",))


def with_gradients(predict: Classifier, images: np.ndarray) -> tuple[Classifier, str]:
    """Returns a model with gradients, of an ONNX file the Keras model of its graph, and ""; or the given model, and why it has none.

    images: float32 [N, H, W, C] in [0, 1], on which the scores of both are compared.
    """
    if predict.has_gradients(images.shape[1:]):
        return predict, ""
    if not predict.takes_uint8:
        try:
            converted = loading.as_keras(predict, images)
        except (ImportError, ValueError) as error:
            return predict, f"which is not converted to a Keras model with gradients: {error}"
        if converted.has_gradients(images.shape[1:]):
            return converted, ""
    return predict, predict.why_no_gradients()


def load_surrogate(model: Classifier | str | os.PathLike | keras.Model | Callable, source: Source, trust: bool = False) -> Classifier:
    """Returns a surrogate, a differentiable model on which attacks are computed that another model is then evaluated on.

    Its interface is found, unless it is known: probabilities are recognized by their sums, the pixel scale is in its card or the one
    with which it classifies most images correctly, and images are resized to its input size in front of it. `trust`: run the Python code
    in a Keras file.
    """
    if isinstance(model, Classifier):
        surrogate = model
    else:
        load: Callable = loading.load_classifier if isinstance(model, (str, os.PathLike)) else loading.classifier_of
        interface = loading.ModelInterface(input_range="auto", trust=trust)
        surrogate = load(model, interface)
        size = loading.image_size_of(surrogate)
        if size and size != tuple(source.image_shape[:2]) and size[0] == size[1]:
            surrogate = load(model, dataclasses.replace(interface, input_size=size[0]))
    surrogate.check_images_match(source.image_shape)
    if surrogate.num_classes and not source.has_columns_of(surrogate.num_classes):
        raise ValueError(
            f"Expected a surrogate with the {source.num_classes} classes of {source.name}. Received: {surrogate.path} with "
            f"{surrogate.num_classes} classes"
        )
    surrogate, reason = with_gradients(surrogate, evaluation.first_images(source, loading.COMPARED)[0])
    if reason:
        raise ValueError(f"Expected a surrogate with gradients. Received: {surrogate.path}, {reason}")
    images, labels = evaluation.first_images(source, IMAGES_FOR_OUTPUTS)
    scaled = with_checked_inputs(with_checked_batches(surrogate.with_known_outputs(images), images), source)
    accuracy = float((scaled(images).numpy().argmax(axis=1) == labels).mean())
    print_note(
        f"attacks are transferred from {scaled.path} (input_range={scaled.interface.input_range}, outputs={scaled.interface.outputs}), "
        f"which classifies {accuracy:.0%} of {len(labels)} images correctly."
    )
    return scaled
