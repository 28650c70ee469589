"""Evaluates a saved model on the data that flags describe (`tf-robust evaluate`)."""

import dataclasses
import functools
import os
import shutil
from collections.abc import Mapping, Sequence

from absl.flags import FlagValues

from tf_robust.evaluation import (
    PER_IMAGE,
    EvalConfig,
    Outcome,
    PerImage,
    check_measures,
    check_requirements,
    parse_measure,
    parse_requirements,
    read_evaluation,
)
from tf_robust.experiments import comparison
from tf_robust.experiments.commands import command
from tf_robust.experiments.completion import share
from tf_robust.experiments.evaluated_model import EvaluatedModel, evaluated_model
from tf_robust.experiments.flags import arguments_of, parse_arguments
from tf_robust.experiments.launchers import launcher_of
from tf_robust.experiments.locations import folder_name, row_name
from tf_robust.experiments.model_checks import print_note
from tf_robust.experiments.reporting import report
from tf_robust.experiments.runs import runs_of, warn_of_training_options, warn_of_unused_options
from tf_robust.report.formatting import difference_text
from tf_robust.report.measure_order import by_family, headlines_of, without_members
from tf_robust.report.summary import is_significant
from tf_robust.report.tables import aggregate, gain
from tf_robust.utils.files import read_json, write_json


def measure_and_report(values: FlagValues, argv: Sequence[str]) -> dict:
    """Evaluates a saved model, or the model of a workdir with the flags of its run, and writes and prints the report.

    Args:
        values: parsed flags.
        argv: the arguments from which they were parsed.

    Returns:
        The evaluation, as in `evaluation.json`, and the folder of its records as "measured_in".

    Raises:
        ValueError: there is no model, --workdir holds a run, or --require names a measure that the evaluation does not give.
    """
    model = evaluated_model(values, values.saved_model)
    folder = folder_of(model)
    run = runs_of(model.values, row_name(model.path))[0]
    check_required(values, run.eval_config, run.config.label_fraction)
    warn_of_unused_options(values, [run.eval_config])
    warn_of_training_options(values, "an evaluation")
    before = os.path.join(folder, "evaluation.json")
    earlier = read_json(before) if os.path.exists(before) else {}
    if model.run:
        _copy_records(model.run, folder)
    if launcher := launcher_of(values.launcher, values.launcher_options, folder):
        share(launcher, functools.partial(_measure, arguments_of(values), folder), folder)
    evaluation, data = model.evaluate(run, folder)
    others = [
        name for name, field in (("another model", "model_digest"), ("other flags", "measuring")) if earlier.get(field) != evaluation[field]
    ]
    if earlier and others:
        print_note(f"this replaces the results in {folder}, of {' and '.join(others)}. To keep both: --workdir=DIR.")
    if not run.eval_config.per_image and os.path.isdir(os.path.join(folder, PER_IMAGE)):
        print_note(f"{os.path.join(folder, PER_IMAGE)} is of an earlier evaluation. Try: --per_image")
    write_json(os.path.join(folder, "evaluation.json"), evaluation)
    siblings = os.path.join(os.path.dirname(os.path.normpath(folder)) or ".", "*")
    report(
        folder,
        [{**evaluation, "measured_in": folder}],
        data,
        {"title": f"{model.path} on {run.config.data}"},
        {"compare it with the others in its folder": command("report", siblings)},
        argv,
    )
    if run.eval_config.per_image:
        print(f"Results of each image: {os.path.join(folder, PER_IMAGE)}{os.sep}")
    return {**evaluation, "measured_in": folder}


def check_required(values: FlagValues, eval_config: EvalConfig, label_fraction: float, deployed: bool = False) -> None:
    """Checks, before an evaluation, that it gives the measures of --require, and those in which it is compared with a baseline.

    Args:
        values: parsed flags.
        eval_config: what is measured.
        label_fraction: as in `check_measures`.
        deployed: as in `check_measures`.

    Raises:
        ValueError: it does not.
    """
    check_requirements(parse_requirements(values.require), eval_config, label_fraction, deployed)
    if values.require_not_worse_than:
        mains = main_measures(read_baseline(values.require_not_worse_than))
        check_measures(mains, eval_config, "--require_not_worse_than", label_fraction)


def _copy_records(run: str, folder: str) -> None:
    """Copies the records of a run to the folder of a further evaluation of its model, which measures the same sets only once."""
    of_run, own = (os.path.join(place, "measured.jsonl") for place in (run, folder))
    if os.path.exists(of_run) and not os.path.exists(own):
        os.makedirs(folder, exist_ok=True)
        shutil.copyfile(of_run, own)


