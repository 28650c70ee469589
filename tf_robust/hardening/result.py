"""Result of hardening in Python: the model, its files and its report, with the lines of Python that repeat the training."""

import dataclasses
import html
import os
import shutil
import tempfile
import typing
from collections.abc import Mapping, Sequence

import jinja2
import keras

from tf_robust import evaluation, methods, metrics, report
from tf_robust.hardening.candidates import mixture_views
from tf_robust.hardening.config import HardenConfig
from tf_robust.hardening.diagnosis import Diagnosis
from tf_robust.hardening.trainable import TrainableModel
from tf_robust.hardening.training import MOMENTUM, NOISE
from tf_robust.hardening.trials import Choice, Point, Trial, best_point
from tf_robust.report.images import Image
from tf_robust.report.sections import Section, changes, frame_of, number
from tf_robust.utils.files import read_json, write_json

START, HARDENED = "initial", "hardened"
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
{% if noise %}
noise = tfr.layers.PatchGaussian({{ noise }}).augment
{% endif %}
{% for candidate, parts, method, settings in members %}

# {{ candidate.name }}, {{ "{:,}".format(sum(parts)) }} steps
model.set_weights(start)
method = tfr.methods.{{ method }}(
    model,
{% for name, value in settings.items() %}
    {{ name }}={{ value }},
{% endfor %}
)
with fine_tuning(model, {{ repr(candidate.layers) }}):
    for steps in {{ repr(parts) }}:
        rate = keras.optimizers.schedules.CosineDecay({{ "{:g}".format(candidate.learning_rate) }}, steps)
        method.compile(optimizer=keras.optimizers.SGD(rate, momentum={{ momentum }}))
        method.fit(dataset{{ flipped if candidate.augmentations else "" }}, steps_per_epoch=steps)
ends.append(model.get_weights())
{% endfor %}
{% if members %}

model.set_weights(interpolate(start, average(ends), {{ "{:g}".format(point.coefficient) }}))
{% endif %}
{% if point.reestimated %}

from tf_robust.hardening.training import BATCHES, reestimate

