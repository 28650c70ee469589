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
import warnings

from tf_robust import attacks, evaluation, report
from tf_robust.experiments.compatibility import RENAMED_FLAGS
from tf_robust.experiments.config import DATA
from tf_robust.experiments.flags import flag_names, parsed, runs_of, text_of, values_of, with_values
from tf_robust.experiments.run import PATH_FLAGS, check_fit, checked_once, declared_by
from tf_robust.report import charts as of_tables
from tf_robust.saved_models import loading
from tf_robust.utils import hyperparameters
from tf_robust.utils.deprecation import moved_names

__getattr__ = moved_names(__name__, {"pictures": "api.images"})


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


def train(folder, **arguments):
    """Trains, exports and measures one run, unless that is done there already. arguments: flags by name, say method="fcl", epochs=3.

    Returns:
        Result

    Raises:
        ValueError: a flag that does not exist or has no effect here, or a bad value; the workdir belongs to a run with other flags.
    """
    arguments = _renamed(arguments)
    run = _run(arguments)
    _refuse(arguments, {*run.flags, *PATH_FLAGS}, f"a training with the method {run.config.method!r}")
    run.row = run.shown_as = os.path.basename(os.path.abspath(folder))
    return Result(folder, run.complete(folder))


def evaluate(model, **arguments):
    """Measures a model on the data that the flags name.

    Args:
        model: the path of a model (a SavedModel folder, a `.keras` file, the workdir of a run), a keras.Model, or a callable from
            images [N, H, W, C] to scores [N, classes]. By default it takes float32 in [0, 1] and returns logits.
        arguments: flags by name: data and what is measured, say data="cifar10", evaluations="clean,corruptions", subset=1000; and the
            interface of the model, where it is another one: input_range="0,255", outputs="probabilities", input_size=224,
            signature="serving" (of a SavedModel).

    Returns:
        {measure: value}

    Raises:
        ValueError: a flag that does not exist or has no effect here, or a bad value; the model does not fit the images.
    """
    arguments = _renamed(arguments)
    run = _run(arguments)
    eval_config, with_training = run.eval_config, run.eval_config.needs_training_set
    used = {*DATA, *eval_config.used, *hyperparameters.parameters(loading.ModelInterface)}
    _refuse(
        arguments,
        {*used, "train_examples", "label_fraction", "seeds"} if with_training else used,
        f"the evaluations {', '.join(eval_config.evaluations)}",
    )
    interface = loading.ModelInterface(**values_of(run.values, loading.ModelInterface))
    predict = _classifier(model, interface)
    run.model_size = loading.image_size_of(predict)
    source = declared_by(predict, run.measured_source())
    check_fit(predict, source)
    training_source = run.source("train") if with_training else None
    with source.reading():
        rows = evaluation.evaluate(
            checked_once(predict), source, training_source, eval_config, log=lambda _: None, data_dir=run.config.data_dir or None
        )
    return {row.measure: row.value for row in rows}


def images(count, **arguments):
    """The first images of the data that the flags name, of all classes: (float32 [N, H, W, C] in [0, 1], int64 [N]) arrays."""
    arguments = _renamed(arguments)
    run = _run(arguments)
    _refuse(arguments, {*DATA, "evaluation_split", "subset"}, "reading images")
    return evaluation.first_images(run.measured_source(), count)


def attack(model, images, labels, name="pgd", **settings):
    """What an attack makes of images: float32 [N, H, W, C]. name and settings: of `attacks.ATTACKS`, say norm="l2", radius=0.5."""
    if name not in attacks.ATTACKS:
        raise ValueError(f"Expected an attack of: {', '.join(attacks.ATTACKS)}. Received: {name!r}")
    return attacks.ATTACKS[name](**settings)(_classifier(model, loading.ModelInterface()), images, labels)


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
    if interface != loading.ModelInterface():
        raise ValueError(
            f"Expected no input_range, outputs, signature or input_size for a model that was loaded with them. Received: "
            f"{interface}. Try: its path, {model.path}"
        )
    return model


def _run(arguments):
    """The one run that keyword arguments, named as the flags, describe."""
    if unknown := arguments.keys() - set(flag_names()):
        raise ValueError(
            f"Expected flags by name, as `python run_experiment.py --helpfull` lists them. Received: {', '.join(sorted(unknown))}"
        )
    values = with_values(parsed([]), arguments)
    if len(values.seeds) > 1:
        raise ValueError(f"Expected one seed. Received: seeds={text_of(values.seeds)}. Try: a call for each")
    run = runs_of(values, values.method)[0]
    run.values = values
    return run


def _renamed(arguments):
    """Arguments of the previous version under their present names."""
    for old in arguments.keys() & RENAMED_FLAGS.keys():
        warnings.warn(
            f"{old} is now {RENAMED_FLAGS[old]}. The old name will be removed in the next release.", DeprecationWarning, stacklevel=3
        )
    return {RENAMED_FLAGS.get(name, name): value for name, value in arguments.items()}


def _refuse(arguments, used, where):
    """Raises ValueError if an argument has no effect."""
    if without := sorted(arguments.keys() - used):
        raise ValueError(f"Expected arguments that have an effect on {where}. Received: {', '.join(without)}. Try: leave them out")
