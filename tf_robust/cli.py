"""The command line: flags in, runs and a report out. `python run_experiment.py` alone is the quick start."""

import contextlib
import dataclasses
import os
import shlex
import sys
import threading

from absl import app, flags, logging

from tf_robust.utils import quiet

with quiet.importing(sys.argv[1:]):
    import keras
    import tensorflow as tf

from tf_robust import corrupted_datasets, evaluation
from tf_robust.data import service
from tf_robust.experiments import comparison, dry_run, hardware, suite_means, suites, sweeps
from tf_robust.experiments import workdir as workdirs
from tf_robust.experiments.flags import (
    define_flags,
    flag_names,
    given_values,
    parsed,
    read,
    runs_of,
    text_of,
    values_of,
    warn_of_ignored_flags,
    with_values,
)
from tf_robust.experiments.help import help_text, listing
from tf_robust.experiments.suggestions import MEASURED_ON, WHERE, command, flags_of, suggest
from tf_robust.saved_models import loading
from tf_robust.training import distribution, loop
from tf_robust.utils.errors import message_of
from tf_robust.utils.files import write_json
from tf_robust.utils.locks import WorkdirLocked

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # where flags/ is
QUICK_START = ["--mode=suite", "--suite=flags/quickstart"]


def suite(values, argv):
    """Every row of a folder of flagfiles, with every seed; flags given on the command line override each row's."""
    folder, rows, table = suites.table_of(values.suite, ROOT)
    if "suites" in table:
        raise ValueError(
            f"Expected flagfiles. {values.suite} averages over {', '.join(table['suites'])}. Try: --mode=suite for each of "
            f"these, then --mode=report"
        )
    overrides = {name: value for name, value in given_values(values).items() if name not in ("mode", "suite", "workdir")}
    flagfiles, shown = {row: os.path.join(folder, f"{row}.flags") for row in rows}, table.get("shown_as", {})
    values_of_rows = {row: with_values(parsed([f"--flagfile={path}"]), overrides) for row, path in flagfiles.items()}
    workdir = values.workdir or os.path.join("runs", table["name"])
    if all(row_values.mode == "evaluate" for row_values in values_of_rows.values()):
        if values.dry_run:
            raise ValueError(f"Expected rows that are trained with --dry_run. Those of {values.suite} measure models that are there")
        evaluations, failures = suites.measure_all(flagfiles, overrides, workdir, shown)
        return report(workdir, evaluations, None, {**table, "notes": [*table.get("notes", ()), *failures]}, {}, argv)
    runs = [run for row in rows for run in runs_of(values_of_rows[row], row, shown.get(row, ""))]
    warn_of_ignored_flags(runs)
    if values.dry_run:
        return cost(runs, values.hardware)
    runs.sort(key=lambda run: run.seed)  # all rows of a seed before the next seed: an unfinished table is balanced
    finish(workdir, runs, lambda run: os.path.join(workdir, run.row, f"seed_{run.seed}"), table, argv)


def run(values, argv):
    """Trains, exports, evaluates and reports one row, once a seed."""
    workdir, row, table = resolve_workdir(values, argv)
    runs = runs_of(values, row, table.get("shown_as", {}).get(row, ""))
    warn_of_ignored_flags(runs)
    if values.dry_run:
        return cost(runs, values.hardware)
    finish(workdir, runs, lambda one: seed_folder(workdir, one, len(runs)), table, argv)


def cost(runs, elsewhere):
    """Says what runs will take, from a few steps of each row or on the hardware of a file, and leaves nothing behind."""
    machine = hardware.Hardware.read(elsewhere) if elsewhere else None
    firsts = list({run.row: run for run in reversed(runs)}.values())[::-1]
    for run in firsts:
        run.start, run.config = "", dataclasses.replace(run.config, init_from_row="")  # where it begins costs nothing
    estimates = []
    for run in firsts:

        def progress(text, row=run.row):
            print(f"  {row}: {text} ...", flush=True)

        try:
            if machine:
                progress("its graph and images")
            estimates.append(hardware.needs(run) if machine else dry_run.estimate(run, progress))
        except loop.TrainingDiverged as error:
            print(f"  FAILED: {message_of(error)}", flush=True)
        keras.backend.clear_session()
    if not estimates:
        raise ValueError("Expected a row whose first steps are finite. Every one failed")
    seeds = len(runs) // len(firsts)
    told = [(need, hardware.predicted(need, machine)) for need in estimates] if machine else ()
    print(f"\n{hardware.to_text(told, machine, seeds) if machine else dry_run.to_text(estimates, seeds)}")


