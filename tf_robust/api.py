"""Training, evaluation, attacks, hardening and comparison in Python.

    from tf_robust import api
    result = api.train("runs/fcl", data="synthetic_digits", method="fcl", fcl_k=20, epochs=5)
    result.values["un"], api.evaluate(result.model, evaluations="clean,corruptions", subset=500)
    api.compare(api.train("runs/xe", epochs=5), result).frame()

Keyword arguments are the fields of the configurations: `DataConfig`, `TrainConfig`, `EvalConfig`, `HardenConfig`, `ModelInterface`.
"""

import dataclasses
import os
import tempfile
import typing
from collections.abc import Callable, Mapping, Sequence

import keras
import numpy as np
import pandas
import tensorflow as tf
from numpy.typing import ArrayLike

from tf_robust import attacks, data, evaluation, exporter, report
from tf_robust.attacks.attack import at_radii
from tf_robust.configs import DataConfig
from tf_robust.conversion import converted
from tf_robust.data.kinds import data_of
from tf_robust.evaluation import EvalConfig, adversarial, model_evaluation
from tf_robust.evaluation.evaluation_data import EvaluationData, is_same_data
from tf_robust.evaluation.model_evaluation import IMAGES_FOR_OUTPUTS, with_checked_batches, with_fitting_range, with_gradients
from tf_robust.hardening import harden as hardening
from tf_robust.hardening.config import EVALUATIONS as HARDENING_EVALUATIONS
from tf_robust.hardening.config import HardenConfig, evaluations_of
from tf_robust.hardening.result import Hardened
from tf_robust.hardening.trainable import check_format
from tf_robust.ops import pixel_scale
from tf_robust.runs.config import run_config
from tf_robust.runs.results import Comparison, Result, compare
from tf_robust.runs.run import Run
from tf_robust.runs.workdir import row_name
from tf_robust.saved_models import formats as saved_formats
from tf_robust.saved_models import input_check, loading, zoo
from tf_robust.saved_models.formats.keras_files import compile_like
from tf_robust.saved_models.interface import read_card
from tf_robust.saved_models.loading import ModelInterface
from tf_robust.utils.errors import unknown
from tf_robust.utils.files import is_url
from tf_robust.utils.hyperparameters import parameters, read
from tf_robust.utils.progress import print_note

__all__ = [
    "Comparison",
    "Hardened",
    "Model",
    "Result",
    "attack",
    "charts",
    "compare",
    "evaluate",
    "export",
    "frame",
    "harden",
    "images",
    "load",
    "train",
]


Model: typing.TypeAlias = str | os.PathLike | keras.Model | Callable  # path, model or callable: images [N, H, W, C] -> scores [N, classes]
_IN_MEMORY = ("arrays", "dataset")  # names of data in memory
Data: typing.TypeAlias = str | os.PathLike | tuple[ArrayLike, ArrayLike] | tf.data.Dataset  # name or path, (images, labels), or pairs


def train(folder: str, *, seed: int = 0, **arguments) -> Result:
    """Trains, exports and evaluates one run, unless the folder already has its results.

    Args:
        folder: workdir of the run.
        seed: of the run.
        **arguments: fields of `DataConfig`, `TrainConfig` and `EvalConfig`; hyperparameters of all methods; and those of the chosen method,
            augmentations and views with their names as prefixes: method="fcl", fcl_k=20.

    Raises:
        ValueError: an argument that does not exist, or an invalid value; the workdir has a run with other arguments.

    Examples:
        >>> settings = {"data": "digits", "method": "gaussian", "epochs": 3}
        >>> result = tfr.train("runs/noisy", evaluations="clean,noise", **settings)  # doctest: +SKIP
        >>> round(result.values["clean"], 2), round(result.values["un"], 2)  # doctest: +SKIP
        (0.91, 0.87)
    """
    if is_url(folder):
        raise ValueError(f"Expected a local folder. Received: {folder}. Try: tf-robust train --workdir={folder}")
    arguments = _with_data_names(arguments)
    config = run_config(arguments)
    for name in sorted(arguments.keys() - config.parameters.keys()):
        config.evaluation.check_used([name])
        raise unknown(f"argument of training with the method {config.train.method!r}", name, config.parameters)
    content = Run(config, os.path.basename(os.path.abspath(folder)), seed).complete(folder)
    if content is None:
        raise ValueError("Expected the chief worker. Received: another worker, which has no results")
    return Result(folder, {name: value for name, value in content.items() if name != "measured_in"})  # which is the folder


