"""Evaluates a saved model on the data that flags describe (`--mode=evaluate`)."""

import os
from collections.abc import Sequence

from absl.flags import FlagValues

from tf_robust.experiments import flags, workdir
from tf_robust.experiments.locations import row_name
from tf_robust.experiments.reporting import report
from tf_robust.experiments.runs import runs_of
from tf_robust.experiments.suggestions import command
from tf_robust.saved_models import loading
from tf_robust.utils.files import write_json


def measure_and_report(values: FlagValues, argv: Sequence[str]) -> dict:
    """Evaluates a saved model, or the model of a workdir with the flags of its run, and writes and prints the report.

    Args:
        values: parsed flags.
        argv: the arguments from which they were parsed.

    Returns:
        The evaluation, as in `evaluation.json`.

    Raises:
        ValueError: neither or both of --saved_model and the workdir of a run.
    """
    saved_model, folder, values = _resolve(values)
    run = runs_of(values, row_name(saved_model))[0]
    evaluation = run.measure(saved_model, folder, loading.ModelInterface(**flags.values_of(values, loading.ModelInterface)))
    write_json(os.path.join(folder, "evaluation.json"), evaluation)
    siblings = os.path.join(os.path.dirname(os.path.normpath(folder)) or ".", "*")
    report(
        folder,
        [{**evaluation, "measured_in": folder}],
        run,
        {"title": f"{saved_model} on {run.config.data}"},
        {"compare it with the other runs in its folder": command("--mode=report", f"--runs={siblings}")},
        argv,
    )
    return evaluation


def _resolve(values):
    """Returns (path of the model, folder of the evaluation, flags with those of the model's run)."""
    folder = values.workdir or os.path.join("runs", "evaluation")
    if values.saved_model:
        if os.path.exists(os.path.join(folder, "flags.txt")):
            raise ValueError(
                f"--workdir already holds a run; evaluating into it would overwrite its evaluation.json. Received: {folder}. "
                f"Try: leave out --saved_model to evaluate the run's own model, or --workdir={folder}/measured"
            )
        return values.saved_model, folder, values
    recorded = os.path.join(values.workdir, "flags.txt")
    if not values.workdir or not os.path.exists(recorded):
        raise ValueError("Expected --saved_model=DIR, or --workdir=DIR of a trained run. Received: neither")
    merged = flags.with_values(flags.parse_arguments(workdir.recorded_arguments(recorded)), flags.given_values(values))
    return os.path.join(values.workdir, "saved_model"), os.path.join(values.workdir, "measured"), merged