def sweep(values, argv):
    """Trains a grid of settings, chooses the best on validation images, and measures that one on the test set."""
    workdir, _, table = resolve_workdir(values, argv)
    points = sweeps.grid(values.sweep, {name: values[name].default for name in flag_names()})

    def runs_at(point, split):
        return runs_of(with_values(values, {**point, "evaluation_split": split}), sweeps.name_of(point))

    def folder_of(run):
        return os.path.join(workdir, run.row, f"seed_{run.seed}")

    runs = [run for point in points for run in runs_at(point, "validation")]
    warn_of_ignored_flags(runs)
    if values.dry_run:
        return cost(runs, values.hardware)
    evaluations, failures = suites.run_all(runs, folder_of)
    if not evaluations:
        raise ValueError("\n".join(["All runs failed.", *failures]))
    report(workdir, evaluations, runs[0], {"title": f"{table['title']}: {values.sweep}", "notes": failures}, {}, argv)
    best, said = sweeps.best(evaluations, values.sweep_metric)
    measured = []
    for run in runs_at(next(point for point in points if sweeps.name_of(point) == best), "test"):
        folder = os.path.join(workdir, "test", f"seed_{run.seed}")
        measured.append({**run.measure(os.path.join(folder_of(run), "saved_model"), folder), "measured_in": folder})
        write_json(os.path.join(folder, "evaluation.json"), measured[-1])
    given = [
        f"--{name}={text_of(value)}"
        for name, value in given_values(values).items()
        if name not in ("sweep", "sweep_metric", "workdir", "seeds")
    ]
    chosen = [f"--{name}={text}" for name, text in next(point for point in points if sweeps.name_of(point) == best).items()]
    report(
        os.path.join(workdir, "test"),
        measured,
        None,
        {"title": f"{best}, chosen on validation, on the test set", "notes": [said]},
        {"train it with more seeds": command(*given, *chosen, "--seeds=0,1,2", f"--workdir={workdir}/chosen")},
        argv,
    )
    print("\n".join([said, *failures]))


def resolve_workdir(values, argv):
    """Workdir, row name and table of a single row: those of its flagfile, if it was given as one of a table."""
    row, table = values.method, {"title": f"{values.method} on {values.data}"}
    name = f"{as_folder(values.data)}-{values.model}-{values.method}"
    paths = [argument.removeprefix("--flagfile=") for argument in argv if argument.startswith("--flagfile=")]
    for path in (path for path in paths if path.endswith(".flags")):
        row = name = os.path.basename(path).removesuffix(".flags")
        if os.path.exists(os.path.join(os.path.dirname(path), "suite.json")):
            table = suites.table_of(os.path.dirname(path), ROOT)[2]
            name = os.path.join(table["name"], row)
    return values.workdir or os.path.join("runs", name), row, table


def as_folder(data):
    """A data set's name as that of a folder."""
    return data.replace(":", "_").replace("/", "_")


def seed_folder(workdir, run, count):
    return os.path.join(workdir, f"seed_{run.seed}") if count > 1 else workdir


def train(values, argv):
    """Trains and exports without measuring; run again, it resumes."""
    workdir, row, _ = resolve_workdir(values, argv)
    runs = runs_of(values, row)
    warn_of_ignored_flags(runs)
    for one in runs:
        folder = seed_folder(workdir, one, len(runs))
        with one.claimed(folder):
            one.train(folder)
        if one.chief:
            print(f"Model:   {os.path.join(folder, 'saved_model')}")
            suggest({"measure it": command("--mode=evaluate", f"--workdir={folder}", *flags_of(one, WHERE))})


