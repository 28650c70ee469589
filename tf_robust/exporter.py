"""Writes a model in formats of deployment, each with a card and checked against the model, and evaluates the files side by side."""

import dataclasses
import datetime
import functools
import os
import tempfile
import typing
from collections.abc import Callable, Sequence

import numpy as np

from tf_robust import data, evaluation
from tf_robust.conversion import converted
from tf_robust.data.source import digest
from tf_robust.evaluation import EvalConfig, MetricValue, evaluation_data, model_evaluation
from tf_robust.evaluation.evaluation_data import EvaluationData
from tf_robust.report.evaluated_model import EvaluatedModel
from tf_robust.saved_models import export, latency, loading
from tf_robust.saved_models.formats import FORMATS, check_convertible, files, format_of, keras_files, size
from tf_robust.saved_models.input_check import in_batches
from tf_robust.saved_models.interface import declared_range, read_card
from tf_robust.utils import environment
from tf_robust.utils.files import atomic_folder, read_json, write_json
from tf_robust.utils.progress import print_line, print_note, repeated

CHECKED, CALIBRATION = 100, 300  # images to compare the outputs on, and to find the ranges of integers on
TOLERANCE = 1e-3  # of float32 formats, relative to the largest output
# fields of the model's own card
_CARD = ("title", "method", "model", "data", "classes", "label_set", "trained_on", "division", "seed", "flags", "note", "confidence")
_COMPARED = ("input", "output", "calibration", "confidence")  # fields of the cards of two exports of the same model
_BY_GRADIENT = ("attack_curves", "sensitivity", "utility")  # evaluations


def write_formats(
    model: EvaluatedModel, formats: Sequence[str], folder: str, *, chosen: bool, unit_range: bool, logits: bool
) -> tuple[dict[str, str], dict[str, Exception]]:
    """Writes a model in some of `formats.files` into a folder, where files are replaced, and prints a line for each.

    Args:
        model: to export, and its data; ValueError if it does not suit them or was converted already.
        formats: names of formats.
        folder: of the files.
        chosen: whether the user named the formats; otherwise those that do not apply to this kind of model are left out with a note.
        unit_range: files take images in [0, 1], whatever the model takes.
        logits: files return logits, also of a model that returns probabilities.

    Returns:
        ({format: path}, {format: why it could not be written}).
    """
    exporter = _exporter_of(model, unit_range, logits)
    written: dict[str, str] = {}
    failures: dict[str, Exception] = {}
    for name in dict.fromkeys(formats):
        if not chosen and (reason := exporter.why_not(name)):
            print_note(f"{name} is left out: {reason}.")
            continue
        try:
            written[name] = exporter.export(name, folder)
        except (NotImplementedError, TypeError, ValueError) as error:
            failures[name] = error
    return written, failures


def convert(model: EvaluatedModel, output: str, *, with_data: bool, image_size: tuple[int, int] | None = None) -> converted.Converted:
    """Converts a model of ONNX or PyTorch to a Keras model that can be trained, and writes it with its card.

    Args:
        model: the file, and the images on which the scores of both are compared.
        output: path of the Keras file.
        with_data: whether there are images; else noise is compared, for which the pixel scale of the model is not needed.
        image_size: height and width, without data, of a PyTorch model or a file of any size.

    Raises:
        ValueError: the model cannot be converted, with the node; or its scores differ by more than allowed.
    """
    read_by = format_of(model.path)
    if read_by is None or not read_by.converted:
        raise ValueError(f"Expected a model of ONNX or PyTorch: .onnx, .pt, .pth, .torchscript or .pt2. Received: {model.path}")
    if not output.endswith(FORMATS["keras"].suffixes):
        raise ValueError(f"Expected an output that ends with .keras. Received: {output}")
    entries: dict[str, typing.Any] = {}
    if with_data:
        loaded, _, source = model_evaluation.match_model_and_data(model.load(), model.data, model.split_chosen)
        classifier = loading.as_keras(loaded, evaluation.first_images(source, loading.COMPARED)[0])
        entries = {"input": export.input_card(source, None, classifier.pixel_scale), "output": classifier.interface.outputs}
    else:
        if model.interface.input_range == "auto":
            raise ValueError("Expected data with input_range=auto, which is found on images. Received: none. Try: --data=NAME")
        made = converted.convert(model.path, image_size).model
        classifier = loading.classifier_of(made, model.interface, model.path)
        known = model.interface.input_range or declared_range(classifier.card)
        entries = {"input": {"range": classifier.pixel_scale}} if known else {}
    record: typing.Any = converted.converted(classifier.loaded)
    card = {**entries, "converted_from": model.path, "model_digest": classifier.digest(), "largest_difference": record.difference}
    os.makedirs(os.path.dirname(os.path.abspath(output)), exist_ok=True)
    keras_files.write(classifier.loaded, output, model.path)
    write_json(card_of(output), {**card, "versions": environment.describe(), "date": datetime.date.today().isoformat()})
    return record


