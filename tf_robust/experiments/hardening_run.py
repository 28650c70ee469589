"""Hardens a model on labelled images: search on training and validation images, and proof on test images never used before."""

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence

import keras
import numpy as np
from absl.flags import FlagValues

from tf_robust import attacks, data, evaluation
from tf_robust.data.source import Source
from tf_robust.data.subsets import three_ways, without_validation
from tf_robust.experiments import comparison, model_evaluation
from tf_robust.experiments.commands import command
from tf_robust.experiments.evaluation_data import EvaluationData
from tf_robust.experiments.flags import values_of
from tf_robust.experiments.locations import folder_name, row_name
from tf_robust.experiments.runs import runs_of
from tf_robust.hardening import candidates, figures
from tf_robust.hardening.budget import parse_budget
from tf_robust.hardening.config import HardenConfig
from tf_robust.hardening.search import Search, SearchResult
from tf_robust.hardening.target import ValidationSet
from tf_robust.hardening.trainable import TrainableModel, check_format, trainable
from tf_robust.saved_models import loading

HELD_OUT = 0.15  # fraction of data without splits, for validation and for test each
MOST_VALIDATION_IMAGES = 1000
NEAR_CHANCE = 1.5  # times the accuracy of chance
START, HARDENED = "start", "hardened"
ATTACK_STEPS = 10
_SEEN = (
    "The model may have been trained on any of these images, so its accuracy on unchanged images may be too high; "
    "what counts is the differences."
)


@dataclasses.dataclass(frozen=True)
class Parts:
    """Images of a search.

    Attributes:
        train: to fine-tune on.
        validation: to choose on.
        test: for the proof.
        note: on the start's own training; empty: none.
    """

    train: Source
    validation: Source
    test: Source
    note: str = ""


class Hardened:
    """Result of hardening.

    Args:
        model: as `model` below.
        search: as `search` below.
        evaluations: as below.
        config: target and budget.
        notes: sentences for the report.
        folder: of the evaluations.
        temporary: deletes `folder` when the result is deleted.

    Attributes:
        model: the hardened keras.Model; if nothing helps, the model as it was.
        search: trials, frontier and choice.
        evaluations: of the start and of the hardened model on the test images, as in `evaluation.json`; of the start alone if nothing
            helps.
    """

    def __init__(
        self,
        model: keras.Model,
        search: SearchResult,
        evaluations: list[dict],
        config: HardenConfig,
        notes: list[str],
        folder: str,
        temporary: tempfile.TemporaryDirectory | None = None,
    ):
        self.model, self.search, self.evaluations, self.config, self.notes = model, search, evaluations, config, notes
        self._folder, self._temporary = folder, temporary

    @property
    def changed(self) -> bool:
        """Whether a more robust model was found."""
        return bool(self.search.choice and self.search.choice.helps)

    @property
    def values(self) -> dict[str, tuple[float, float]]:
        """{measure: (of the start, of the hardened model)} on the test images."""
        before, after = ({row["measure"]: row["value"] for row in one["rows"]} for one in (self.evaluations[0], self.evaluations[-1]))
        return {name: (value, after[name]) for name, value in before.items()}

    def save(self, path: str) -> str:
        """Writes the model as a Keras file (.keras or .h5), and returns the path."""
        self.model.save(path)
        return path

    def report(self, path: str = "harden.html", arguments: Sequence[str] = ()) -> str:
        """Writes the report, one self-contained HTML file, and returns its path. arguments: of the command line that made it."""
        with tempfile.TemporaryDirectory() as folder:
            comparison.write_report(
                folder,
                self.evaluations,
                title="Hardened" if self.changed else "Not hardened: nothing helps",
                command=command(*arguments) if arguments else "tf_robust in Python",
                suite={"baseline": START, "notes": self.notes},
                charts=[figures.frontier(self.search, self.config.target)],
                tables=[figures.candidates_table(self.search)],
            )
            os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
            shutil.copyfile(os.path.join(folder, "report.html"), path)
        return path


def parts_of(given: EvaluationData, validation: Source | None = None, test: Source | None = None) -> Parts:
    """Returns the images of a search: the splits of the data, or 70, 15 and 15 % of data without splits.

    Args:
        given: describes the data.
        validation: images to choose on; None: a part of the data.
        test: images of the proof; None: a part of the data.

    Raises:
        ValueError: a class has fewer than two training images.
    """
    fraction = given.config.validation_fraction or HELD_OUT
    given = dataclasses.replace(given, config=dataclasses.replace(given.config, validation_fraction=fraction))
    held_out = {"validation": validation, "test": test}
    if given.images is None:
        parts = {split: held_out.get(split) or given.source(split) for split in ("train", "validation", "test")}
    elif test is None:
        parts = {split: held_out.get(split) or three_ways(given.images, split, fraction) for split in ("train", "validation", "test")}
    elif validation is None:
        parts = {split: without_validation(given.images, split, fraction) for split in ("train", "validation")} | {"test": test}
    else:
        parts = {"train": given.images, "validation": validation, "test": test}
    counts = np.bincount(parts["train"].read_labels(), minlength=parts["train"].num_classes)
    rare = [name for name, count in zip(parts["train"].class_names, counts) if count < 2]
    if rare:
        raise ValueError(f"Expected at least two training images of each class. Received: fewer of {', '.join(rare[:5])}")
    note = _SEEN if data.is_unsplit(given.config.data) or given.images is not None else ""
    return Parts(**parts, note=note)