def evaluate(values, argv):
    """Measures any SavedModel on the data that the flags name, or a workdir's own on its data."""
    path, workdir = values.saved_model, values.workdir or os.path.join("runs", "evaluation")
    if path and os.path.exists(os.path.join(workdir, "flags.txt")):
        raise ValueError(
            f"Expected a --workdir that is no run's, whose evaluation.json would be lost. Received: {workdir}. Leave out "
            f"--saved_model to measure the run's own model, or name another folder, say {workdir}/measured"
        )
    if not path:
        recorded = os.path.join(values.workdir, "flags.txt")
        if not values.workdir or not os.path.exists(recorded):
            raise ValueError("Expected --saved_model=DIR, or --workdir=DIR of a trained run. Received neither")
        path, workdir = os.path.join(values.workdir, "saved_model"), os.path.join(values.workdir, "measured")
        values = with_values(parsed(workdirs.recorded_arguments(recorded)), given_values(values))
    first = runs_of(values, row_of(path))[0]
    requirements = evaluation.requirements(values.require)
    interface = loading.ModelInterface(**values_of(values, loading.ModelInterface))
    found = first.measure(path, workdir, interface)
    write_json(os.path.join(workdir, "evaluation.json"), found)
    beside = os.path.join(os.path.dirname(os.path.normpath(workdir)) or ".", "*")
    report(
        workdir,
        [{**found, "measured_in": workdir}],
        first,
        {"title": f"{path} on {first.config.data}"},
        {"compare it with the runs beside it": command("--mode=report", f"--runs={beside}")},
        argv,
    )
    shortfalls = evaluation.shortfalls(found["rows"], requirements)
    if shortfalls:
        sys.exit("\n".join(["Not reached:", *shortfalls]))


def row_of(saved_model):
    """The row that a SavedModel is of: the name of its run's folder, or of the folder above where that is a seed's."""
    folders = os.path.abspath(saved_model).split(os.sep)[:-1]
    return next((name for name in reversed(folders) if name and not name.startswith("seed_")), "model")


def corrupt(values, _):
    """Writes the data that the flags name, corrupted; --mode=evaluate reads it by --corrupted_dir."""
    run = runs_of(values, "")[0]
    eval_config, shape = run.eval_config, run.measured_source().image_shape
    corruption_config = corrupted_datasets.CorruptionConfig(
        values.seeds[0] if values["seeds"].present else evaluation.NOISE_SEED,
        eval_config.constants(shape),
        eval_config.protocol(shape),
        eval_config.frost_dir or None,
    )
    writer_config = corrupted_datasets.WriterConfig(**values_of(values, corrupted_datasets.WriterConfig))
    name = f"{as_folder(run.config.data)}-c"
    workdir = values.workdir or os.path.join("runs", name)
    waiting = corrupted_datasets.write(run.measured_source, workdir, writer_config, corruption_config)
    if not waiting:
        print(f"Written: {workdir}  (card.json says how, sheet.png shows it)")
        suggest(
            {
                "measure a model on it": command(
                    "--mode=evaluate",
                    "--saved_model=DIR",
                    *flags_of(run, MEASURED_ON),
                    "--evaluations=clean,corruptions",
                    f"--corrupted_dir={workdir}",
                )
            }
        )