def _exporter_of(model: EvaluatedModel, unit_range: bool = False, logits: bool = False) -> "Exporter":
    """Returns the exporter of a model, which is loaded if it can be converted."""
    check_convertible(model.path)
    return Exporter(model.load(), model.data, model.split_chosen, unit_range=unit_range, logits=logits)


class Exporter:
    """Exports one model, and compares the outputs of the files with its own on images of its data.

    `split_chosen`: whether the user chose the split of the data; arguments as in `write_formats`.
    """

    def __init__(
        self, classifier: loading.Classifier, given: EvaluationData, split_chosen: bool, *, unit_range: bool = False, logits: bool = False
    ):
        loaded, self.given, self.source = model_evaluation.match_model_and_data(classifier, given, split_chosen)
        loaded = loading.as_keras(loaded, evaluation.first_images(self.source, loading.COMPARED)[0])
        classifier = self.classifier = loading.without_softmax(loaded) if logits else loaded
        model = self.model = export.Deployable(classifier, tuple(self.source.image_shape), unit_range=unit_range, logits=logits)
        print_line(f"The files take {model.spec.dtype.name} images on the pixel scale {model.input_range} and return {model.output}.")
        self.images = evaluation.stratified_images(self.source, CHECKED)[0]
        self.scores = self.float32_scores = in_batches(model.scores, self.images)
        if model.float32 is not classifier:
            self.float32_scores = in_batches(functools.partial(model.scores, classifier=model.float32), self.images)
            difference = np.abs(self.float32_scores - self.scores).max()
            print_note(
                f"{classifier.path} computes in bfloat16. Formats other than savedmodel compute in float32 with its weights and are "
                f"compared with that network, whose {model.output} differ by up to {difference:.2g} from those in bfloat16."
            )
        self.origin = {
            "exported_from": classifier.path,
            "model_digest": classifier.digest(),
            "interface": classifier.interface.conventions(),
        }

    @functools.cached_property
    def calibration(self) -> np.ndarray:
        """Training images, or those in memory, [N, H, W, C] in [0, 1], for the ranges of integers; ValueError if the data have none."""
        name = self.given.config.data
        if self.given.images is not None:
            return evaluation.stratified_images(self.source, CALIBRATION)[0]
        if not data.has_training(name):
            quantized = ", ".join(one for one, entry in FORMATS.items() if entry.quantized)
            raise ValueError(
                f"Expected training images to calibrate {quantized} on. Received: {name}, which has none. "
                f"Try: a folder with train/, or formats without {quantized}"
            )
        return evaluation.stratified_images(self.given.source("train"), CALIBRATION)[0]

    def why_not(self, name: str) -> str:
        """Returns why a format does not apply to the model and its data; empty if it does."""
        if name == "keras" and (reason := self.model.why_not_keras()):
            return f"{self.classifier.path} is a model {reason}"
        if FORMATS[name].quantized and not data.has_training(self.given.config.data):
            return f"{self.given.config.data} has no training images to calibrate it on"
        return ""

    def export(self, name: str, folder: str, reuse: bool = False) -> str:
        """Writes one format into a folder, prints its difference to the model, and returns its path.

        With `reuse` a file that an earlier export of the same model wrote is kept. Raises ValueError if the model cannot be converted, or
        the outputs of the file are wrong.
        """
        file = FORMATS[name].file
        path, card = os.path.join(folder, file), self._card(name)
        if not (reuse and _has_card_like(path, {**self.origin, **{field: card.get(field) for field in _COMPARED}})):
            os.makedirs(folder, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder, prefix=f"{file}.writing-") as temporary:
                complete = os.path.join(temporary, file)
                calibration = self.calibration if FORMATS[name].quantized else None
                try:
                    with repeated(lambda: f"  writing {name}", print_line):
                        export.write(name, self.model, complete, card, calibration=calibration, fit=self.source.fit)
                    card |= {"check": self._check(name, complete), "bytes": size(complete)}
                except ValueError as error:
                    raise ValueError(str(error).replace(complete, file)) from error  # the file is a temporary one
                if os.path.isdir(complete):
                    export.update_card(complete, **card)
                    with atomic_folder(path) as replacing:
                        os.rename(complete, replacing)
                else:
                    write_json(card_of(complete), card)
                    os.replace(complete, path)  # first: a card of another file would have it taken for the new one
                    os.replace(card_of(complete), card_of(path))
        card = read_json(card_of(path))
        check = card["check"]
        same = f", same class on {check['same_class']:.0%}" if FORMATS[name].quantized else ""
        print_line(
            f"{name:<15} {path}  {card['bytes']:,} bytes, largest difference of the {card['output']} {check['largest_difference']:.2g} "
            f"(up to {check['largest_output']:.3g}){same}"
        )
        return path

    def _card(self, name):
        calibration = None
        if FORMATS[name].quantized:
            fingerprint = digest(np.round(255 * self.calibration).astype(np.uint8))
            split = "train" if self.given.images is None else None
            calibration = {"images": len(self.calibration), "data": self.given.config.data, "split": split, "fingerprint": fingerprint}
        dependence = self.classifier.batch_dependence
        return {
            "classes": list(self.source.class_names),
            "label_set": self.source.label_set,
            **{field: self.classifier.card[field] for field in _CARD if field in self.classifier.card},
            "format": name,
            **self.origin,
            "input": export.input_card(self.source, self.model.spec, self.model.input_range),
            "output": self.model.output,
            **({"batch_dependence": dependence} if dependence else {}),
            "calibration": calibration,
            "versions": {**environment.describe(), **{one: environment.version(one.replace("_", "-")) for one in FORMATS[name].packages}},
            "commit": environment.commit(),
            "date": datetime.date.today().isoformat(),
        }

    def _check(self, name, path):
        """Compares the outputs of a file with those of the model; ValueError if they differ by more than the rounding of the format."""
        given, kind = self.classifier.interface, self.model.output
        interface = loading.ModelInterface(self.model.input_range, kind, input_size=given.input_size, trust=given.trust)
        scores = in_batches(loading.load_classifier(path, interface).scores, self.images)
        expected = self.scores if name == "savedmodel" else self.float32_scores
        largest, difference = float(np.abs(expected).max()), float(np.abs(scores - expected).max())
        if not difference <= (TOLERANCE * largest if FORMATS[name].float32 else np.inf):  # also if it is NaN
            raise ValueError(
                f"Expected {name} to give the {kind} of {self.classifier.path}. Received: a difference of {difference:.3g}, "
                f"with values up to {largest:.3g}. Try: another format; the converter does not compute this model correctly"
            )
        same = float((_classes(scores, kind) == _classes(expected, kind)).mean())
        return {"images": len(self.images), "largest_difference": difference, "largest_output": largest, "same_class": same}


