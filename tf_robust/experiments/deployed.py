"""Evaluates a model in several formats side by side (`tf-robust evaluate MODEL --formats=...`): what is deployed, not what was trained."""

import dataclasses
import os
from collections.abc import Sequence

from absl.flags import FlagValues

from tf_robust.evaluation import Measure, check_requirements, parse_requirements
from tf_robust.experiments import measuring, model_evaluation
from tf_robust.experiments.evaluated_model import EvaluatedModel, evaluated_model
from tf_robust.experiments.evaluation_data import EvaluationData
from tf_robust.experiments.exporting import export_model
from tf_robust.experiments.locations import row_name
from tf_robust.experiments.reporting import report
from tf_robust.experiments.runs import runs_of
from tf_robust.saved_models import latency, loading
from tf_robust.saved_models.deployed_files import size
from tf_robust.utils import environment
from tf_robust.utils.files import write_json


def measure_and_report(values: FlagValues, argv: Sequence[str]) -> list[dict]:
    """Exports a model, evaluates each file by its own runtime on the same images, and writes and prints one report.

    Attacks are the same for all formats: Square, and PGD transferred from the model itself, as most formats have no gradients.

    Args:
        values: parsed flags.
        argv: the arguments from which they were parsed.

    Returns:
        The evaluations, one for each format, as in `evaluation.json`, with the folder of their records as "measured_in".

    Raises:
        ValueError: as in `exporting.export_model` and `measuring.measure_and_report`.
    """
    model = evaluated_model(values, values.saved_model)
    folder = os.path.join(measuring.folder_of(model), "formats")
    run = runs_of(model.values, row_name(model.path))[0]
    check_requirements(parse_requirements(values.require), run.eval_config)
    given = _with_attacks(run.data(), model)
    paths = export_model(model, values.formats, os.path.join(folder, "exported"), reuse=True)
    evaluations = []
    for name, path in paths.items():
        print(f"{name}:", flush=True)
        content = _evaluate(name, path, given, os.path.join(folder, name), model)
        write_json(os.path.join(folder, name, "evaluation.json"), content)
        evaluations.append({**content, "measured_in": os.path.join(folder, name)})
    notes = [f"Latency: one image, one thread, median over calls, {environment.cpu_model()}."]
    table = {"title": f"{model.path} on {run.config.data}, by format", "baseline": next(iter(paths)), "notes": notes}
    report(folder, evaluations, None, table, {}, argv)
    print("\n".join(notes))
    return evaluations


def _with_attacks(given: EvaluationData, model: EvaluatedModel) -> EvaluationData:
    """Returns data with attacks that suit every format, unless the user chose others."""
    config = given.eval_config
    if "adversarial" not in config.evaluations:
        return given
    attack = config.attack if model.values["attack"].present else ("square",)
    return dataclasses.replace(given, eval_config=dataclasses.replace(config, attack=attack, surrogate=config.surrogate or model.path))


def _evaluate(name: str, path: str, given: EvaluationData, folder: str, model: EvaluatedModel) -> dict:
    """Returns the evaluation of one file, with its size and its latency."""
    trust = model.values.trust
    classifier = loading.load_classifier(path, loading.ModelInterface(trust=trust))
    done = model_evaluation.evaluate(classifier, given, folder, row=name, saved_model=path, split_chosen=True)
    milliseconds, calls = latency.milliseconds(path, tuple(done.source.image_shape), trust)
    measures = [
        Measure("deployed", "bytes").with_value(size(path), 1),
        Measure("deployed", "milliseconds").with_value(milliseconds, calls),
    ]
    return {**done.content, "rows": [*done.content["rows"], *(measure.to_json() for measure in measures)], "cpu": environment.cpu_model()}
