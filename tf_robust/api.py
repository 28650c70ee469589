"""Training, evaluation, attacks and comparison for notebooks. Arguments have the names and defaults of the flags.

    from tf_robust import api
    result = api.train("runs/fcl", data="synthetic_digits", method="fcl", fcl_k=20, epochs=5)
    result.values["un"], api.evaluate(result.model, evaluations="clean,corruptions", subset=500)
    api.compare(api.train("runs/xe", epochs=5), result).frame()

`tf-robust --helpfull` and the classes behind the flags document the arguments.
"""

import dataclasses
import os
import tempfile
import typing
from collections.abc import Callable, Mapping

import keras
import numpy as np
import pandas
import tensorflow as tf
from numpy.typing import ArrayLike

from tf_robust import attacks, data, evaluation, report
from tf_robust.configs import DataConfig
from tf_robust.evaluation import auto_attack
from tf_robust.experiments import hardening_run, model_evaluation
from tf_robust.experiments.command_checks import is_url
from tf_robust.experiments.commands import HARDENING_EVALUATIONS
from tf_robust.experiments.config import UNRECORDED_FLAGS
from tf_robust.experiments.flags import data_of, values_of
from tf_robust.experiments.hardened import Hardened
from tf_robust.experiments.keyword_arguments import check_used, renamed, run_of, with_python_errors
from tf_robust.experiments.locations import row_name
from tf_robust.experiments.model_checks import IMAGES_FOR_OUTPUTS, is_same_data, print_note, with_checked_batches, with_fitting_range
from tf_robust.experiments.results import Comparison, Result, compare
from tf_robust.hardening.config import HardenConfig
from tf_robust.hardening.trainable import check_format
from tf_robust.ops import pixel_scale
from tf_robust.report import charts as report_charts
from tf_robust.saved_models import formats, input_check, loading
from tf_robust.saved_models.classifier import read_card
from tf_robust.saved_models.formats.keras_files import compile_like
from tf_robust.saved_models.zoo import load
from tf_robust.utils import hyperparameters
from tf_robust.utils.deprecation import moved_names
from tf_robust.utils.errors import unknown

__all__ = [
    "Comparison",
    "Hardened",
    "Model",
    "Result",
    "attack",
    "charts",
    "compare",
    "evaluate",
    "frame",
    "harden",
    "images",
    "load",
    "train",
]
__getattr__ = moved_names(__name__, {"pictures": "api.images"})


Model: typing.TypeAlias = str | os.PathLike | keras.Model | Callable  # path, model or callable: images [N, H, W, C] -> scores [N, classes]
_TRAINING_DATA = {"train_examples", "label_fraction"}
_DATA = hyperparameters.parameters(DataConfig).keys() - _TRAINING_DATA
_IN_MEMORY = ("arrays", "dataset")  # names of data in memory
Data: typing.TypeAlias = str | os.PathLike | tuple[ArrayLike, ArrayLike] | tf.data.Dataset  # name or path, (images, labels), or pairs


@with_python_errors
def train(folder: str, **arguments) -> Result:
    """Trains, exports and evaluates one run, unless the folder already has its results.

    Args:
        folder: workdir of the run.
        **arguments: flags by name, such as method="fcl", epochs=3.

    Raises:
        ValueError: a flag that does not exist or has no effect, or an invalid value; the workdir has a run with other flags.
    """
    if is_url(folder):
        raise ValueError(f"Expected a local folder. Received: {folder}. Try: tf-robust train --workdir={folder}")
    arguments = renamed(arguments)
    run, _ = run_of(arguments)
    used = {*run.flags, *UNRECORDED_FLAGS} - run.ignored.keys() - run.eval_config.unused.keys()
    check_used(arguments, used, f"training with the method {run.config.method!r} and its evaluations")
    run.row = run.shown_as = os.path.basename(os.path.abspath(folder))
    content = run.complete(folder)
    if content is None:
        raise ValueError("Expected the chief worker. Received: another worker, which has no results")
    return Result(folder, {name: value for name, value in content.items() if name != "measured_in"})  # which is the folder


