"""The functions of the commands: each is a function of the parsed flags and the arguments from which they were parsed."""

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf
from absl import flags, logging

from tf_robust import corrupted_datasets, evaluation
from tf_robust.data import service
from tf_robust.experiments import (
    commands,
    comparison,
    completion,
    costs,
    deployed,
    exporting,
    hardening_run,
    measuring,
    storage,
    suite_means,
    suites,
    sweeps,
    tracking,
)
from tf_robust.experiments.commands import command, trains_only
from tf_robust.experiments.default_split import with_default_split
from tf_robust.experiments.flags import FLAGS_HOME, given_values, parse_arguments, text_of, values_of, with_values
from tf_robust.experiments.launchers import launcher_of
from tf_robust.experiments.locations import folder_name, resolve_workdir, seed_folder, with_distinct_rows
from tf_robust.experiments.model_checks import print_note
from tf_robust.experiments.reporting import complete_and_report, report, report_by_data
from tf_robust.experiments.runs import runs_of, warn_of_unused_flags
from tf_robust.experiments.suggestions import DATA_FLAGS, LOCATION_FLAGS, flags_of, print_commands
from tf_robust.training import distribution, loop
from tf_robust.utils.errors import FAILED, INTERRUPTED, WRONG_INPUT, RunFailed, exit_with, message_of, unknown
from tf_robust.utils.files import read_json, write_json
from tf_robust.utils.locks import WorkdirLocked


def suite(values: flags.FlagValues, argv: Sequence[str]) -> None:
    """Completes all rows of a folder of flagfiles with all seeds, and reports. Flags on the command line override those of the rows."""
    folder, rows, table = suites.table_of(values.suite, FLAGS_HOME)
    if "suites" in table:
        raise ValueError(
            f"Expected a folder of flagfiles. Received: {values.suite}, which averages over {', '.join(table['suites'])}. Try: "
            f"tf-robust suite for each of these, then tf-robust report"
        )
    overrides = {
        name: value
        for name, value in given_values(values).items()
        if name not in ("mode", "suite", "workdir", "launcher", "launcher_options")
    }
    flagfiles, shown_as = {row: os.path.join(folder, f"{row}.flags") for row in rows}, table.get("shown_as", {})
    values_of_rows = {row: with_values(parse_arguments([f"--flagfile={path}"]), overrides) for row, path in flagfiles.items()}
    workdir = values.workdir or os.path.join("runs", table["name"])
    evaluating = [row for row, row_values in values_of_rows.items() if row_values.saved_model or row_values.mode == "evaluate"]
    if evaluating and len(evaluating) < len(rows):
        raise ValueError(
            f"Expected rows that are all trained, or that all evaluate a model (--saved_model). Received: {values.suite}, where only "
            f"{', '.join(evaluating)} {'evaluates' if len(evaluating) == 1 else 'evaluate'} a model. Try: two folders, then "
            "tf-robust report over the workdirs of both"
        )
    if evaluating:
        if values.dry_run:
            raise ValueError(
                f"Expected a suite that trains its rows with --dry_run. Received: {values.suite}, whose rows evaluate existing models"
            )
        evaluations, failures = suites.measure_all(flagfiles, overrides, workdir, shown_as)
        report(workdir, evaluations, None, {**table, "notes": [*table.get("notes", ()), *failures]}, {}, argv)
        return exit_with(FAILED, "\n".join(["Rows failed:", *failures])) if failures else None
    runs = []
    for row in rows:
        try:
            runs += runs_of(values_of_rows[row], row, shown_as.get(row, ""))
        except ValueError as error:
            raise ValueError(f"{flagfiles[row]}: {error}") from error
    warn_of_unused_flags(values, runs)
    if values.dry_run:
        return costs.print_costs(runs)
    runs.sort(key=lambda run: run.seed)  # all rows of a seed before the next seed: an incomplete table is balanced
    launcher = launcher_of(values.launcher, values.launcher_options, workdir)
    complete_and_report(workdir, runs, lambda run: os.path.join(workdir, run.row, f"seed_{run.seed}"), table, argv, launcher)