def evaluate(model: Model, data: Data | None = None, *, validation_data: Data | None = None, seed: int = 0, **arguments) -> Result:
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
        seed: of the run that trained the model, which selects a fraction of its labels.
        **arguments: fields of `DataConfig` and `EvalConfig`, such as evaluations="clean,corruptions", subset=1000, and of `ModelInterface`
            if the model's differs from the default: input_range="0,255", outputs="probabilities", input_size=224, signature="serving" (of
            a SavedModel).
            shifts and ood may be {name: arrays or Dataset}, and surrogate a keras.Model or a callable. classes="present" ignores the
            outputs of classes that the data do not have.

    Raises:
        ValueError: an argument that does not exist, or an invalid value; the model does not suit the images.

    Examples:
        >>> result = tfr.evaluate("zoo:digits/lenet_augmix", evaluations="clean,calibration", subset=100)
        >>> round(result.values["clean"], 2), round(result.values["calibration/rms"], 2)
        (0.97, 0.02)
        >>> images, labels = tfr.images(100, data="digits")  # arrays in place of a name
        >>> network = tfr.load("zoo:digits/lenet_cross_entropy")
        >>> round(tfr.evaluate(network, data=(images, labels), evaluations="clean").values["clean"], 2)
        0.98
    """
    given, arguments = _data_of_card(model) if data is None else data, dict(arguments)
    in_memory = {name: arguments[name] for name in ("shifts", "ood") if isinstance(arguments.get(name), Mapping)}
    arguments |= {name: tuple(sets) for name, sets in in_memory.items()}
    surrogate = arguments.get("surrogate", "")
    if not isinstance(surrogate, (str, os.PathLike)):
        in_memory["surrogate"], arguments["surrogate"] = surrogate, "the model in memory"
    predict, evaluation_data = _model_and_data(model, given, seed, arguments)
    if validation_data is not None and not evaluation_data.eval_config.needs_validation_set:
        raise ValueError("Expected calibrate, abstain_accuracy or conformal, which are fitted on validation_data. Received: none of them")
    if in_memory or validation_data is not None:
        classes = _classes(evaluation_data, predict)
        shift_images = {name: _in_memory(images, evaluation_data, **classes) for name, images in in_memory.get("shifts", {}).items()}
        ood_images = {name: _in_memory(images, evaluation_data) for name, images in in_memory.get("ood", {}).items()}
        evaluation_data = dataclasses.replace(
            evaluation_data,
            surrogate=in_memory.get("surrogate"),
            shift_images={name: dataclasses.replace(one, name=name) for name, one in shift_images.items()},
            ood_images={name: dataclasses.replace(one, name=name) for name, one in ood_images.items()},
            validation_images=None if validation_data is None else _in_memory(validation_data, evaluation_data, **classes),
        )
    row, folder = _name_of(model, predict), tempfile.TemporaryDirectory()
    done = model_evaluation.evaluate_model(
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


def harden(
    model: Model,
    data: Data | None = None,
    *,
    folder: str = "",
    validation_data: Data | None = None,
    test_data: Data | None = None,
    seed: int = 0,
    **arguments,
) -> Hardened:
    """Makes a model more robust by a search among short fine-tunings, and evaluates it on test images that the search never used.

    Args:
        model: a Keras model, its file, or `zoo:NAME`; an ONNX, TorchScript or `.pt2` file or a `torch.nn.Module`, which is converted. A
            model in memory is not changed.
        data: as in `evaluate`; one set without splits is divided 70/15/15.
        folder: of trials and evaluations, from which an interrupted search resumes; empty: a temporary one.
        validation_data: images to choose on, as `data` in memory; None: a part of data.
        test_data: images of the final evaluation, as `data` in memory; None: a part of data.
        seed: of the trainings of the search.
        **arguments: fields of `HardenConfig`, `DataConfig`, `EvalConfig` (of the final evaluation) and `ModelInterface`:
            target="corruptions", max_clean_loss=0.01, budget="30m", ...

    Returns:
        `Hardened`: `.model`, `.notes` on the choice, `.sentences` on what got worse and better, `.values` {metric: (before, after)},
        `.save(path)`, of a converted model also to `.onnx` and `.pt`, and `.report(path)`; `.module` of a `torch.nn.Module`.

    Raises:
        ValueError: an argument that does not exist, or an invalid value; the model cannot be trained or is near chance.

    Examples:
        >>> settings = {"target": "adversarial", "attack_radius": 0.1, "attack": "pgd", "attack_radii": "linf_0.1"}
        >>> hardened = tfr.harden("zoo:digits/lenet_cross_entropy", budget="400steps", evaluations="clean", **settings)  # doctest: +SKIP
        >>> [round(value, 2) for value in hardened.values["clean"]]  # doctest: +SKIP
        [0.97, 0.98]
        >>> [round(value, 2) for value in hardened.values["robust/pgd/linf_0.1"]]  # doctest: +SKIP
        [0.52, 0.82]
        >>> hardened.save("robust.keras")  # doctest: +SKIP
        'robust.keras'
    """
    given, arguments = _data_of_card(model) if data is None else data, {"evaluations": HARDENING_EVALUATIONS, **arguments}
    config = HardenConfig(**{name: arguments.pop(name) for name in parameters(HardenConfig) if name in arguments})
    if isinstance(model, (str, os.PathLike)):
        check_format(model)
    # the search changes the weights
    if isinstance(model, keras.Model):
        model = _copy(model)
    elif isinstance(model, loading.Classifier) and isinstance(model.loaded, keras.Model):
        if os.path.exists(model.path) or model.path.partition(":")[0] in saved_formats.prefixes():
            model = loading.load_classifier(model.path, model.interface)
        else:
            model = loading.classifier_of(_copy(model.loaded), model.interface)
    classifier, evaluation_data = _model_and_data(model, given, seed, arguments, evaluations_of(config.target))
    validation, test = (
        None if one is None else _in_memory(one, evaluation_data, **_classes(evaluation_data, classifier))
        for one in (validation_data, test_data)
    )
    temporary = None if folder else tempfile.TemporaryDirectory()
    folder = temporary.name if temporary else folder
    return hardening.harden(classifier, evaluation_data, config, folder, validation=validation, test=test, temporary=temporary, log=print)


def export(
    model: Model,
    folder: str,
    formats: str | Sequence[str],
    data: Data | None = None,
    *,
    unit_range: bool = False,
    logits: bool = False,
    **arguments,
) -> dict[str, str]:
    """Writes a model in formats of deployment, each with a card, and compares the outputs of the files with those of the model.

    Args:
        model: as in `evaluate`; a model of ONNX or PyTorch is converted to Keras first.
        folder: of the files.
        formats: names of `saved_models.formats.files()`: savedmodel, keras, tflite, tflite_float16, tflite_int8, onnx.
        data: as in `evaluate`, to compare the outputs on. Ranges of integers (tflite_int8) are found on the training images; of data in
            memory on the given images, so evaluate the file on others.
        unit_range: the files take images in [0, 1], whatever the model takes.
        logits: the files return logits, also of a model that returns probabilities.
        **arguments: fields of `DataConfig` and `ModelInterface`.

    Returns:
        {format: path of the file}

    Raises:
        ValueError: an unknown format or argument; the model cannot be converted, or the outputs of a file are wrong.

    Examples:
        >>> images, labels = tfr.images(100, data="digits")
        >>> files = tfr.export("zoo:digits/lenet_augmix", "deployed", ["keras"], data=(images, labels))
        The files take float32 images on the pixel scale 0,1 and return logits.
        keras           deployed/model.keras  ...
        >>> files
        {'keras': 'deployed/model.keras'}
    """
    names = formats.split(",") if isinstance(formats, str) else [*formats]
    for name in names:
        if name not in saved_formats.files():
            raise unknown("format", name, saved_formats.files())
    given = _data_of_card(model) if data is None else data
    classifier, evaluation_data = _model_and_data(model, given, 0, {"evaluations": "clean", **arguments})
    saved_formats.check_convertible(classifier.path)
    writer = exporter.Exporter(classifier, evaluation_data, "evaluation_split" in arguments, unit_range=unit_range, logits=logits)
    return {name: writer.export(name, folder) for name in names}


def images(count: int, **arguments) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first images of a data set, of all classes, and their labels: float32 [N, H, W, C] in [0, 1] and int64 [N].

    Args:
        count: number of images.
        **arguments: fields of `DataConfig`, and evaluation_split and subset: data="cifar10", evaluation_split="validation".

    Raises:
        ValueError: an argument that does not exist, or an invalid value.

    Examples:
        >>> images, labels = tfr.images(20, data="digits")
        >>> images.shape, images.dtype, labels[:5]
        ((20, 28, 28, 1), dtype('float32'), array([3, 4, 5, 6, 0]))
    """
    if count < 1:
        raise ValueError(f"Expected count >= 1. Received: {count}")
    chosen: dict[str, typing.Any] = {name: arguments.pop(name) for name in ("evaluation_split", "subset") if name in arguments}
    (config,), (eval_config,) = read(_with_data_names(arguments), DataConfig), read(chosen, EvalConfig)
    source = EvaluationData(config, eval_config).evaluation_source()
    if count > len(source):
        print_note(f"{source.name} ({source.split}) has {len(source)} images, fewer than {count}.")
    return evaluation.first_images(source, count)


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

    Examples:
        >>> images, labels = tfr.images(20, data="digits")
        >>> model, settings = "zoo:digits/lenet_augmix", {"norm": "linf", "radius": 0.1}
        >>> attacked, success = tfr.attack(model, images, labels, "fgsm", return_success=True, **settings)
        >>> round(float(np.abs(attacked - images).max()), 3), int(np.sum(success))
        (0.1, 4)
    """
    known, of_model = attacks.options(name), parameters(ModelInterface).keys()
    for one in settings.keys() - known - of_model:
        raise unknown(f"argument of the attack {name}", one, known | of_model)
    interface = _interface({one: settings.pop(one) for one in of_model & settings.keys()})
    radii = settings.pop("radius", None)
    attack: Callable = attacks.ATTACKS[name]
    attackers = [attack(**settings)] if radii is None else at_radii(attack, map(float, np.ravel(radii)), **settings)
    classify = _classifier(model, interface)
    given, classes = np.asarray(images), np.asarray(labels)
    unit = data.unit_images(given, data_range, "the attack")
    classify = classify.with_known_outputs(unit[:IMAGES_FOR_OUTPUTS])
    if name != "square":
        classify, _ = with_gradients(classify, unit[: loading.COMPARED])
    if classes.shape == (len(given),) and classes.dtype.kind in "iu":  # else the attack names what is wrong
        classify = with_fitting_range(with_checked_batches(classify, unit[:IMAGES_FOR_OUTPUTS]), unit, classes)
        wrong = int(np.sum(input_check.in_batches(classify, unit).argmax(axis=1) != classes))
        if 2 * wrong > len(given):
            print_note(
                f"{wrong} of {len(given)} images are misclassified before the attack, which leaves them unchanged. "
                "Check the labels and the pixel scale"
            )
        if name != "square":
            for message in adversarial.model_warnings(classify, unit[:IMAGES_FOR_OUTPUTS], classes[:IMAGES_FOR_OUTPUTS]):
                print_note(message)
    results = [_attacked(attacker, classify, given, unit, labels, data_range or data.default_range(given)) for attacker in attackers]
    images_and_success = tuple(tf.constant(np.stack(parts) if np.ndim(radii) else parts[0]) for parts in zip(*results))
    return images_and_success if return_success else images_and_success[0]


def _attacked(attacker, classify, given, unit, labels, data_range):
    """(attacked images [N, H, W, C], an array like `given`, whose values on the [0, 1] scale are `unit`; bool [N]: misclassified)."""
    scale, offset = (np.array(part) for part in pixel_scale.affine(data_range, "data_range"))
    if data_range == data.default_range(given):
        attacked = attacker(classify, given, labels).numpy()
    else:
        if given.dtype.kind in "iu":
            attacker.check_level(1 / float(scale.max()))
        values = attacker(classify, unit, labels).numpy()
        attacked = np.where(values == unit, given, values * scale + offset)
        attacked = (np.round(attacked) if given.dtype.kind in "iu" else attacked).astype(given.dtype)
    logits = input_check.in_batches(classify, np.clip((attacked - offset) / scale, 0, 1).astype(np.float32))
    return attacked, logits.argmax(axis=1) != np.asarray(labels)


def charts(*results: Result, baseline: str | None = None) -> list["report.Chart"]:
    """Returns the charts of a comparison, which notebooks display.

    Args:
        *results: runs to compare.
        baseline: row to compare with.

    Examples:
        >>> result = tfr.evaluate("zoo:digits/lenet_augmix", evaluations="clean", subset=100)
        >>> [chart.name for chart in tfr.charts(result)]
        ['comparison']
    """
    from tf_robust.report import charts as report_charts  # imports altair, which takes more than half a second

    evaluations = [result.evaluation for result in results]
    return report_charts.of_table(report.aggregate(evaluations, baseline=baseline))


def frame(*results: Result) -> pandas.DataFrame:
    """Returns a table with one row per run and metric.

    Args:
        *results: runs to compare.

    Examples:
        >>> result = tfr.evaluate("zoo:digits/lenet_augmix", evaluations="clean", subset=100)
        >>> tfr.frame(result)[["row", "metric", "value", "count"]]
                    row           metric  value  count
        0  lenet_augmix            clean   0.97    100
        1  lenet_augmix  clean/per_class   0.97    100
    """
    return report.to_frame([result.evaluation for result in results])


def load(
    model: str | os.PathLike | typing.Any, *, trainable: bool = False, image_size: tuple[int, int] | None = None
) -> keras.Model | loading.Classifier:
    """Loads a model: one to evaluate, or a Keras model to train, also from ONNX and PyTorch.

    Args:
        model: name of a pretrained model (`saved_models.zoo.names()`), or path of a model of any format; with `trainable` also a
            `torch.nn.Module`.
        trainable: whether a file of ONNX (`.onnx`) or, with the extra `torch`, PyTorch (`.pt` of TorchScript, `.pt2`) is converted to a
            Keras model, which takes floats [N, H, W, C] on the file's own pixel scale and returns what the file returns.
        image_size: height and width of the images, for a PyTorch model or a file of any size.

    Returns:
        A Keras model: a pretrained one, with "logits" and "embedding", or a trainable one; else a `Classifier`, from images in [0, 1] to
        logits. `conversion.converted.converted` writes the weights of a converted model back.

    Raises:
        ValueError: the name is unknown, or the model cannot be loaded or converted; the message names the node.

    Examples:
        >>> network = tfr.load("zoo:digits/lenet_augmix")
        >>> images, labels = tfr.images(20, data="digits")
        >>> predictions = np.argmax(network(images)["logits"], axis=1)
        >>> float(np.mean(predictions == labels))
        1.0
    """
    is_path = isinstance(model, (str, os.PathLike))
    if is_path and os.fspath(model).removeprefix("zoo:") in zoo.names():
        return zoo.load(os.fspath(model).removeprefix("zoo:"))
    if is_path and saved_formats.format_of(model) is None and not saved_formats.is_function(model):
        return zoo.load(os.fspath(model))
    if not trainable:
        return _classifier(model, ModelInterface())
    read_by = saved_formats.format_of(model) if is_path else None
    if not is_path or read_by and read_by.converted:
        return converted.convert(model, image_size).model
    loaded = _classifier(model, ModelInterface()).loaded
    if not isinstance(loaded, keras.Model):
        raise ValueError(f"Expected a model of Keras, ONNX or PyTorch with trainable=True. Received: {model}")
    return loaded


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
    converted.copy_origin(model, copied)
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
    return {} if chosen is None else {"train_examples": int(chosen)}


def _data_of_card(model):
    """The name of the data that a model was trained on, by its card."""
    card = _card_of(model)
    if card.get("data", "") in ("", *_IN_MEMORY):
        raise ValueError(f"Expected data, as there is no card of {model} that names any. Received: none. Try: data=(images, labels)")
    return str(card["data"])


def _with_data_names(arguments):
    """Arguments with names of data sets in place of paths of existing ones."""
    if not isinstance(arguments.get("data", ""), (str, os.PathLike)):
        raise ValueError(f"Expected the name of a data set. Received: {type(arguments['data']).__name__}. Try: npz:FILE or folder:DIR")
    named = {"data": data_of(arguments["data"])} if "data" in arguments else {}
    for name in arguments.keys() & {"shifts", "ood"}:
        given = arguments[name]
        paths = given.split(",") if isinstance(given, str) else [given] if isinstance(given, os.PathLike) else given
        named[name] = tuple(map(data_of, paths))
    return {**arguments, **named}


def _interface(arguments):
    """The interface of a model."""
    if isinstance(arguments.get("input_range"), (tuple, list)):  # as of methods
        arguments = {**arguments, "input_range": ",".join(f"{value:g}" for value in arguments["input_range"])}
    return read(arguments, ModelInterface)[0]


def _model_and_data(model, given, seed, arguments, further=()):
    """(the classifier, the evaluation's data) of a model, and data by name or in memory; `further` evaluations use options too."""
    interface = _interface({name: arguments[name] for name in parameters(ModelInterface) if name in arguments})
    arguments = {name: value for name, value in arguments.items() if name not in parameters(ModelInterface)}
    given = data_of(given) if isinstance(given, str | os.PathLike) else given
    name = given if isinstance(given, str) else _IN_MEMORY[isinstance(given, tf.data.Dataset)]
    config, eval_config = read(_with_data_names({**arguments, "data": name}), DataConfig, EvalConfig)
    chosen = tuple(dict.fromkeys((*eval_config.evaluations, *further)))
    dataclasses.replace(eval_config, evaluations=chosen).check_used(arguments)
    if eval_config.needs_training_set and "train_examples" not in arguments:
        config = dataclasses.replace(config, **_trained_on(model, name))
    classifier = _classifier(model, interface)
    evaluation_data = EvaluationData(config, eval_config, seed)
    if not isinstance(given, str):
        images = _in_memory(given, evaluation_data, num_classes=classifier.num_classes or 0)
        evaluation_data = dataclasses.replace(evaluation_data, images=images)
    return classifier, evaluation_data


def _classes(evaluation_data, predict):
    """Arguments of `_in_memory` for further images: the classes of the evaluated images in memory, or else of the model."""
    class_names = () if evaluation_data.images is None else evaluation_data.images.class_names
    return {"class_names": class_names, "num_classes": predict.num_classes or 0}


def _in_memory(given, evaluation_data, class_names=(), num_classes=0):
    """The source of arrays or a Dataset."""
    options = {"data_range": evaluation_data.config.data_range, "class_names": class_names, "num_classes": num_classes}
    if isinstance(given, tf.data.Dataset):
        if given.cardinality() == tf.data.INFINITE_CARDINALITY and evaluation_data.eval_config.subset:
            print_note(f"the dataset is endless: evaluated on its first {evaluation_data.eval_config.subset} examples, in their order.")
        return data.from_dataset(given, limit=evaluation_data.eval_config.subset, **options)
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