@with_python_errors
def evaluate(model: Model, data: Data | None = None, *, validation_data: Data | None = None, **arguments) -> Result:
    """Evaluates a model on data.

    Args:
        model: the path or name of a model of any format that `saved_models.loading.load_classifier` reads, a keras.Model, or a
            callable from images [N, H, W, C] to scores [N, classes]. By default it takes float32 in [0, 1]; whether it returns logits
            or probabilities is determined by their sums.
        data: a name as on the command line, such as "cifar10", the path of a folder of images (one subfolder per class), arrays
            (images, labels), or a tf.data.Dataset of (image, label); an endless one needs a subset. Their pixel scale is 0..255 for
            integers and 0..1 for floats, unless data_range="0,255" or "mean=M,M,M std=S,S,S" says otherwise; labels are class indices,
            one-hot or class names. None: the data in the card of a model of this package.
        validation_data: images that calibrate, abstain_accuracy and conformal are fitted on, as `data` in memory; None: the validation
            split of the data, or the images that a model of this package was not trained on, by its card.
        **arguments: flags by name, such as evaluations="clean,corruptions", subset=1000, and the interface of the model if it differs
            from the default: input_range="0,255", outputs="probabilities", input_size=224, signature="serving" (of a SavedModel).
            shifts and ood may be {name: arrays or Dataset}, and surrogate a keras.Model or a callable. classes="present" ignores the
            outputs of classes that the data do not have.

    Raises:
        ValueError: a flag that does not exist or has no effect, or an invalid value; the model does not suit the images.
    """
    arguments, given = _named_data(_data_of_card(model) if data is None else data, renamed(arguments))
    surrogate, further = arguments.get("surrogate", ""), {name: arguments.get(name, ()) for name in ("shifts", "ood")}
    if not isinstance(surrogate, (str, os.PathLike)):
        arguments["surrogate"] = "the model in memory"
    arguments |= {name: tuple(sets) if isinstance(sets, Mapping) else sets for name, sets in further.items()}
    run, values = run_of(arguments)
    eval_config = run.eval_config
    used = {*_DATA, *eval_config.used, *hyperparameters.parameters(loading.ModelInterface)}
    check_used(
        arguments,
        {*used, *_TRAINING_DATA, "seeds"} if eval_config.needs_training_set else used,
        f"the evaluations {', '.join(eval_config.evaluations)}",
    )
    if validation_data is not None and not eval_config.needs_validation_set:
        raise ValueError("Expected calibrate, abstain_accuracy or conformal, which are fitted on validation_data. Received: none of them")
    if eval_config.needs_training_set:
        run, values = run_of({**_trained_on(model, arguments["data"]), **arguments})
    predict, evaluation_data = _model_and_data(model, given, run, values)
    if not isinstance(surrogate, (str, os.PathLike)):
        evaluation_data = dataclasses.replace(evaluation_data, surrogate=surrogate)
    classes = _classes(evaluation_data, predict)
    in_memory = {
        name: {
            one: dataclasses.replace(_in_memory(images, run, **(classes if name == "shifts" else {})), name=one)
            for one, images in sets.items()
        }
        for name, sets in further.items()
        if isinstance(sets, Mapping)
    }
    validation = None if validation_data is None else _in_memory(validation_data, run, **classes)
    evaluation_data = dataclasses.replace(
        evaluation_data,
        shift_images=in_memory.get("shifts", {}),
        ood_images=in_memory.get("ood", {}),
        validation_images=validation,
    )
    row, folder = _name_of(model, predict), tempfile.TemporaryDirectory()
    done = model_evaluation.evaluate(
        predict,
        evaluation_data,
        folder.name,
        row=row,
        saved_model=predict.path,
        split_chosen="evaluation_split" in arguments,
        model_name=row,
        log=lambda _: None,
    )
    for note in done.content.get("notes", ()):
        print_note(f"{note}.")
    return Result(folder.name, done.content, done.classifier, folder)


