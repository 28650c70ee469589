"""Result of hardening in Python: the model, its files and its report, with the lines of Python that repeat the training."""

import dataclasses
import html
import os
import shutil
import tempfile
import typing
from collections.abc import Mapping, Sequence

import altair as alt
import jinja2
import keras

from tf_robust import evaluation, methods, metrics, report
from tf_robust.hardening.config import HardenConfig
from tf_robust.hardening.diagnosis import Diagnosis
from tf_robust.hardening.trainable import TrainableModel
from tf_robust.hardening.training import MOMENTUM
from tf_robust.hardening.trials import Choice, Point, Trial, best_point
from tf_robust.report import comparison
from tf_robust.report.chart import COLORS, INK, Chart, data, domain, finish, span, tips
from tf_robust.report.page import Image
from tf_robust.report.sections import Cell, Section, changes, frame_of, number
from tf_robust.utils.files import read_json, write_json

START, HARDENED = "initial", "hardened"
MIN_CLEAN_RANGE = 0.05  # of the chart of the frontier
_REESTIMATED = "batch norm re-estimated"
_RECIPE = jinja2.Environment(trim_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined).from_string(
    """\
import keras
import tensorflow as tf
import tf_robust as tfr
from tf_robust.hardening.training import average, fine_tuning, interpolate

# images and labels: your training images, with the pixel values and the size that the model takes
{{ model }}
start = model.get_weights()
dataset = tf.data.Dataset.from_tensor_slices((images.astype("float32"), labels))
dataset = dataset.shuffle(len(images), seed={{ seed }}).repeat().batch({{ batch_size }})
ends = []
{% if flip %}
flip = keras.Sequential([keras.layers.RandomTranslation(0.1, 0.1, fill_mode="constant"), keras.layers.RandomFlip("horizontal")])
{% endif %}
{% if extra_corruptions %}
extra_corruptions = tfr.layers.RandomCorruption({{ extra_corruptions }}).augment
{% endif %}
{% for candidate, steps, method, arguments, dataset in members %}

# {{ candidate.name }}, {{ "{:,}".format(steps) }} steps
model.set_weights(start)
method = tfr.methods.{{ method }}(
    {{ arguments | join(",\n    ") }},
)
rate = keras.optimizers.schedules.CosineDecay({{ "{:g}".format(candidate.learning_rate) }}, {{ steps }})
with fine_tuning(model, {{ repr(candidate.layers) }}):
    method.compile(optimizer=keras.optimizers.SGD(rate, momentum={{ momentum }}))
    method.fit({{ dataset }}, steps_per_epoch={{ steps }})
ends.append(model.get_weights())
{% endfor %}
{% if members %}

model.set_weights(interpolate(start, average(ends), {{ coefficient }}))
{% endif %}
{% if reestimated %}

from tf_robust.hardening.training import BATCHES, reestimated

low, high = {{ input_range }}
augment = tfr.layers.AugMix()
augmix = (augment((x - low) / (high - low)) for x, _ in dataset.take(BATCHES))
reestimated(model, tfr.methods.CrossEntropy({{ common | join(", ") }}).network, model.get_weights(), augmix)
{% endif %}
model.save("robust.keras")
"""
)


@dataclasses.dataclass(frozen=True)
class SearchRecord:
    """Everything that a search found."""

    data: str  # name of the data set of which a part is for the final evaluation; empty: data in memory
    start: Point  # the initial model
    diagnosis: Diagnosis
    trials: Sequence[Trial]
    frontier: Sequence[Point]
    choice: Choice | None  # None: no point keeps the clean accuracy
    seconds: float
    seed: int
    batch_size: int
    interrupted: bool  # before its budget was used up
    validation_fraction: float | None  # of the data, that neither the initial model nor the search was trained on; None: not known
    trained_on: Sequence[dict]  # data of the initial model and of the search, as `interface.trainings` returns them


