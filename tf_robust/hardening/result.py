"""Result of hardening in Python: the model, its files and its report."""

import dataclasses
import html
import os
import shutil
import tempfile
from collections.abc import Sequence

import keras

from tf_robust import evaluation, report
from tf_robust.hardening import delivery, figures, recipe
from tf_robust.hardening.choice import Choice, Point, best_point
from tf_robust.hardening.config import HardenConfig
from tf_robust.hardening.diagnosis import Diagnosis
from tf_robust.hardening.trainable import TrainableModel
from tf_robust.hardening.trials import Trial
from tf_robust.report import comparison
from tf_robust.report.page import Image
from tf_robust.report.sections import changes
from tf_robust.utils.files import read_json, write_json

START, HARDENED = "start", "hardened"


@dataclasses.dataclass(frozen=True)
class SearchRecord:
    """Everything that a search found.

    Attributes:
        data: name of the data set of which a part is for the final evaluation; empty: the images of the final evaluation are others, or
            data in memory.
        start: the model as it was given.
        diagnosis: of the initial model.
        trials: in their order.
        frontier: points with their outcomes on the validation images.
        choice: the best point; None: none of them keeps the clean accuracy.
        seconds: of the search.
        seed: of training.
        batch_size: of training.
        interrupted: whether the search was stopped before its budget was used up.
        validation_fraction: of the data, that neither the initial model nor the search was trained on; None: not known.
        trained_on: data of the training of the initial model and of the search, as `saved_models.interface.trainings` returns them.
    """

    data: str
    start: Point
    diagnosis: Diagnosis
    trials: Sequence[Trial]
    frontier: Sequence[Point]
    choice: Choice | None
    seconds: float
    seed: int
    batch_size: int
    interrupted: bool = False
    validation_fraction: float | None = None
    trained_on: Sequence[dict] = ()