def _measure(arguments: Sequence[str], folder: str) -> None:
    """Measures the sets of an evaluation that no other process measures, until all are measured."""
    values = parse_arguments(arguments)
    model = evaluated_model(values, values.saved_model)
    model.evaluate(runs_of(model.values, row_name(model.path))[0], folder, draw=False)


def read_baseline(path: str) -> dict:
    """Returns the evaluation of a file `evaluation.json`, and the folder of its records as "measured_in".

    Raises:
        FileNotFoundError: the file or its records are missing.
        ValueError: it is no evaluation.
    """
    folder = os.path.dirname(os.path.abspath(path))
    for file in (path, os.path.join(folder, "measured.jsonl")):
        if not os.path.isfile(file):
            raise FileNotFoundError(
                "Expected --require_not_worse_than=DIR/evaluation.json with the records per image, measured.jsonl, next to it. "
                f"Not found: {file}. Try: tf-robust evaluate BASELINE_MODEL --workdir=DIR"
            )
    return {**read_evaluation(path), "measured_in": folder}


def main_measures(evaluation: Mapping) -> list[str]:
    """Returns the measures of an evaluation by which another model is compared with its model; not size and latency of a file."""
    measures = by_family(row["measure"] for row in evaluation["rows"] if parse_measure(row["measure"]).family != "deployed")
    return headlines_of(without_members(measures), set())


def not_worse(measured: Mapping, baseline: Mapping) -> list[Outcome]:
    """Returns the outcome of every main measure of a baseline: it is not met if the model is significantly worse on the same images.

    Args:
        measured: evaluation of the model, with "measured_in".
        baseline: evaluation of the baseline, with "measured_in".

    Raises:
        ValueError: the model lacks a main measure, or they were evaluated on different images or in different ways.
    """
    mains, own = main_measures(baseline), {row["measure"] for row in measured["rows"]}
    missing = [measure for measure in mains if measure not in own and not _has_no_value(measure, measured)]
    if missing or not mains:
        lacking = f"the model lacks {', '.join(missing)}" if mains else "the baseline has none"
        raise ValueError(
            f"Expected the main measures of {baseline['saved_model']} of the model too, to compare them. Received: {lacking}. "
            "Try: the same --evaluations for both"
        )
    evaluations = [{**one, "row": row, "seed": 0} for row, one in (("baseline", baseline), ("model", measured))]
    table = aggregate(evaluations, baseline="baseline", per_image=PerImage(comparison.records_in))
    return [
        {
            "metric": entry["measure"],
            "bound": f"not worse than {baseline['saved_model']}",
            "value": entry["mean"],
            "met": gain(entry) >= 0 or not is_significant(table, entry),
            "difference": difference_text(entry["difference"]),
        }
        for entry in table["rows"]
        if entry["measure"] in mains and entry["difference"]
    ]


def _has_no_value(measure, measured):
    """Whether a measure has no value: the distance of an attack that fails, the accuracy of a model that always abstains."""
    name, options = parse_measure(measure), measured["measuring"]
    if name.family == "abstention":
        return str(dataclasses.replace(name, name="coverage")) in {row["measure"] for row in measured["rows"]}
    if name.family == "distance":
        return "attack_curves" in options["evaluations"] and name.name in options["curve_attacks"]
    return name.family in ("boundary", "utility") and name.family in options["evaluations"]


def folder_of(model: EvaluatedModel) -> str:
    """Returns the folder of the evaluation of a model.

    Raises:
        ValueError: --workdir holds a run.
    """
    values = model.values
    if model.run and (not values.workdir or not values.saved_model):
        return os.path.join(model.run, "measured")
    others = {*values.evaluations} - {"clean"}
    kind = (
        "attack" if others and others <= {"adversarial", "attack_curves", "certified"} else "evaluation"
    )  # neither replaces the other's report
    folder = values.workdir or os.path.join("runs", kind, f"{folder_name(values.data)}-{row_name(model.path)}")
    if os.path.exists(os.path.join(folder, "flags.txt")):
        raise ValueError(
            f"--workdir already holds a run; evaluating into it would overwrite its evaluation.json. Received: {folder}. "
            f"Try: tf-robust evaluate {folder} to evaluate the run's own model, or --workdir={folder}/measured"
        )
    return folder