class Hardened:
    """Result of hardening.

    Attributes:
        trainable: the model; has the weights of the result.
        search: trials, frontier and choice, on validation images.
        config: target, budget, maximum clean loss.
        notes: sentences on the choice.
        evaluations: of the initial model and of the hardened model on the test images, as in `evaluation.json`; of the initial model alone
            if nothing helps; none if the search was interrupted.
        images: figures of images for the report, (path of a PNG file, caption).
    """

    def __init__(
        self,
        trainable: TrainableModel,
        search: SearchRecord,
        config: HardenConfig,
        notes: Sequence[str],
        temporary: tempfile.TemporaryDirectory | None = None,
    ):
        self.trainable, self.search, self.config, self.notes = trainable, search, config, list(notes)
        self._temporary = temporary  # deletes the folder of the evaluations when the result is deleted
        self.evaluations: list[dict] = []
        self.images: list[Image] = []

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
        return lines_of(point, path, batch_size=search.batch_size, seed=search.seed, options=self.trainable.options)

    def save(self, path: str) -> str:
        """Writes the model, of the kind that was given, and returns the path: a Keras file, or a SavedModel with the same signatures.

        Raises:
            ValueError: the path has the suffix of another kind.
            OSError: it cannot be written.
        """
        path = self.trainable.save(path)
        self.update_card(path)
        return path

    def update_card(self, path: str) -> None:
        """Replaces what does not hold for the hardened model in the copied card of a SavedModel (at `path`) that this package exported."""
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
        search, choice = self.search, self.search.choice
        point = choice.point if choice and self.changed else None
        members = point.members if point else ()
        trials = []
        for trial in search.trials:
            best = best_point(search.start, trial.points, self.config.max_clean_loss)
            values = {"clean": best.clean, "target": best.target, "coefficient": best.coefficient}
            times = {"steps": trial.steps, "seconds": round(trial.seconds, 1)}
            trials.append({"name": trial.candidate.name, "rung": trial.rung + 1, **times, **values})
        return {
            "initial_model": self.trainable.classifier.path,
            "model": f"{HARDENED}{self.trainable.suffix}" if self.changed else None,
            "data": search.data,
            "interface": self.trainable.classifier.interface.conventions(),
            "validation_fraction": search.validation_fraction,
            "trained_on": list(search.trained_on),
            "config": dataclasses.asdict(self.config),
            "seed": search.seed,
            "batch_size": search.batch_size,
            "seconds": round(search.seconds, 1),
            "chosen": point.name if point else None,
            "coefficient": point.coefficient if point else None,
            "recipe": [{**dataclasses.asdict(candidate), "strengths": {}, "steps": steps} for candidate, steps, _ in members],
            "validation": {"clean": dict(choice.clean), "target": dict(choice.target), "helps": choice.helps} if choice else None,
            "diagnosis": dataclasses.asdict(search.diagnosis),
            "trials": trials,
            "notes": [*self.notes, *self.sentences],
            "test": {name: list(values) for name, values in self.values.items()},
        }

    def frontier(self) -> report.Chart:
        """Returns the chart of clean accuracy against the target on the validation images, of the initial model and all interpolations."""
        search = self.search
        return frontier_chart(search.start, search.frontier, search.choice, self.config.target, self.config.max_clean_loss)

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
        name = os.path.basename(self.trainable.classifier.path)
        first, *further = changes(self._table()) if len(self.evaluations) > 1 else [None]
        additions = report.Additions(
            lines=self.notes,
            first=first,
            charts=[self.frontier()],
            images=self.images,
            tables=[self.search.diagnosis.section(), _trials_table(self.search, self.config.max_clean_loss), *further],
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


def frontier_chart(start: Point, points: Sequence[Point], choice: Choice | None, target: str, max_clean_loss: float) -> Chart:
    """Draws every point by clean and target accuracy on the validation images, one line per fine-tuned model from the initial model.

    Points that lose much more than `max_clean_loss` are left out, so that the others can be distinguished; the chosen one is marked.
    """
    limit = start.clean - max(MIN_CLEAN_RANGE, 3 * max_clean_loss)
    shown = [point for point in points if point.clean >= limit]
    chosen = choice.point if choice and choice.helps else None

    def drawn(point, name):
        values = {"clean": point.clean, "target": point.target, "coefficient": point.coefficient}
        return {"model": name, "chosen": point is chosen, **{key: round(float(value), 5) for key, value in values.items()}}

    names = list(dict.fromkeys(point.line for point in shown if not point.reestimated))
    values = []
    for name in names:
        line = [start, *(point for point in shown if point.line == name and not point.reestimated)]
        values += [drawn(point, name) for point in sorted(line, key=lambda one: one.coefficient)]
    values += [drawn(point, _REESTIMATED) for point in shown if point.reestimated]
    values = values or [drawn(start, "initial model")]
    x, y = (
        span(channel, key, domain([value[key] for value in values]), title)
        for channel, key, title in ((alt.X, "clean", "accuracy on unchanged images"), (alt.Y, "target", f"accuracy, {target}"))
    )
    legend = alt.Legend(columns=1, orient="bottom", labelFontSize=9, labelExpr="split(datum.label, regexp(' (?=and )'))")
    color = alt.Color("model:N", sort=[*names, _REESTIMATED], title=None, legend=legend, scale=alt.Scale(range=list(COLORS)))
    base = alt.Chart().encode(x, y, tooltip=tips(("model",), ("coefficient", "clean", "target")))
    is_line = f"datum.model !== '{_REESTIMATED}'"
    chart = alt.layer(
        base.mark_line(opacity=0.6).encode(color, order="coefficient:Q").transform_filter(is_line),
        base.mark_point(filled=True, size=40).encode(color),
        base.mark_point(size=260, strokeWidth=2.5, color=INK).transform_filter("datum.chosen"),
        base.mark_point(shape="square", filled=True, size=90, color=INK, opacity=1).transform_filter(f"{is_line} && !datum.coefficient"),
        data=data(values),
    )
    parts = [
        "Validation images. A line goes from the initial model (square) to a fine-tuned model, by interpolation of their weights.",
        *["The ring is the chosen model."] * bool(chosen),
        *["Re-estimated: moving averages of batch normalization from AugMix images."] * any(p.reestimated for p in shown),
        *[f"{len(points) - len(shown)} points with a clean accuracy below {limit:.2f} are not shown."] * (len(shown) < len(points)),
    ]
    return finish(chart, "frontier", " ".join(parts), 380)


def _trials_table(search, max_clean_loss):
    """The table of trials: steps, and clean and target accuracy of each trial's better interpolation."""
    start, choice = search.start, search.choice
    columns = ["rung", "steps", "seconds", "clean", "target", "coefficient"]
    lines: dict[str, list[Cell | None]] = {"initial model": [None, None, None, number(start.clean), number(start.target), None]}
    if choice and choice.helps:
        point = choice.point
        lines[f"chosen: {point.name}"] = [None, None, None, *map(number, (point.clean, point.target, point.coefficient))]
    for trial in search.trials:
        best = best_point(start, trial.points, max_clean_loss)
        numbers = (None, None, None) if trial.diverged else (best.clean, best.target, best.coefficient)
        name = f"{trial.candidate.name}{', diverged' if trial.diverged else ''} (rung {trial.rung + 1})"
        lines[name] = [*map(number, (trial.rung + 1, trial.steps, round(trial.seconds), *numbers))]
    caption = (
        "Accuracies on validation images, of the interpolation that attains more within the allowed clean loss. Every trial starts from "
        "the model's own weights."
    )
    return Section("Candidates", frame_of("candidate", lines, columns), caption)


def lines_of(point: Point, path: str, *, batch_size: int, seed: int, options: Mapping[str, typing.Any]) -> str:
    """Returns lines of Python that fine-tune a model as a point of the frontier was, and interpolate its weights.

    The order of the images and the draws differ from those of the search, so that the results are alike, not equal. `path` is that of the
    initial model; `options` are arguments of all methods, such as `input_range`.
    """
    members = []
    for candidate, steps, _ in point.members:
        method = methods.METHODS[candidate.method]
        arguments = [f"{name}={value!r}" for name, value in candidate.settings.items()]
        if candidate.views != method.default_views:
            views = (name if name == "extra_corruptions" else repr(name) for name in candidate.views)
            arguments.append(f"views=({', '.join(views)},)")
        arguments += [f"{name}={value!r}" for name, value in {"seed": seed, **options}.items()]
        dataset = "dataset.map(lambda x, y: (flip(x, training=True), y))" if candidate.augmentations else "dataset"
        members.append((candidate, steps, method.__name__, ["model", *arguments], dataset))
    candidates = [member.candidate for member in point.members]
    return _RECIPE.render(
        model=f"model = keras.saving.load_model({path!r}, compile=False)" if os.path.isfile(path) else "# model: the one before the search",
        seed=seed,
        batch_size=batch_size,
        flip=any(candidate.augmentations for candidate in candidates),
        extra_corruptions=metrics.EXTRA if any("extra_corruptions" in candidate.views for candidate in candidates) else (),
        members=members,
        momentum=MOMENTUM,
        coefficient=f"{point.coefficient:g}",
        reestimated=point.reestimated,
        common=["model", *(f"{name}={value!r}" for name, value in options.items())],
        input_range=options.get("input_range", (0.0, 1.0)),
        repr=repr,
    )