class Hardened:
    """Result of hardening.

    Args:
        trainable: the model; has the weights of the result.
        search: as below.
        evaluations: as below.
        config: target, budget, maximum clean loss.
        notes: sentences for the report.
        images: figures of images for the report, (path of a PNG file, caption).
        temporary: deletes the folder of the evaluations when the result is deleted.

    Attributes:
        trainable: as given.
        search: trials, frontier and choice, on validation images.
        evaluations: of the initial model and of the hardened model on the test images, as in `evaluation.json`; of the initial model alone
            if nothing helps; none if the search was interrupted.
    """

    def __init__(
        self,
        trainable: TrainableModel,
        search: SearchRecord,
        evaluations: list[dict],
        config: HardenConfig,
        notes: Sequence[str],
        images: Sequence[Image] = (),
        temporary: tempfile.TemporaryDirectory | None = None,
    ):
        self.search, self.evaluations, self.config, self.notes = search, evaluations, config, list(notes)
        self.trainable, self._images, self._temporary = trainable, list(images), temporary

    def __repr__(self) -> str:
        return f"<Hardened: {self.notes[0]}>"

    @property
    def model(self) -> keras.Model:
        """The hardened model as it was loaded: a keras.Model, or what `tf.saved_model.load` returns; unchanged if nothing helps."""
        return self.trainable.model

    @property
    def changed(self) -> bool:
        """Whether a more robust model was found."""
        return bool(self.search.choice and self.search.choice.helps)

    @property
    def values(self) -> dict[str, tuple[float, float]]:
        """{metric: (of the initial model, of the hardened model)} on the test images; both are equal if nothing helps."""
        if not self.evaluations:
            return {}
        before, after = ({row["metric"]: row["value"] for row in one["rows"]} for one in (self.evaluations[0], self.evaluations[-1]))
        return {name: (value, after[name]) for name, value in before.items() if name in after}

    @property
    def sentences(self) -> list[str]:
        """The summary of the final evaluation, on test images."""
        return report.summary_lines(self._table()) if len(self.evaluations) > 1 else []

    @property
    def recipe(self) -> str:
        """Lines of Python that train the chosen recipe without the search; empty if nothing helps, or of a SavedModel or a model of images
        that are normalized per channel."""
        scaled = self.trainable.network is not self.trainable.model and "input_range" not in self.trainable.options
        if not self.changed or not isinstance(self.model, keras.Model) or scaled:
            return ""
        search, path = self.search, self.trainable.classifier.path
        point = search.choice.point  # type: ignore[union-attr]
        return recipe.lines_of(point, path, batch_size=search.batch_size, seed=search.seed, options=self.trainable.options)

    def save(self, path: str) -> str:
        """Writes the model, of the kind that was given, and returns the path: a Keras file, or a SavedModel with the same signatures.

        Raises:
            ValueError: the path has the suffix of another kind.
            OSError: it cannot be written.
        """
        path = delivery.save(self.trainable, path)
        self.update_card(path)
        return path

    def update_card(self, path: str) -> None:
        """Replaces what does not hold for the hardened model in the copied card of a SavedModel that this package exported.

        Args:
            path: of the hardened model.
        """
        file, search = os.path.join(path, "card.json"), self.search
        if not os.path.exists(file):
            return
        proved = self.evaluations[-1] if self.evaluations else {"rows": [], "card": {}}
        of_start = {field: value for field, value in read_json(file).items() if field not in ("confidence", "division")}
        data = {"data": search.data} if search.data else {}
        new = {"rows": proved["rows"], "evaluation_card": proved["card"], "hardened": self.notes[0], "trained_on": list(search.trained_on)}
        write_json(file, {**of_start, **data, **new})

    def card(self) -> dict:
        """Returns the record of the search and of the final evaluation, for JSON."""
        point = self.search.choice.point if self.search.choice and self.changed else None
        return {
            "start": self.trainable.classifier.path,
            "model": f"{HARDENED}{delivery.suffix_of(self.trainable)}" if self.changed else None,
            "data": self.search.data,
            "interface": self.trainable.classifier.interface.conventions(),
            "validation_fraction": self.search.validation_fraction,
            "trained_on": list(self.search.trained_on),
            "config": dataclasses.asdict(self.config),
            "seed": self.search.seed,
            "batch_size": self.search.batch_size,
            "seconds": round(self.search.seconds, 1),
            "chosen": point.name if point else None,
            "coefficient": point.coefficient if point else None,
            "recipe": [
                {**dataclasses.asdict(candidate), "strengths": {}, "steps": steps}
                for candidate, steps, _ in (point.members if point else ())
            ],
            "validation": _validation_record(self.search.choice),
            "diagnosis": dataclasses.asdict(self.search.diagnosis),
            "trials": [_trial_record(self.search.start, trial, self.config.max_clean_loss) for trial in self.search.trials],
            "notes": [*self.notes, *self.sentences],
            "test": {name: list(values) for name, values in self.values.items()},
        }

    def frontier(self) -> report.Chart:
        """Returns the chart of clean accuracy against the target on the validation images, of the initial model and all interpolations."""
        return figures.frontier(self.search.start, self.search.frontier, self.search.choice, self.config.target, self.config.max_clean_loss)

    def report(self, path: str = "harden.html", command: str = "tf_robust in Python") -> str:
        """Writes the report, one self-contained HTML file, and returns its path.

        Args:
            path: of the file.
            command: that made it.

        Raises:
            ValueError: the search was interrupted, so that there is no final evaluation.
        """
        if not self.evaluations:
            raise ValueError("Expected a finished search. Received: one that was interrupted. Try: run it again; it resumes")
        table, name = self._table(), os.path.basename(self.trainable.classifier.path)
        search = self.search
        trials = figures.trials_table(search.start, search.trials, search.choice, self.config.max_clean_loss)
        first, *further = changes(table) if len(self.evaluations) > 1 else [None]
        additions = report.Additions(
            lines=self.notes,
            first=first,
            charts=[self.frontier()],
            images=self._images,
            tables=[search.diagnosis.section(), trials, *further],
            code=self.recipe,
        )
        with tempfile.TemporaryDirectory() as folder:
            comparison.write_report(
                folder,
                self.evaluations,
                title=f"{name}, hardened" if self.changed else f"{name}, not hardened: nothing helps",
                command=command,
                suite={"baseline": START},
                additions=additions,
            )
            os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
            shutil.copyfile(os.path.join(folder, "report.html"), path)
        return path

    def _table(self):
        return report.aggregate(self.evaluations, baseline=START, per_image=evaluation.PerImage(comparison.records_in))

    def _repr_html_(self) -> str:
        return "".join(f"<p>{html.escape(sentence)}</p>" for sentence in [*self.notes, *self.sentences])


def _validation_record(choice):
    return {"clean": dict(choice.clean), "target": dict(choice.target), "helps": choice.helps} if choice else None


def _trial_record(start, trial, max_clean_loss):
    best = best_point(start, trial.points, max_clean_loss)
    values = {"clean": best.clean, "target": best.target, "coefficient": best.coefficient}
    return {"name": trial.candidate.name, "rung": trial.rung + 1, "steps": trial.steps, "seconds": round(trial.seconds, 1), **values}
