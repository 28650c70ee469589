"""For notebooks: train, measure, attack and compare in a line each, told by the same names, with the same defaults, as the flags.

    from tf_robust import api
    result = api.train("runs/fcl", data="synthetic_digits", method="fcl", fcl_k=20, epochs=5)
    result.values["un"], api.evaluate(result.model, evaluations="clean,corruptions", subset=500)
    api.charts(api.train("runs/xe", epochs=5), result)[0]

What an argument means: `python run_experiment.py --helpfull`, and the classes that it is an argument of.
"""

import dataclasses
import functools
import os

from absl import flags

from tf_robust import attacks, command_line, evaluation, loading, report
from tf_robust.report import charts as of_tables


@dataclasses.dataclass(frozen=True)
class Result:
    """A trained and measured run.

    Attributes:
        folder: its workdir. evaluation: the content of its `evaluation.json`.
    """
    folder: str
    evaluation: dict

    @property
    def values(self):
        """{measure: value}"""
        return {row["measure"]: row["value"] for row in self.evaluation["rows"]}

    @functools.cached_property
    def model(self):
        """The exported model: float32 [N, H, W, C] in [0, 1] -> logits [N, C]; can be differentiated."""
        return loading.load_classifier(os.path.join(self.folder, "saved_model"))


def train(folder, **told):
    """Trains, exports and measures one run, unless that is done there already. told: flags by name, say method="fcl", epochs=3.

    Returns:
        Result

    Raises:
        ValueError: a flag that is not there, or a bad value; the workdir belongs to a run that was told otherwise.
    """
    run = _run(told)
    run.row = run.shown_as = os.path.basename(os.path.abspath(folder))
    return Result(folder, run.complete(folder))


def evaluate(model, **told):
    """Measures a model on the data that the flags name.

    Args:
        model: a SavedModel's folder, or any callable from float32 [N, H, W, C] in [0, 1] to logits [N, C].
        told: flags by name, say data="cifar10", evaluations="clean,corruptions", subset=1000.

    Returns:
        {measure: value}
    """
    run = _run(told)
    predict = loading.load_classifier(model) if isinstance(model, str) else model
    run.model_size = loading.image_size_of(predict)
    training_source = run.source("train") if run.measuring.needs_training_set else None
    rows = evaluation.evaluate(predict, run.measured_source(), training_source, run.measuring, say=lambda _: None)
    return {row.measure: row.value for row in rows}


def pictures(count, **told):
    """The first pictures of the data that the flags name, of all classes: (float32 [N, H, W, C] in [0, 1], int64 [N]) arrays."""
    return evaluation.first_pictures(_run(told).measured_source(), count)


def attack(model, images, labels, name="pgd", **settings):
    """What an attack makes of pictures: float32 [N, H, W, C]. name and settings: of `attacks.ATTACKS`, say norm="l2", radius=0.5."""
    if name not in attacks.ATTACKS:
        raise ValueError(f"Expected an attack of: {', '.join(attacks.ATTACKS)}. Received: {name!r}")
    return attacks.ATTACKS[name](**settings)(model, images, labels)


def charts(*results, baseline=None):
    """The charts of a comparison of `Result`s, as a notebook shows them. baseline: the row to compare with."""
    evaluations = [result.evaluation for result in results]
    return of_tables.of_table(report.aggregate(evaluations, baseline=baseline), evaluations)


def frame(*results):
    """A line for every run and measure: a `pandas.DataFrame`."""
    return report.to_frame([result.evaluation for result in results])


def _run(told):
    known = command_line.define_flags(flags.FlagValues())
    unknown = told.keys() - set(known)
    if unknown:
        raise ValueError("Expected flags by name, as `python run_experiment.py --helpfull` lists them. "
                         f"Received: {', '.join(sorted(unknown))}")
    values = command_line.parsed([f"--{name}={command_line.text_of(value)}" for name, value in told.items()])
    runs = command_line.runs_of(values, known, values.method)
    command_line.warn_of_ignored_flags(runs)
    return runs[0]