def _classes(scores, kind):
    """The predicted classes of scores [N, classes], or [N, 1] of two classes."""
    return scores.argmax(axis=1) if scores.shape[1] > 1 else (scores[:, 0] > (0.5 if kind == "probabilities" else 0)).astype(int)


def card_of(path: str) -> str:
    """Returns the path of the card of an exported file or folder."""
    return os.path.join(path, "card.json") if os.path.isdir(path) else f"{path}.json"


def _has_card_like(path, entries):
    """Whether there is a file whose card has some entries."""
    if not os.path.exists(path) or not os.path.exists(card_of(path)):
        return False
    card = read_json(card_of(path))
    return all(card.get(field) == value for field, value in entries.items())


def evaluate_formats(
    model: EvaluatedModel,
    formats: Sequence[str],
    folder: str,
    *,
    attack_chosen: bool,
    check: Callable[[str, EvalConfig], object],
) -> list[dict]:
    """Exports a model, and evaluates each file by its own runtime on the same images.

    By default attacks are the same for all formats: Square, and PGD transferred from the model itself, as most formats have no gradients.
    Evaluations that need gradients are left out for a format without them, with a note. The folder gets one for each format, and
    `exported`, whose files of an earlier export of the same model are kept. check: called with each format and its evaluation before
    anything is written, to refuse it.

    Returns the evaluations as in `evaluation.json`, with the folder of their records as "measured_in".
    """
    if (adaptation := model.data.eval_config.adaptation) != "none":
        raise ValueError(
            f"Expected adaptation=none with formats: batch normalization is part of the files. Received: {adaptation}. Try: "
            "the model itself in a folder of its own, and one report of both"
        )
    given = _with_split(_with_attacks(model, attack_chosen), model, formats)
    configs = {name: (given.eval_config, "") if FORMATS[name].gradients else without_gradients(given.eval_config) for name in formats}
    for name, (config, _) in configs.items():
        check(name, config)
    exporter = _exporter_of(model)
    if any(FORMATS[name].quantized for name in formats):
        _ = exporter.calibration  # raises before anything is written
    paths = {name: exporter.export(name, os.path.join(folder, "exported"), reuse=True) for name in configs}
    evaluations = []
    for name, (config, note) in configs.items():
        print_line(f"{name}:")
        if note:
            print_note(f"{name} is {note}.")
        notes = [note] if note else []
        if FORMATS[name].quantized and "adversarial" in config.evaluations and "square" in config.attack:
            notes.append(
                "Square alone can overstate the robustness of integers, whose rounded logits may hide small changes of an image; of the "
                "accuracies under Square and under the transferred attack the lower one counts"
            )
        own = os.path.join(folder, name)
        content = _evaluate(name, paths[name], dataclasses.replace(given, eval_config=config), own, model)
        content |= {"notes": [*content.get("notes", ()), *notes], "exported_from": model.path}
        write_json(os.path.join(own, "evaluation.json"), content)
        evaluations.append({**content, "measured_in": own})
    return evaluations