low, high = {{ input_range }}
augmix = tfr.layers.AugMix()
scaled = ((x - low) / (high - low) for x, _ in dataset.take(BATCHES))
mixture = (tf.concat([{{ mixture }}], axis=0) for x in scaled)
network = tfr.methods.CrossEntropy(model{% for name, value in options.items() %}, {{ name }}={{ repr(value) }}{% endfor %}).network
reestimate(model, network, model.get_weights(), mixture)
{% endif %}
model.save("robust.keras")
"""
)


@dataclasses.dataclass(eq=False, repr=False)
class Hardened:
    """Result of hardening: the model, and what is known of it.

    `notes` are on the choice, by validation images, as are `diagnosis`, `trials`, `points` and `choice`; `sentences`, `values` and
    `evaluations` are on test images. An interrupted search has no evaluations; if nothing helps, the initial model's alone.

    Examples:
        >>> settings = {"target": "adversarial", "attack_radius": 0.1, "attack": "pgd", "attack_radii": "linf_0.1"}
        >>> hardened = tfr.harden("zoo:digits/lenet_cross_entropy", budget="400steps", evaluations="clean", **settings)  # doctest: +SKIP
        >>> hardened.changed, hardened.chosen.coefficient  # doctest: +SKIP
        (True, 0.875)
        >>> hardened.sentences[0]  # doctest: +SKIP
        'PGD attack, L∞ radius 0.1: best hardened 82.0%, +30.5 points [24.1, 36.9] vs initial, significant.'
    """

    trainable: TrainableModel  # the model; has the weights of the result
    config: HardenConfig
    notes: list[str]  # sentences on the choice
    start: Point  # the initial model
    diagnosis: Diagnosis
    trials: Sequence[Trial]
    points: Sequence[Point]  # of the frontier
    choice: Choice | None  # None: no point keeps the clean accuracy
    data: str  # name of the data set whose test part is for the final evaluation; empty: data in memory
    validation_fraction: float | None  # of the data, that neither the initial model nor the search was trained on; None: not known
    trained_on: list[dict]  # data of the initial model and of the search, as `interface.trainings` returns them
    seconds: float
    seed: int
    batch_size: int
    interrupted: bool  # before its budget was used up
    temporary: tempfile.TemporaryDirectory | None = None  # folder of the evaluations, which is deleted with the result
    evaluations: list[dict] = dataclasses.field(default_factory=list)  # of the initial and the hardened model, as in `evaluation.json`
    images: list[Image] = dataclasses.field(default_factory=list)  # figures for the report, (path of a PNG file, caption)
    target_on_test: str = ""  # sentence on the target, on test images at the severities of the search; empty: see `evaluations`
    files: list[str] = dataclasses.field(default_factory=list)  # lines on the ONNX file and the PyTorch weights beside the Keras file

    def __repr__(self) -> str:
        return f"<Hardened: {self.notes[0]}>"

    def _repr_html_(self) -> str:
        return "".join(f"<p>{html.escape(sentence)}</p>" for sentence in [*self.notes, *self.sentences])

    @property
    def model(self) -> keras.Model:
        """The hardened model: a keras.Model, or what `tf.saved_model.load` returns; unchanged if nothing helps."""
        return self.trainable.model

    @property
    def module(self) -> typing.Any:
        """A copy of the `torch.nn.Module` that was hardened, with the new weights; the given one is unchanged.

        Raises ValueError if the model is not PyTorch's.
        """
        if (record := self.trainable.origin) is None:
            raise ValueError(f"Expected a PyTorch model. Received: {self.trainable.classifier.path}. Try: model, a Keras model")
        return record.module()

    @property
    def chosen(self) -> Point | None:
        """The point of the frontier that is the hardened model; None: nothing helps."""
        return self.choice.point if self.choice and self.choice.helps else None

    @property
    def changed(self) -> bool:
        """Whether a more robust model was found."""
        return self.chosen is not None

    @property
    def values(self) -> dict[str, tuple[float, float]]:
        """{metric: (of the initial model, of the hardened model)} on the test images; both are equal if nothing helps."""
        if not self.evaluations:
            return {}
        before, after = ({row["metric"]: row["value"] for row in self.evaluations[i]["rows"]} for i in (0, -1))
        return {name: (value, after[name]) for name, value in before.items() if name in after}

    @property
    def sentences(self) -> list[str]:
        """The summary of the final evaluation, on test images."""
        return [*filter(None, [self.target_on_test]), *report.summary_lines(self._table())] if len(self.evaluations) > 1 else []

    def _table(self):
        return report.aggregate(self.evaluations, baseline=START, per_image=evaluation.PerImage())

    @property
    def recipe(self) -> str:
        """Lines of Python that train the chosen recipe without the search; empty if nothing helps.

        They are empty for a SavedModel, too, and for a model of images that are normalized per channel.
        """
        options = self.trainable.options
        scaled = self.trainable.network is not self.model and "input_range" not in options
        if not self.chosen or not isinstance(self.model, keras.Model) or scaled:
            return ""
        path, record = self.trainable.classifier.path, self.trainable.origin
        size = tuple(record.model.input_shape[1:3]) if record else None
        return lines_of(
            self.chosen,
            path,
            batch_size=self.batch_size,
            seed=self.seed,
            options=options,
            image_size=size,
            mixture=mixture_views(self.config.weights),
        )

    def save(self, path: str) -> str:
        """Writes the model, of the kind that was given, and returns the path: a Keras file, or a SavedModel with the same signatures.

        Of a model of ONNX or PyTorch the suffix decides: `.keras`, `.onnx` (a copy of the file with the new weights) or `.pt` (the
        `state_dict`). Raises ValueError for a suffix of another kind; OSError if it cannot be written.
        """
        path = self.trainable.save(path)
        self.update_card(path)
        return path

    def update_card(self, path: str) -> None:
        """Replaces what does not hold for the hardened model in the copied card of a SavedModel (at `path`) that this package exported."""
        file = os.path.join(path, "card.json")
        if not os.path.exists(file):
            return
        final = self.evaluations[-1] if self.evaluations else {"rows": [], "card": {}}
        of_start = {field: value for field, value in read_json(file).items() if field not in ("confidence", "division")}
        new = {"rows": final["rows"], "evaluation_card": final["card"], "hardened": self.notes[0], "trained_on": self.trained_on}
        write_json(file, {**of_start, **({"data": self.data} if self.data else {}), **new})

    def card(self) -> dict:
        """Returns the record of the search and of the final evaluation, for JSON."""
        choice, point, classifier = self.choice, self.chosen, self.trainable.classifier
        members = point.members if point else ()
        return {
            "initial_model": classifier.path,
            "model": f"{HARDENED}{self.trainable.suffix}" if point else None,
            "interface": classifier.interface.conventions(),
            **{name: getattr(self, name) for name in ("data", "validation_fraction", "trained_on", "seed", "batch_size")},
            "config": dataclasses.asdict(self.config),
            "seconds": round(self.seconds, 1),
            "chosen": point.name if point else None,
            "coefficient": point.coefficient if point else None,
            "recipe": [{**dataclasses.asdict(one.candidate), "strengths": {}, "steps": list(one.parts)} for one in members],
            "validation": {"clean": dict(choice.clean), "target": dict(choice.target), "helps": choice.helps} if choice else None,
            "diagnosis": dataclasses.asdict(self.diagnosis),
            "trials": [
                {"name": one.candidate.name, "rung": one.rung + 1, "steps": one.steps, "seconds": round(one.seconds, 1), **best.values}
                for one, best in self._best_points()
            ],
            "notes": [*self.notes, *self.sentences],
            "test": {name: list(values) for name, values in self.values.items()},
        }

    def _best_points(self):
        """(trial, its better interpolation) of each trial."""
        return [(one, best_point(self.start, one.points, self.config.max_clean_loss)) for one in self.trials]

    def frontier(self) -> "report.Chart":
        """Returns the chart of clean accuracy against the target on the validation images, of the initial model and all interpolations."""
        from tf_robust.hardening.frontier import frontier_chart  # imports altair, which takes more than half a second

        return frontier_chart(self.start, self.points, self.chosen, self.config.target, self.config.max_clean_loss)

    def report(self, path: str = "harden.html", command: str = "tf_robust in Python") -> str:
        """Writes the report, one self-contained HTML file, and returns its path; raises ValueError if the search was interrupted.

        `command` is the one that made it.
        """
        from tf_robust.report import comparison

        if not self.evaluations:
            raise ValueError("Expected a finished search. Received: one that was interrupted. Try: run it again; it resumes")
        first, *further = changes(self._table()) if len(self.evaluations) > 1 else [None]
        tables, charts = [self.diagnosis.section(), self._trials_table(), *further], [self.frontier()]
        lines = [*filter(None, [self.target_on_test]), *self.notes]
        added = report.Additions(lines=lines, first=first, charts=charts, images=self.images, tables=tables, code=self.recipe)
        title = f"{os.path.basename(self.trainable.classifier.path)}, {'hardened' if self.changed else 'not hardened: nothing helps'}"
        suite = {"baseline": START}
        with tempfile.TemporaryDirectory() as folder:
            comparison.write_report(folder, self.evaluations, title=title, command=command, suite=suite, additions=added)
            os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
            shutil.copyfile(os.path.join(folder, "report.html"), path)
        return path

    def _trials_table(self):
        none = [None] * 3
        lines = {"initial model": [*none, self.start.clean, self.start.target, None]}
        if point := self.chosen:
            lines[f"chosen: {point.name}"] = [*none, *point.values.values()]
        for trial, best in self._best_points():
            name = f"{trial.candidate.name}{', diverged' * trial.diverged} (rung {trial.rung + 1})"
            values = none if trial.diverged else best.values.values()
            lines[name] = [trial.rung + 1, trial.steps, round(trial.seconds), *values]
        cells = {name: [number(one) for one in line] for name, line in lines.items()}
        return Section(
            "Candidates",
            frame_of("candidate", cells, ["rung", "steps", "seconds", "clean", "target", "coefficient"]),
            "Accuracies on validation images, of the interpolation that attains more within the maximum clean loss. A candidate "
            "starts from the model's own weights, and goes on in a later rung; steps and seconds are sums over its rungs.",
        )


def lines_of(
    point: Point,
    path: str,
    *,
    batch_size: int,
    seed: int,
    options: Mapping[str, typing.Any],
    image_size: tuple[int, ...] | None = None,
    mixture: Sequence[str] = ("clean", "augmix"),
) -> str:
    """Returns lines of Python that fine-tune a model as a point of the frontier was, and interpolate its weights.

    The order of the images and the draws differ from the search, so that the results are alike, not equal. `path` is the file of the
    initial model; `options` are arguments of all methods, such as `input_range`; `image_size` is that of a converted model; batch
    normalization is estimated anew on images in the views `mixture`.
    """
    members = []
    for candidate, parts, _ in point.members:
        method, views = methods.METHODS[candidate.method], {}
        if candidate.views != method.default_views:
            quoted = (name if name in ("extra_corruptions", "noise") else repr(name) for name in candidate.views)
            views = {"views": f"({', '.join(quoted)},)"}
        settings = {name: repr(value) for name, value in candidate.settings.items()}
        settings |= views | {name: repr(value) for name, value in {"seed": seed, **options}.items()}
        members.append((candidate, parts, method.__name__, settings))
    candidates = [candidate for candidate, *_ in members]
    noise = ", ".join(f"{name}={value}" for name, value in NOISE.items())
    changed = {"clean": "x", "augmix": "augmix(x)", "noise": f"tfr.layers.PatchGaussian({noise})(x)"}
    load = f"model = keras.saving.load_model({path!r}, compile=False)"
    load = f"model = tfr.load({path!r}, trainable=True, image_size={image_size})" if image_size else load
    return _RECIPE.render(
        model=load if os.path.isfile(path) else "# model: the one before the search",
        seed=seed,
        batch_size=batch_size,
        flip=any(candidate.augmentations for candidate in candidates),
        extra_corruptions=metrics.EXTRA if any("extra_corruptions" in candidate.views for candidate in candidates) else (),
        noise=noise if any("noise" in one.views for one in candidates) else "",
        members=members,
        momentum=MOMENTUM,
        point=point,
        options=options,
        flipped=".map(lambda x, y: (flip(x, training=True), y))",
        input_range=options.get("input_range", (0.0, 1.0)),
        mixture=", ".join(changed[view] for view in mixture),
        repr=repr,
        sum=sum,
    )