def train(values: flags.FlagValues, argv: Sequence[str]) -> None:
    """Trains, exports, evaluates and reports one row, once per seed; with evaluations=none trains and exports only."""
    workdir, row, table = resolve_workdir(values, argv, FLAGS_HOME)
    only = trains_only(values)
    if only:  # the run is recorded with the default evaluations, for `evaluate WORKDIR`
        values = with_values(values, {"evaluations": values["evaluations"].default})
    runs = runs_of(values, row, table.get("shown_as", {}).get(row, ""))
    warn_of_unused_flags(values, runs, evaluated=not only)
    if values.dry_run:
        return costs.print_costs(runs)
    launcher = launcher_of(values.launcher, values.launcher_options, workdir)

    def folder_of(run):
        return seed_folder(workdir, run, len(runs))

    if not only:
        return complete_and_report(workdir, runs, folder_of, table, argv, launcher)
    for run in runs:
        run.evaluates = False
    _, failures = completion.run_all(runs, folder_of, launcher)
    for run in runs:
        if run.chief and os.path.isdir(model := os.path.join(folder_of(run), "saved_model")):
            print(f"Model:   {model}")
            print_commands({"measure it": command("evaluate", folder_of(run), *flags_of(run, LOCATION_FLAGS))})
    if failures:
        raise RunFailed("\n".join([f"{len(failures)} of {len(runs)} runs failed.", *failures]))


def sweep(values: flags.FlagValues, argv: Sequence[str]) -> None:
    """Trains a grid of hyperparameters and evaluates the best point on the test set."""
    workdir, _, table = resolve_workdir(values, argv, FLAGS_HOME)
    sweeps.run_sweep(values, workdir, table["title"], argv)


def evaluate(values: flags.FlagValues, argv: Sequence[str]) -> None:
    """Evaluates a model on the data of the flags, or the model of a run on its data. Ends the process if requirements are not met."""
    requirements = evaluation.parse_requirements(values.require)
    baseline = measuring.read_baseline(values.require_not_worse_than) if values.require_not_worse_than else None
    if values.junit and not requirements and not baseline:
        raise ValueError("Expected --require or --require_not_worse_than with --junit, whose outcomes it has. Received: neither")
    measured = deployed.measure_and_report(values, argv) if values.formats else [measuring.measure_and_report(values, argv)]
    if not requirements and not baseline:
        return
    outcomes = {
        one["measured_in"]: evaluation.outcomes(one["rows"], requirements) + (measuring.not_worse(one, baseline) if baseline else [])
        for one in measured
    }
    for folder, of_model in outcomes.items():
        path = os.path.join(folder, "evaluation.json")
        write_json(path, {**read_json(path), "requirements": of_model})
    names = [one["row"] for one in measured]
    if values.junit:
        evaluation.write_junit(values.junit, dict(zip(names, outcomes.values())))
    missed = {name: evaluation.shortfalls(of_model) for name, of_model in zip(names, outcomes.values())}
    lines = [line for name, of_model in missed.items() if of_model for line in ([f"{name}:"] if values.formats else []) + of_model]
    if lines:
        exit_with(FAILED, "\n".join(["Requirements not met:", *lines]))


def corrupt(values: flags.FlagValues, _: Sequence[str]) -> None:
    """Writes a corrupted copy of the data, which `evaluate` reads with --corrupted_dir."""
    run = runs_of(values, "")[0]
    if values["severities"].present:
        logging.warning("--severities has no effect: all five are written.")
    given = run.data() if values["evaluation_split"].present else with_default_split(run.data(), {})
    source, eval_config = given.evaluation_source(), run.eval_config
    shape = source.image_shape
    corruption_config = corrupted_datasets.CorruptionConfig(
        values.seeds[0] if values["seeds"].present else evaluation.SEED,
        eval_config.constants(shape),
        eval_config.protocol(shape),
        eval_config.frost_dir or None,
    )
    writer_config = corrupted_datasets.WriterConfig(**values_of(values, corrupted_datasets.WriterConfig))
    workdir = values.workdir or os.path.join("runs", f"{folder_name(run.data_config.data)}-c")
    unfinished = corrupted_datasets.write(given.evaluation_source, workdir, writer_config, corruption_config)
    if not unfinished:
        print(f"Written: {workdir}  ({len(source):,} images; card.json describes it, sheet.png shows examples)")
        arguments = (*flags_of(run, DATA_FLAGS), "--evaluations=clean,corruptions", f"--corrupted_dir={workdir}")
        print_commands({"measure a model on it": command("evaluate", "MODEL", *arguments)})


