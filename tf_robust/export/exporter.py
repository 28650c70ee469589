"""Writes a model in formats of deployment, each with a card and checked against the model."""

import datetime
import functools
import os
import tempfile
import typing
from collections.abc import Mapping, Sequence

import numpy as np

from tf_robust import data, evaluation
from tf_robust.data.source import Source, digest
from tf_robust.evaluation.evaluation_data import EvaluationData
from tf_robust.evaluation.model_evaluation import match_model_and_data
from tf_robust.report.evaluated_model import EvaluatedModel
from tf_robust.saved_models import export, loading
from tf_robust.saved_models.export import Deployable
from tf_robust.saved_models.formats import FORMATS, check_convertible, files, size
from tf_robust.saved_models.input_check import in_batches
from tf_robust.saved_models.loading import without_softmax
from tf_robust.utils import environment
from tf_robust.utils.errors import unknown
from tf_robust.utils.files import read_json, write_json
from tf_robust.utils.progress import print_note

CHECKED, CALIBRATION = 100, 300  # images to compare the outputs on, and to find the ranges of integers on
TOLERANCE = 1e-3  # of float32 formats, relative to the largest output
_CARD = (
    "title",
    "method",
    "model",
    "data",
    "classes",
    "label_set",
    "trained_on",
    "division",
    "seed",
    "flags",
    "note",
    "confidence",
)  # fields of the model's own card


def write_formats(
    model: EvaluatedModel, formats: Sequence[str], folder: str, *, chosen: bool, unit_range: bool = False, logits: bool = False
) -> tuple[dict[str, str], dict[str, Exception]]:
    """Writes a model in all formats that can be written, and prints a line for each.

    Args:
        model: as in `export_model`.
        formats: of `formats.files`.
        folder: of the files; complete ones are replaced.
        chosen: whether the user named the formats; otherwise those that do not apply to this kind of model are left out with a note.
        unit_range: files take images in [0, 1], whatever the model takes.
        logits: files return logits, also of a model that returns probabilities.

    Returns:
        ({format: path}, {format: why it could not be written}).

    Raises:
        ValueError: an unknown format, or a model that does not suit the data or was converted already.
    """
    exporter = _exporter(model, formats, unit_range, logits)
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


def export_model(model: EvaluatedModel, formats: Sequence[str], folder: str, *, reuse: bool = False) -> dict[str, str]:
    """Writes a model in formats, each checked against the model and with a card, and prints a line for each.

    Args:
        model: to export, and its data.
        formats: of `formats.files`.
        folder: of the files; complete ones are replaced.
        reuse: keep a file that an earlier export of the same model wrote.

    Returns:
        {format: path}.

    Raises:
        ValueError: an unknown format, a model that cannot be converted, no images to calibrate on, or a file whose outputs are wrong.
    """
    exporter = _exporter(model, formats)
    if any(FORMATS[name].quantized for name in formats):
        _ = exporter.calibration  # raises before anything is written
    return {name: exporter.export(name, folder, reuse) for name in dict.fromkeys(formats)}


def _exporter(model, formats, unit_range=False, logits=False):
    for name in formats:
        if name not in files():
            raise unknown("format", name, files())
    check_convertible(model.path)
    loaded, given, source = match_model_and_data(model.load(), model.data, model.split_chosen)
    classifier = without_softmax(loaded) if logits else loaded
    shape = tuple(source.image_shape)
    deployable = Deployable(classifier, shape, unit_range=unit_range, logits=logits)
    print(
        f"The files take {deployable.spec.dtype.name} images on the pixel scale {deployable.input_range} and return {deployable.output}.",
        flush=True,
    )
    return Exporter(deployable, given, source)


def calibration_images(given: EvaluationData) -> np.ndarray:
    """Returns training images [N, H, W, C] in [0, 1] for the ranges of integers.

    Raises:
        ValueError: the data have no training images.
    """
    name = given.config.data
    if not data.has_training(name):
        quantized = ", ".join(one for one, entry in FORMATS.items() if entry.quantized)
        raise ValueError(
            f"Expected training images to calibrate {quantized} on. Received: {name}, which has none. "
            f"Try: a folder with train/, or formats without {quantized}"
        )
    return evaluation.stratified_images(given.source("train"), CALIBRATION)[0]