@with_python_errors
def harden(
    model: Model,
    data: Data | None = None,
    *,
    folder: str = "",
    validation_data: Data | None = None,
    test_data: Data | None = None,
    **arguments,
) -> Hardened:
    """Makes a model more robust by a search among short fine-tunings, and proves it on test images never used before.

    Args:
        model: a Keras model, its file, or `zoo:NAME`; a keras.Model in memory is not changed.
        data: as in `evaluate`; one set without splits is divided 70/15/15.
        folder: of trials and evaluations, from which an interrupted search resumes; empty: a temporary one.
        validation_data: images to choose on, as `data` in memory; None: a part of data.
        test_data: images of the proof, as `data` in memory; None: a part of data.
        **arguments: flags by name: target="corruptions", max_clean_loss=0.01, budget="30m", seeds=0; evaluations of the proof; and the
            interface of the model.

    Returns:
        `Hardened`: `.model`, `.notes` on the choice, `.sentences` on what got worse and better, `.values` {measure: (before, after)},
        `.save(path)` and `.report(path)`.

    Raises:
        ValueError: a flag that does not exist, or an invalid value; the model cannot be trained or is near chance.
    """
    arguments, given = _named_data(_data_of_card(model) if data is None else data, renamed(arguments))
    run, values = run_of({"evaluations": HARDENING_EVALUATIONS, **arguments})
    used = {*_DATA, *run.eval_config.used, *hyperparameters.parameters(loading.ModelInterface), *hyperparameters.parameters(HardenConfig)}
    used.discard("per_image")
    check_used(arguments, {*used, "train_examples", "seeds", "validation_fraction"}, "hardening")
    if isinstance(model, (str, os.PathLike)):
        check_format(model)
    if isinstance(model, loading.Classifier) and isinstance(model.loaded, keras.Model):  # the search changes its weights
        exists = os.path.exists(model.path) or model.path.partition(":")[0] in formats.prefixes()
        model = (
            loading.load_classifier(model.path, model.interface) if exists else loading.classifier_of(_copy(model.loaded), model.interface)
        )
    copied = _copy(model) if isinstance(model, keras.Model) else model
    classifier, evaluation_data = _model_and_data(copied, given, run, values)
    config = HardenConfig(**values_of(values, HardenConfig))
    held_out = [
        None if one is None else _in_memory(one, run, **_classes(evaluation_data, classifier)) for one in (validation_data, test_data)
    ]
    temporary = None if folder else tempfile.TemporaryDirectory()
    used_folder = temporary.name if temporary else folder
    validation, test = held_out
    return hardening_run.harden(classifier, evaluation_data, config, used_folder, validation=validation, test=test, temporary=temporary)