def _with_split(given: EvaluationData, model: EvaluatedModel, formats: Sequence[str]) -> EvaluationData:
    """Returns data with the split that all formats are evaluated on, and prints a note if the user chose none and the data have none."""
    card = read_card(model.path)
    if not data.has_splits(given.config.data) and given.eval_config.evaluation_split != data.WHOLE:
        given = dataclasses.replace(given, config=evaluation_data.with_validation_of_card(card, model.path, given.config))
    if model.split_chosen:
        return given
    trained = evaluation_data.trainings_on(card, given.config.data)
    calibrated = [] if trained else [name for name in FORMATS if FORMATS[name].quantized and name in formats]
    given = evaluation_data.with_default_split(given, card, calibrated)
    evaluation_data.print_default_split(given, calibrated)
    return given


def _with_attacks(model: EvaluatedModel, attack_chosen: bool) -> EvaluationData:
    """Returns data with attacks that suit every format, unless the user chose others."""
    config = model.data.eval_config
    if "adversarial" not in config.evaluations:
        return model.data
    config = dataclasses.replace(config, attack=config.attack if attack_chosen else ("square",))
    if config.surrogate:
        return dataclasses.replace(model.data, eval_config=config)
    return dataclasses.replace(model.data, eval_config=dataclasses.replace(config, surrogate=model.path), surrogate=model.load())


def without_gradients(config: EvalConfig) -> tuple[EvalConfig, str]:
    """Returns an evaluation without what needs gradients, and a note on what was left out, or ""; ValueError if no evaluation is left."""
    evaluations = tuple(one for one in config.evaluations if one not in _BY_GRADIENT)
    if not evaluations:
        differentiable = ",".join(name for name in files() if FORMATS[name].gradients)
        received = ",".join(config.evaluations)
        raise ValueError(
            f"Expected an evaluation that needs no gradients, for formats without them. Received: {received}. "
            f"Try: evaluations=clean,{received}, or formats={differentiable}"
        )
    missing = [f"the evaluation {one}" for one in config.evaluations if one in _BY_GRADIENT]
    if "adversarial" in evaluations:
        missing += [f"attack={one} (Square in its place)" for one in config.attack if one != "square"]
    if "certified" in evaluations and config.smoothing_attack:
        missing.append("the attack on the smoothed model")
    note = f"without gradients, so left out: {', '.join(missing)}" if missing else ""
    return dataclasses.replace(config, evaluations=evaluations, attack=("square",), smoothing_attack=False), note


def _evaluate(name: str, path: str, given: EvaluationData, folder: str, model: EvaluatedModel) -> dict:
    """Returns the evaluation of one file, with its size and its latency."""
    trust = model.interface.trust
    classifier = loading.load_classifier(path, loading.ModelInterface(trust=trust, input_size=model.interface.input_size))
    done = model_evaluation.evaluate_model(
        classifier, given, folder, row=name, saved_model=path, split_chosen=True, model_name=os.path.basename(os.path.abspath(model.path))
    )
    metrics = [MetricValue("deployed", "bytes").with_value(size(path), 1)]
    try:
        milliseconds, calls = latency.milliseconds(path, tuple(classifier.card["input"]["shape"][1:]), trust)
        metrics.append(MetricValue("deployed", "milliseconds").with_value(milliseconds, calls))
    except RuntimeError as error:  # such as a Keras file with classes of the user's own, which another process does not know
        print_note(f"the latency of {name} is left out. {error}")
    rows = [*done.content["rows"], *(metric.to_json() for metric in metrics)]
    return {**done.content, "rows": rows, "cpu": environment.cpu_model()}
