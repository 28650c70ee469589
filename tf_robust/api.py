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

from tf_robust import attacks, evaluation, report
from tf_robust.experiments import config
from tf_robust.experiments.flags import define_flags, parsed, runs_of, text_of, values_of
from tf_robust.experiments.run import PLACES, check_fit, checked_once, declared_by
from tf_robust.report import charts as of_tables
from tf_robust.saved_models import loading
from tf_robust.utils import hyperparameters


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
        ValueError: a flag that does not exist or has no effect here, or a bad value; the workdir belongs to a run with other flags.
    """
    run = _run(told)
    _refuse(told, {*run.flags, *PLACES}, f"a training with the method {run.settings.method!r}")
    run.row = run.shown_as = os.path.basename(os.path.abspath(folder))
    return Result(folder, run.complete(folder))


def evaluate(model, **told):
    """Measures a model on the data that the flags name.

    Args:
        model: the path of a model (a SavedModel folder, a `.keras` file, the workdir of a run), a keras.Model, or a callable from
            images [N, H, W, C] to scores [N, classes]. By default it takes float32 in [0, 1] and returns logits.
        told: flags by name: data and what is measured, say data="cifar10", evaluations="clean,corruptions", subset=1000; and the
            interface of the model, where it is another one: input_range="0,255", outputs="probabilities", input_size=224,
            signature="serving" (of a SavedModel).

    Returns:
        {measure: value}

    Raises:
        ValueError: a flag that does not exist or has no effect here, or a bad value; the model does not fit the images.
    """
    run = _run(told)
    measuring, with_training = run.measuring, run.measuring.needs_training_set
    used = {*config.DATA, *measuring.used, *hyperparameters.parameters(loading.Interface)}
    _refuse(told, {*used, "train_examples", "label_fraction", "seeds"} if with_training else used,
            f"the evaluations {', '.join(measuring.evaluations)}")
    interface = loading.Interface(**values_of(run.values, loading.Interface))
    predict = _classifier(model, interface)
    run.model_size = loading.image_size_of(predict)
    source = declared_by(predict, run.measured_source())
    check_fit(predict, source)
    training_source = run.source("train") if with_training else None
    with source.reading():
        rows = evaluation.evaluate(checked_once(predict), source, training_source, measuring, say=lambda _: None,
                                   data_dir=run.settings.data_dir or None)
    return {row.measure: row.value for row in rows}


def pictures(count, **told):
    """The first pictures of the data that the flags name, of all classes: (float32 [N, H, W, C] in [0, 1], int64 [N]) arrays."""
    run = _run(told)
    _refuse(told, {*config.DATA, "evaluation_split", "subset"}, "reading images")
    return evaluation.first_pictures(run.measured_source(), count)


def attack(model, images, labels, name="pgd", **settings):
    """What an attack makes of pictures: float32 [N, H, W, C]. name and settings: of `attacks.ATTACKS`, say norm="l2", radius=0.5."""
    if name not in attacks.ATTACKS:
        raise ValueError(f"Expected an attack of: {', '.join(attacks.ATTACKS)}. Received: {name!r}")
    return attacks.ATTACKS[name](**settings)(_classifier(model, loading.Interface()), images, labels)


def charts(*results, baseline=None):
    """The charts of a comparison of `Result`s, as a notebook shows them. baseline: the row to compare with."""
    evaluations = [result.evaluation for result in results]
    return of_tables.of_table(report.aggregate(evaluations, baseline=baseline), evaluations)


def frame(*results):
    """A line for every run and measure: a `pandas.DataFrame`."""
    return report.to_frame([result.evaluation for result in results])


def _classifier(model, interface):
    """The `loading.Classifier` of a path, a keras.Model or another callable."""
    if isinstance(model, (str, os.PathLike)):
        return loading.load_classifier(model, interface)
    if not isinstance(model, loading.Classifier):
        return loading.classifier_of(model, interface)
    if interface != loading.Interface():
        raise ValueError(f"Expected no input_range, outputs, signature or input_size for a model that was loaded with them. Received: "
                         f"{interface}. Try: its path, {model.path}")
    return model


def _run(told):
    known = define_flags(flags.FlagValues())
    unknown = told.keys() - set(known)
    if unknown:
        raise ValueError("Expected flags by name, as `python run_experiment.py --helpfull` lists them. "
                         f"Received: {', '.join(sorted(unknown))}")
    values = parsed([f"--{name}={text_of(value)}" for name, value in told.items()])
    if len(values.seeds) > 1:
        raise ValueError(f"Expected one seed. Received: seeds={text_of(values.seeds)}. Try: a call for each")
    run = runs_of(values, known, values.method)[0]
    run.values = values
    return run


def _refuse(told, used, where):
    """Raises ValueError if an argument has no effect."""
    if without := sorted(told.keys() - used):
        raise ValueError(f"Expected arguments that have an effect on {where}. Received: {', '.join(without)}. Try: leave them out")