def serve(values, _):
    """Makes batches for trainings on other machines, until it is stopped."""
    if len(values.data_service) != 1:
        raise ValueError(
            f"Expected --data_service=HOST:PORT, under which trainings can reach this machine. Received: "
            f"{text_of(values.data_service) or 'nothing'}"
        )
    server = service.Server(values.data_service[0])
    print(f"Serving. Trainings come here with --data_service={values.data_service[0]}; Ctrl-C ends it.", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()
    del server


def compare(values, argv):
    """A report over the workdirs that --runs matches, one for each data set; with --suite, beside the paper's numbers."""
    evaluations, workdir = comparison.read_evaluations(values.runs), values.workdir or os.path.join("runs", "report")
    folder, rows, table = suites.table_of(values.suite, ROOT) if values.suite else ("", [], {"title": f"Runs {values.runs}"})
    if "suites" in table:
        return comparison.write_means(workdir, suite_means.SuiteMeans(folder, table, ROOT), evaluations, command(*argv))
    evaluations.sort(key=lambda found: (rows.index(found["row"]) if found["row"] in rows else len(rows), found["seed"]))
    by_data = {}
    for found in evaluations:
        by_data.setdefault((found["data"], found["split"]), []).append(found)
    for (name, split), found in by_data.items():  # what was measured on other images has a table of its own
        alone = len(by_data) == 1
        part = workdir if alone else os.path.join(workdir, as_folder(f"{name}-{split}"))
        report(
            part,
            found,
            None,
            table if alone else {**table, "title": f"{table['title']}: {name}, {split}"},
            {} if values.suite else {"put a paper's numbers beside these": "add --suite=FOLDER, a folder of flagfiles"},
            argv,
        )


def finish(workdir, runs, folder_of, table, argv):
    """Completes the runs and reports on them; says at the end what failed."""
    evaluations, failures = suites.run_all(runs, folder_of)
    evaluations = [found for found in evaluations if found]  # a worker that only trained along has none
    if not runs[0].chief:
        print("Trained along; the first worker writes and measures.")
    if evaluations:
        trained = os.path.dirname(evaluations[0]["saved_model"])
        report(
            workdir,
            evaluations,
            runs[0],
            {**table, "notes": [*table.get("notes", ()), *failures]},
            {
                "measure more of a model": command(
                    "--mode=evaluate", f"--workdir={trained}", *flags_of(runs[0], WHERE), "--evaluations=clean,corruptions,adversarial"
                ),
                "see the training": shlex.join(["tensorboard", f"--logdir={workdir}"]),
            },
            argv,
        )
    if failures:
        raise ValueError("\n".join([f"{len(failures)} of {len(runs)} runs failed.", *failures]))


def report(workdir, evaluations, first_run, table, following, argv):
    """Writes and prints a report; following: {purpose: command} of what to do next."""
    comparison.write_report(workdir, evaluations, title=table["title"], command=command(*argv), run=first_run, suite=table)
    print(f"Report:  {os.path.join(workdir, 'report.html')}  (also report.md, results.json)")
    print(f"Figures: {os.path.join(workdir, 'figures')}{os.sep}")
    for found in evaluations[:6]:
        print(f"Model:   {found['saved_model']}  ({found['row']}, seed {found['seed']})")
    suggest(following)


@contextlib.contextmanager
def friendly_errors():
    """Ends the process with a message, not a traceback, where what the user can mend ends the block."""
    try:
        yield
    except loop.Interrupted as stopped:
        print(stopped)
        sys.exit(130)
    except KeyboardInterrupt:
        sys.exit("Stopped. The same command goes on from the last checkpoint.")
    except (ValueError, OSError, tf.errors.OpError, loop.TrainingDiverged, WorkdirLocked, distribution.WorkerLost) as error:
        if logging.get_verbosity() >= logging.DEBUG:
            raise
        sys.exit(f"Error: {message_of(error)}\n(--verbosity=1 shows where it came from)")


def read_flags(argv):
    with friendly_errors():
        read(flags.FLAGS, argv[1:])


def run_mode(argv):
    """Runs what the parsed flags describe. argv: the arguments that they were parsed from."""
    if not flags.FLAGS["verbosity"].present:
        logging.set_verbosity(logging.WARNING)
        tf.get_logger().setLevel("ERROR")  # it counts graphs that are traced anew, as many runs in one process do
    values = flags.FLAGS if argv else parsed(QUICK_START)
    if values.list:
        print(listing(ROOT))
        return
    mode = {
        "run": sweep if values.sweep else run,
        "suite": suite,
        "train": train,
        "evaluate": evaluate,
        "corrupt": corrupt,
        "report": compare,
        "serve": serve,
    }[values.mode]
    with friendly_errors():
        if values.hardware and not values.dry_run:
            raise ValueError("Expected --hardware together with --dry_run. Received it alone")
        if values.strategy == "multi_worker":
            distribution.strategy(values.strategy)  # before anything is computed
        mode(values, argv)


def main():
    """Parses the command line and runs it."""
    argv = sys.argv[1:]
    define_flags(flags.FLAGS)
    if {"--help", "-help", "-h"} & set(argv):
        print(help_text(flags.FLAGS))
        return
    app.run(lambda _: run_mode(argv), flags_parser=read_flags)