def serve(values: flags.FlagValues, _: Sequence[str]) -> None:
    """Prepares batches for runs on other machines until it is interrupted."""
    if len(values.data_service) != 1:
        raise ValueError(
            f"Expected --data_service=HOST:PORT, the address of this machine for the runs. Received: "
            f"{text_of(values.data_service) or 'nothing'}"
        )
    server = service.Server(values.data_service[0])
    print(f"Serving. Runs connect with --data_service={values.data_service[0]}; Ctrl-C stops the server.", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()
    del server


def compare(values: flags.FlagValues, argv: Sequence[str]) -> None:
    """Reports over the workdirs that match --runs, a report for each data set; --suite adds the numbers of the paper."""
    if unused := sorted(given_values(values).keys() - {"mode", "runs", *commands.COMMANDS["report"].flags}):
        logging.warning("No effect on a report: %s", ", ".join(f"--{name}" for name in unused))
    evaluations, workdir = comparison.read_evaluations(values.runs), values.workdir or os.path.join("runs", "report")
    _note_replaced(workdir, command(*argv), chosen=bool(values.workdir))
    folder, rows, table = (
        suites.table_of(values.suite, FLAGS_HOME) if values.suite else ("", [], {"title": _title(evaluations, values.runs)})
    )
    evaluations = evaluations if values.suite else with_distinct_rows(evaluations)
    if "suites" in table:
        return comparison.write_means(workdir, suite_means.SuiteMeans(folder, table, FLAGS_HOME), evaluations, command(*argv))
    if values.baseline:
        found = list(dict.fromkeys(one["row"] for one in evaluations))
        if values.baseline not in found:
            raise unknown("--baseline", values.baseline, found)
        table = {**table, "baseline": values.baseline}
    order = [table.get("shown_as", {}).get(row, row) for row in rows]
    evaluations.sort(key=lambda one: (order.index(one["row"]) if one["row"] in order else len(order), one["seed"]))
    hint = {} if values.suite else {"add the numbers of a paper": "add --suite=FOLDER, a folder of flagfiles"}
    if not values.baseline and len({one["row"] for one in evaluations}) > 1:
        hint["compare with another row"] = "add --baseline=ROW"
    report_by_data(workdir, evaluations, table, hint, argv)


def _note_replaced(workdir, made_by, chosen):
    """Notes that a report in the default folder replaces that of another command."""
    earlier = os.path.join(workdir, "results.json")
    if not chosen and os.path.exists(earlier) and (before := read_json(earlier).get("command")) != made_by:
        print_note(f"this replaces the report of another command ({before}) in {workdir}. To keep both: --workdir=DIR")


def _title(evaluations, patterns):
    """The model and its data; of several models the patterns of their workdirs."""
    models = {(one.get("exported_from", one["saved_model"]), one["data"]) for one in evaluations}
    if len(models) == 1:
        return " on ".join(models.pop())
    return f"Runs {', '.join(patterns[:4])}{', ...' if len(patterns) > 4 else ''}"


_WRONG_INPUT = (ValueError, ImportError, FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError, WorkdirLocked)
COMMANDS: dict[str, Callable[[flags.FlagValues, Sequence[str]], None]] = {
    "train": train,
    "evaluate": evaluate,
    "attack": evaluate,
    "corrupt": corrupt,
    "harden": hardening_run.harden_and_report,
    "export": exporting.export_and_report,
    "suite": suite,
    "sweep": sweep,
    "report": compare,
    "serve": serve,
}


@contextlib.contextmanager
def friendly_errors() -> Iterator[None]:
    """Exits with a message instead of a traceback after errors that the user can correct."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        print(stopped if isinstance(stopped, loop.Interrupted) else "Stopped. The same command continues; what is complete is kept.")
        sys.exit(INTERRUPTED)
    except (ValueError, OSError, ImportError, tf.errors.OpError, loop.TrainingDiverged, WorkdirLocked, distribution.WorkerLost) as error:
        if logging.get_verbosity() >= logging.DEBUG:
            raise
        wrong = isinstance(error, _WRONG_INPUT) and not isinstance(error, RunFailed)
        exit_with(WRONG_INPUT if wrong else FAILED, f"Error: {message_of(error)}\n(--verbosity=1 shows the traceback)")


def run_command(name: str, values: flags.FlagValues, argv: Sequence[str]) -> None:
    """Runs a command.

    Args:
        name: of the command.
        values: parsed flags.
        argv: arguments from which they were parsed.
    """
    with friendly_errors():
        if values.strategy == "multi_worker":
            distribution.strategy(values.strategy)  # before any computation
        tracking.check(values.tracker)
        with storage.local_workdir(name, values):
            COMMANDS[name](values, argv)