def harden_and_report(values: FlagValues, argv: Sequence[str]) -> None:
    """Hardens the model of `tf-robust harden MODEL`, and writes the model and `harden.html` into the workdir.

    Args:
        values: parsed flags.
        argv: the arguments from which they were parsed.
    """
    run = runs_of(values, row_name(values.saved_model))[0]
    check_format(values.saved_model)
    interface = loading.ModelInterface(**values_of(values, loading.ModelInterface))
    classifier = loading.load_classifier(values.saved_model, interface)
    folder = values.workdir or os.path.join("runs", "hardened", f"{folder_name(values.data)}-{row_name(values.saved_model)}")
    hardened = harden(classifier, run.data(), HardenConfig(**values_of(values, HardenConfig)), folder)
    print(f"Report: {hardened.report(os.path.join(folder, 'harden.html'), argv)}")
    if hardened.changed:
        print(f"Model:  {hardened.save(os.path.join(folder, 'hardened.keras'))}")
    for name in ("clean", "un", "nun", "corruptions/mean15", "calibration/rms"):
        if hardened.changed and name in hardened.values:
            before, after = hardened.values[name]
            print(f"  {name:<20} {before:.3f} -> {after:.3f}")


def harden(
    classifier: loading.Classifier,
    given: EvaluationData,
    config: HardenConfig,
    folder: str,
    *,
    parts: Parts | None = None,
    temporary: tempfile.TemporaryDirectory | None = None,
    log: Callable[[str], object] = print,
) -> Hardened:
    """Searches a more robust model and proves it on test images.

    Args:
        classifier: the model, a Keras one.
        given: describes the data and the evaluation of the proof.
        config: target, budget and maximum clean loss.
        folder: of trials, evaluations and the report; a search that was interrupted resumes.
        parts: the images; None: those of `given`.
        temporary: of `folder`.
        log: called with lines of progress.

    Raises:
        ValueError: the model cannot be trained, does not suit the images, or is near chance.
    """
    given = dataclasses.replace(given, model_size=loading.image_size_of(classifier), num_classes=classifier.num_classes or 0)
    parts = parts or parts_of(given)
    start = trainable(classifier, parts.train.image_shape)
    classifier = start.classifier
    validation = _validation_set(parts, config, given)
    search = Search(
        start.network,
        start.options,
        parts.train,
        validation,
        candidates.candidates(config.target, norm=config.attack_norm, radius=config.attack_radius, skip=start.skip),
        budget=parse_budget(config.budget),
        max_clean_loss=config.max_clean_loss,
        batch_size=min(64, len(parts.train)),
        seed=given.seed,
        folder=os.path.join(folder, "trials"),
        log=log,
    )
    accuracy, chance = search.start.clean, 1.0 / parts.train.num_classes
    if accuracy < NEAR_CHANCE * chance:
        raise ValueError(
            f"Expected a trained model. Received: {classifier.path} with an accuracy of {accuracy:.3f} on {len(validation)} validation "
            f"images, near that of chance, {chance:.3f}. Try: another input_range, or the class order of the data"
        )
    log(f"Start: clean {accuracy:.3f}, target ({config.target}) {search.start.target:.3f} on {len(validation)} validation images.")
    result = search.run()
    notes = [_summary(result, config), *([parts.note] if parts.note else [])]
    for note in notes:
        log(note)
    evaluations = _proof(classifier, start, search.start_weights, result, parts.test, given, folder, log)
    return Hardened(start.model, result, evaluations, config, notes, folder, temporary)


def _validation_set(parts, config, given):
    images, labels = evaluation.first_images(parts.validation, min(MOST_VALIDATION_IMAGES, len(parts.validation)))
    probabilities = evaluation.noise_probabilities(parts.train, given.eval_config) if config.target == "noise" else None
    attack = attacks.ProjectedGradientDescent(norm=config.attack_norm, radius=config.attack_radius, steps=ATTACK_STEPS)
    return ValidationSet(images, labels, config.target, probabilities=probabilities, attack=attack)


def _summary(result, config):
    """A sentence on the choice."""
    if not result.choice:
        return f"No candidate keeps the accuracy on unchanged validation images within {config.max_clean_loss:g}: the model is unchanged."
    point, target, clean = result.choice.point, result.choice.target, result.choice.clean
    interval = f"[{target['low']:+.3f}, {target['high']:+.3f}]"
    if not result.choice.helps:
        more = f" About {result.choice.images_needed:,} validation images would decide." if result.choice.images_needed else ""
        return (
            f"Nothing improves {config.target} outside the interval: the best gains {target['mean']:+.3f} {interval}.{more} "
            "The model is unchanged."
        )
    clean_text = f"{clean['mean']:+.3f} [{clean['low']:+.3f}, {clean['high']:+.3f}]"
    return (
        f"Chosen on {target['count']} validation images: {point.name}, interpolated with the start by "
        f"{point.coefficient:g}; {config.target} {target['mean']:+.3f} {interval}, clean accuracy {clean_text}."
    )


def _proof(classifier, start: TrainableModel, start_weights, result, test, given, folder, log):
    """Evaluates the start and the hardened model on the test images."""
    proof_data = dataclasses.replace(given, images=test)
    evaluations = []
    rows = [(START, start_weights)]
    if result.choice and result.choice.helps:
        rows.append((HARDENED, result.weights))
    for row, weights in rows:
        start.network.set_weights(weights)
        log(f"Evaluating the {row} model on {len(test)} test images.")
        own = os.path.join(folder, row)
        os.makedirs(own, exist_ok=True)
        done = model_evaluation.evaluate(classifier, proof_data, own, row=row, saved_model=classifier.path)
        evaluations.append({**done.content, "measured_in": own})
    return evaluations