@with_python_errors
def images(count: int, **arguments) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first images of a data set, of all classes, and their labels: float32 [N, H, W, C] in [0, 1] and int64 [N].

    Args:
        count: number of images.
        **arguments: flags by name, such as data="cifar10", evaluation_split="validation".

    Raises:
        ValueError: a flag that does not exist or has no effect, or an invalid value.
    """
    if count < 1:
        raise ValueError(f"Expected count >= 1. Received: {count}")
    arguments = renamed(arguments)
    run, _ = run_of(arguments)
    check_used(arguments, {*_DATA, "evaluation_split", "subset"}, "reading images")
    source = run.data().evaluation_source()
    if count > len(source):
        print_note(f"{source.name} ({source.split}) has {len(source)} images, fewer than {count}.")
    return evaluation.first_images(source, count)


@with_python_errors
def attack(
    model: Model,
    images: ArrayLike,
    labels: ArrayLike,
    name: str = "pgd",
    *,
    data_range: str = "",
    return_success: bool = False,
    **settings,
) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
    """Returns attacked images, of the shape, the pixel scale and the type of the images.

    Args:
        model: as in `evaluate`.
        images: [N, H, W, C], integers or floats.
        labels: int [N].
        name: one of `attacks.ATTACKS`.
        data_range: pixel scale of the images, as in `evaluate`; empty: 0..255 for integers, to which attacked images are rounded, and 0..1
            for floats.
        return_success: also return bool [N], whether the model misclassifies the returned images.
        **settings: arguments of the attack, such as norm="l2", radius=0.5, and the interface of the model, as in `evaluate`. The radius is
            on the [0, 1] pixel scale, whatever `data_range` is; with a list of R radii the results are [R, N, H, W, C] and [R, N].

    Raises:
        ValueError: unknown attack or argument; images of another pixel scale than `data_range`; another pixel scale than the declared one
            clearly suits the model better.
    """
    known, of_model = attacks.options(name), hyperparameters.parameters(loading.ModelInterface).keys()
    for one in settings.keys() - known - of_model:
        raise unknown(f"argument of the attack {name}", one, known | of_model)
    interface = values_of(run_of({one: settings.pop(one) for one in of_model & settings.keys()})[1], loading.ModelInterface)
    radii = settings.get("radius")
    each = [settings] if radii is None else [{**settings, "radius": float(radius)} for radius in np.ravel(radii)]
    attackers = [attacks.ATTACKS[name](**arguments) for arguments in each]
    classify = _classifier(model, loading.ModelInterface(**interface))
    given, classes = np.asarray(images), np.asarray(labels)
    unit = data.unit_images(given, data_range, "the attack")
    classify = classify.with_known_outputs(unit[:IMAGES_FOR_OUTPUTS])
    if classes.shape == (len(given),) and classes.dtype.kind in "iu":  # else the attack names what is wrong
        classify = with_fitting_range(with_checked_batches(classify, unit[:IMAGES_FOR_OUTPUTS]), unit, classes)
        wrong = int(np.sum(input_check.logits_of(classify, unit).argmax(axis=1) != classes))
        if 2 * wrong > len(given):
            print_note(
                f"{wrong} of {len(given)} images are misclassified before the attack, which leaves them unchanged. "
                "Check the labels and the pixel scale"
            )
        if name != "square":
            for message in auto_attack.model_warnings(classify, unit[:IMAGES_FOR_OUTPUTS], classes[:IMAGES_FOR_OUTPUTS]):
                print_note(message)
    results = [_attacked(attacker, classify, given, unit, labels, data_range or data.default_range(given)) for attacker in attackers]
    images_and_success = tuple(tf.constant(np.stack(parts) if np.ndim(radii) else parts[0]) for parts in zip(*results))
    return images_and_success if return_success else images_and_success[0]


def _attacked(attacker, classify, given, unit, labels, data_range):
    """(attacked images [N, H, W, C], an array like `given`, whose values on the [0, 1] scale are `unit`; bool [N]: misclassified)."""
    scale, offset = (np.array(part) for part in pixel_scale.affine(data_range, "--data_range"))
    if data_range == data.default_range(given):
        attacked = attacker(classify, given, labels).numpy()
    else:
        if given.dtype.kind in "iu":
            attacker.check_level(1 / float(scale.max()))
        values = attacker(classify, unit, labels).numpy()
        attacked = np.where(values == unit, given, values * scale + offset)
        attacked = (np.round(attacked) if given.dtype.kind in "iu" else attacked).astype(given.dtype)
    logits = input_check.logits_of(classify, np.clip((attacked - offset) / scale, 0, 1).astype(np.float32))
    return attacked, logits.argmax(axis=1) != np.asarray(labels)


def charts(*results: Result, baseline: str | None = None) -> list[report.Chart]:
    """Returns the charts of a comparison, which notebooks display.

    Args:
        *results: runs to compare.
        baseline: row to compare with.
    """
    evaluations = [result.evaluation for result in results]
    return report_charts.of_table(report.aggregate(evaluations, baseline=baseline))


def frame(*results: Result) -> pandas.DataFrame:
    """Returns a table with one row per run and measure.

    Args:
        *results: runs to compare.
    """
    return report.to_frame([result.evaluation for result in results])


def _classifier(model, interface):
    """The `loading.Classifier` of a path, a keras.Model or another callable."""
    if isinstance(model, (str, os.PathLike)):
        if is_url(os.fspath(model)):
            raise ValueError(f"Expected a model on this machine. Received: {model}. Try: tf-robust evaluate {model}, which fetches it")
        return loading.load_classifier(model, interface)
    if not isinstance(model, loading.Classifier):
        return loading.classifier_of(model, interface)
    if interface != loading.ModelInterface():
        raise ValueError(
            f"Expected no input_range, outputs, signature or input_size for a loaded model, which already has them. Received: "
            f"{interface}. Try: its path, {model.path}"
        )
    return model


def _copy(model):
    """A Keras model with the same layers, weights, losses and metrics, so that the given one does not change."""
    try:
        copied = keras.models.clone_model(model)
        copied.set_weights(model.get_weights())
    except (ValueError, TypeError, NotImplementedError) as error:
        reason = " ".join(str(error).split())[-200:]
        raise ValueError(
            f"Expected a model that Keras can copy. Received: {model.name} (... {reason}). Try: get_config and from_config in its custom "
            "classes; or a SavedModel, written by model.export(DIR)"
        ) from error
    return compile_like(copied, model)


def _card_of(model):
    """The card of a model of this package, of its path or of a run; {}: it has none."""
    if isinstance(model, (str, os.PathLike)):
        return read_card(os.fspath(model)) or read_card(os.path.join(model, "saved_model"))  # of a run
    return getattr(model, "card", {})


def _trained_on(model, name):
    """{"train_examples": number of training images of a model, by its card}, if they are of the named data; their deviations scale NUN."""
    card = _card_of(model)
    flags = card.get("flags")
    chosen = flags.get("train_examples") if isinstance(flags, dict) and is_same_data(str(card.get("data", "")), name) else None
    return {} if chosen is None else {"train_examples": chosen}


def _data_of_card(model):
    """The name of the data that a model was trained on, by its card."""
    card = _card_of(model)
    if card.get("data", "") in ("", *_IN_MEMORY):
        raise ValueError(f"Expected data, as there is no card of {model} that names any. Received: none. Try: data=(images, labels)")
    return str(card["data"])


def _named_data(given, arguments):
    """(arguments with a name for the data, the data by that name or in memory)."""
    given = data_of(given) if isinstance(given, str | os.PathLike) else given
    name = given if isinstance(given, str) else _IN_MEMORY[isinstance(given, tf.data.Dataset)]
    return {**arguments, "data": name}, given


def _model_and_data(model, given, run, values):
    """(the classifier, the evaluation's data) of a model and data by name or in memory."""
    classifier = _classifier(model, loading.ModelInterface(**values_of(values, loading.ModelInterface)))
    evaluation_data = run.data()
    if not isinstance(given, str):
        evaluation_data = dataclasses.replace(evaluation_data, images=_in_memory(given, run, num_classes=classifier.num_classes or 0))
    return classifier, evaluation_data


def _classes(evaluation_data, predict):
    """Arguments of `_in_memory` for further images: the classes of the evaluated images in memory, or else of the model."""
    class_names = () if evaluation_data.images is None else evaluation_data.images.class_names
    return {"class_names": class_names, "num_classes": predict.num_classes or 0}


def _in_memory(given, run, class_names=(), num_classes=0):
    """The source of arrays or a Dataset."""
    options = {"data_range": run.data_config.data_range, "class_names": class_names, "num_classes": num_classes}
    if isinstance(given, tf.data.Dataset):
        if given.cardinality() == tf.data.INFINITE_CARDINALITY and run.eval_config.subset:
            print_note(f"the dataset is endless: evaluated on its first {run.eval_config.subset} examples, in their order.")
        return data.from_dataset(given, limit=run.eval_config.subset, **options)
    if isinstance(given, (tuple, list)) and len(given) == 2:
        return data.from_arrays(*given, **options)
    if isinstance(given, (str, os.PathLike)):
        raise ValueError(
            f"Expected arrays (images, labels) or a tf.data.Dataset of further images. Received: {os.fspath(given)!r}. Try: "
            "data=DIR, a folder with the subfolders train, validation and test"
        )
    raise ValueError(
        f"Expected data as a name, arrays (images, labels) or a tf.data.Dataset. Received: {type(given).__name__}. "
        "Try: data=(images, labels)"
    )


def _name_of(model, predict):
    """The name of a model in tables: of its file, its Keras name, or that of its function."""
    if isinstance(model, (str, os.PathLike)) or os.path.exists(predict.path):
        return row_name(predict.path)
    return str(getattr(model, "name", None) or getattr(model, "__name__", None) or type(model).__name__)