class Exporter:
    """Exports one model.

    Args:
        model: to export.
        given: its data.
        source: images to compare outputs on.
    """

    def __init__(self, model: Deployable, given: EvaluationData, source: Source):
        self.model, self.classifier, self.given, self.source = model, model.classifier, given, source
        classifier = self.classifier
        self.images = evaluation.stratified_images(source, CHECKED)[0]
        self.scores = in_batches(model.scores, self.images)
        self.float32_scores = self.scores
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
        """Training images, as `calibration_images` returns them."""
        return calibration_images(self.given)

    def why_not(self, name: str) -> str:
        """Returns why a format does not apply to the model and its data; empty if it does."""
        if name == "keras" and (reason := self.model.why_not_keras()):
            return f"{self.classifier.path} is a model {reason}"
        if FORMATS[name].quantized and not data.has_training(self.given.config.data):
            return f"{self.given.config.data} has no training images to calibrate it on"
        return ""

    def export(self, name: str, folder: str, reuse: bool = False) -> str:
        """Writes one format into a folder, prints its difference to the model, and returns its path.

        Raises:
            ValueError: as in `export_model`.
        """
        path = os.path.join(folder, FORMATS[name].file)
        card = self._card(name)
        compared = {field: card.get(field) for field in ("input", "output", "calibration", "confidence")}
        if not (reuse and _is_of(path, {**self.origin, **compared})):
            os.makedirs(folder, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder, prefix=f"{FORMATS[name].file}.writing-") as temporary:
                complete = os.path.join(temporary, FORMATS[name].file)
                entries = self._write(name, complete, card)
                _write_card(complete, {**card, **entries})
                _replace(complete, path)
        print(_line(name, path, read_json(card_of(path))), flush=True)
        return path

    def _write(self, name, path, card):
        """Writes one format and returns further entries of its card."""
        try:
            calibration = self.calibration if FORMATS[name].quantized else None
            export.write(name, self.model, path, card, calibration=calibration, fit=self.source.fit)
            return {"check": self._check(name, path), "bytes": size(path)}
        except ValueError as error:
            raise ValueError(str(error).replace(path, os.path.basename(path))) from error  # the file is a temporary one

    def _card(self, name: str) -> dict[str, typing.Any]:
        known = {"classes": list(self.source.class_names), "label_set": self.source.label_set}
        return {
            **known,
            **{field: self.classifier.card[field] for field in _CARD if field in self.classifier.card},
            "format": name,
            **self.origin,
            "input": export.input_card(self.source, self.model.spec, self.model.input_range),
            "output": self.model.output,
            **({"batch_dependence": self.classifier.batch_dependence} if self.classifier.batch_dependence else {}),
            "calibration": self._calibration_card() if FORMATS[name].quantized else None,
            "versions": {**environment.describe(), **{one: environment.version(one.replace("_", "-")) for one in FORMATS[name].packages}},
            "commit": environment.commit(),
            "date": datetime.date.today().isoformat(),
        }

    def _calibration_card(self):
        images, fingerprint = self.calibration, digest(np.round(255 * self.calibration).astype(np.uint8))
        return {"images": len(images), "data": self.given.config.data, "split": "train", "fingerprint": fingerprint}

    def _check(self, name: str, path: str) -> dict[str, float | int]:
        """Compares what a file returns with what the model returns.

        Raises:
            ValueError: it is not finite, or differs by more than rounding in a format that keeps all digits.
        """
        given, model = self.classifier.interface, self.model
        interface = loading.ModelInterface(model.input_range, model.output, input_size=given.input_size, trust=given.trust)
        file = loading.load_classifier(path, interface)
        scores, expected = in_batches(file.scores, self.images), self.scores if name == "savedmodel" else self.float32_scores
        largest = float(np.abs(expected).max())
        difference = float(np.abs(scores - expected).max())
        if not difference <= (TOLERANCE * largest if FORMATS[name].float32 else np.inf):  # also if it is NaN
            raise ValueError(
                f"Expected {name} to give the {self.model.output} of {self.classifier.path}. Received: a difference of {difference:.3g}, "
                f"with values up to {largest:.3g}. Try: another format; the converter does not compute this model correctly"
            )
        same = float((_classes(scores, self.model.output) == _classes(expected, self.model.output)).mean())
        return {"images": len(self.images), "largest_difference": difference, "largest_output": largest, "same_class": same}


def _classes(scores, kind):
    """The predicted classes of scores [N, classes], or [N, 1] of two classes."""
    return scores.argmax(axis=1) if scores.shape[1] > 1 else (scores[:, 0] > (0.5 if kind == "probabilities" else 0)).astype(int)


def card_of(path: str) -> str:
    """Returns the path of the card of an exported file or folder."""
    return os.path.join(path, "card.json") if os.path.isdir(path) else f"{path}.json"


def _write_card(path: str, card: Mapping) -> None:
    if os.path.isdir(path):
        export.update_card(path, **card)
    else:
        write_json(card_of(path), dict(card))


def _replace(complete: str, path: str) -> None:
    """Moves an exported file or folder and its card to their place."""
    if os.path.isdir(complete):
        with export.atomic_folder(path) as temporary:
            os.rename(complete, temporary)
    else:
        os.replace(complete, path)  # first: a card of another file would have it taken for the new one
        os.replace(card_of(complete), f"{path}.json")


def _is_of(path: str, origin: Mapping) -> bool:
    """Returns whether a file was exported from a model before."""
    if not os.path.exists(path) or not os.path.exists(card_of(path)):
        return False
    card = read_json(card_of(path))
    return all(card.get(field) == value for field, value in origin.items())


def _line(name, path, card):
    check = card["check"]
    same = f", same class on {check['same_class']:.0%}" if FORMATS[name].quantized else ""
    return (
        f"{name:<15} {path}  {card['bytes']:,} bytes, largest difference of the {card['output']} {check['largest_difference']:.2g} "
        f"(up to {check['largest_output']:.3g}){same}"
    )
