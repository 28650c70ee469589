"""The command line: flags in, runs and a report out. `python run_experiment.py` alone is the quick start."""

import glob
import os
import shlex
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's notes on how it was compiled

from absl import app, flags, logging

from tf_robust import experiment, hyperparameters, methods, training
from tf_robust import workdir as workdirs
from tf_robust.data.augment import AUGMENTATIONS
from tf_robust.files import read_json
from tf_robust.methods.base import Method

HERE = os.path.dirname(os.path.abspath(__file__))
MODES = ("run", "suite", "train", "evaluate", "report")
# What a run's result does not depend on: left out of flags.txt, free to differ when a run is resumed.
FREE = ("data_dir", "download")


def define_flags(values):
    """Defines all flags on a FlagValues; returns their names."""
    before = set(values)
    flags.DEFINE_enum("mode", "run", MODES, "run: train, export, evaluate, report. suite: a folder of flagfiles is a "
                      "table. train: no evaluation. evaluate: any SavedModel. report: over many workdirs.", values)
    flags.DEFINE_string("workdir", "", "folder of the results; empty: one below runs/, named after what is run.", values)
    hyperparameters.define_flag(values, "seeds", hyperparameters.Parameter(
        "seeds", tuple[int, ...], (0,), "seeds, one run each: 0,1,2."))
    flags.DEFINE_string("suite", "", "folder of flagfiles (mode suite); its order and the paper's numbers (mode report).",
                        values)
    flags.DEFINE_string("runs", "runs/**", "workdirs to compare, a glob pattern (mode report).", values)
    flags.DEFINE_string("saved_model", "", "SavedModel to measure (mode evaluate); empty: the workdir's own.", values)
    groups = {"": (experiment.Settings, Method)}
    shared = hyperparameters.parameters(Method)
    groups.update({f"{name}_": (target,) for name, target in (*methods.METHODS.items(), *AUGMENTATIONS.items())})
    for prefix, targets in groups.items():
        for parameter in (p for target in targets for p in hyperparameters.parameters(target).values()):
            if not prefix or parameter.name not in shared:
                hyperparameters.define_flag(values, prefix + parameter.name, parameter)
    return sorted(set(values) - before)


def parsed(arguments):
    """Flags read from a list of arguments, apart from the process's own."""
    values = flags.FlagValues()
    define_flags(values)
    values(["run_experiment.py", *arguments])
    return values


def runs_of(values, names, row):
    """One `Run` a seed. Its flags are those that it depends on: not the other methods', not where things are."""
    used = set()

    def of(target, prefix):
        found = [name for name in hyperparameters.parameters(target) if prefix + name in values]
        used.update(prefix + name for name in found)
        return {name: values[prefix + name].value for name in found}
    settings = experiment.Settings(**of(experiment.Settings, ""))
    options = {**of(Method, ""), **of(methods.METHODS[settings.method], f"{settings.method}_")}
    augmentations = {name: of(AUGMENTATIONS[name], f"{name}_") for name in settings.augmentations}
    texts = {name: _text(values[name]) for name in names if name in used and name not in FREE}
    return [experiment.Run(settings, {"method": options, "augmentations": augmentations},
                           {**texts, "seeds": str(seed)}, row, seed) for seed in values.seeds]


def _text(flag):
    return ",".join(map(str, flag.value)) if isinstance(flag.value, tuple) else str(flag.value)


def suite(values, names):
    """Every row of a folder of flagfiles, with every seed; flags given on the command line override each row's."""
    folder, rows, table = table_of(values.suite)
    overrides = [f"--{name}={_text(values[name])}" for name in names
                 if values[name].present and name not in ("mode", "suite", "workdir")]
    runs = [run for row in rows
            for run in runs_of(parsed([f"--flagfile={os.path.join(folder, row)}.flags", *overrides]), names, row)]
    runs.sort(key=lambda run: run.seed)  # all rows of a seed before the next seed: an unfinished table is balanced
    workdir = values.workdir or os.path.join("runs", table["name"])
    evaluations, busy = experiment.run_all(runs, lambda run: os.path.join(workdir, run.row, f"seed_{run.seed}"))
    report(workdir, evaluations, runs[0], table["title"], table)
    if busy:
        print(f"{len(busy)} of {len(runs)} runs are with another process; the same command makes the whole report then.")


def table_of(folder):
    """A folder of flagfiles: where it is, its rows in the order of its `suite.json`, and what else that says."""
    here = folder.rstrip("/") if os.path.isdir(folder) else os.path.join(HERE, folder.rstrip("/"))
    found = sorted(os.path.basename(path).removesuffix(".flags") for path in glob.glob(os.path.join(here, "*.flags")))
    if not folder or not found:
        raise FileNotFoundError(f"Expected --suite to name a folder of .flags files. Received: {folder!r}")
    name = os.path.relpath(here, os.path.join(HERE, "flags")).replace(os.sep, "_").lstrip("._")
    description = os.path.join(here, "suite.json")
    table = {"title": name, "rows": [], "name": name, **(read_json(description) if os.path.exists(description) else {})}
    first = [row for row in table["rows"] if row in found]
    return here, [*first, *(row for row in found if row not in first)], table


def run(values, names):
    """Trains, exports, evaluates and reports one row, once a seed."""
    row = os.path.basename(values.workdir.rstrip("/")) or values.method
    runs = runs_of(values, names, row)
    workdir = values.workdir or os.path.join("runs", f"{values.data.replace(':', '_').replace('/', '_')}-{values.model}-{values.method}")
    several = len(runs) > 1
    evaluations, _ = experiment.run_all(runs, lambda one: os.path.join(workdir, f"seed_{one.seed}") if several else workdir)
    if evaluations:
        report(workdir, evaluations, runs[0], f"{values.method} on {values.data}")


def train(values, names):
    """Trains and exports without measuring; run again, it resumes."""
    for one in runs_of(values, names, values.method):
        folder = values.workdir or f"runs/{one.settings.model}-{one.settings.method}"
        folder = os.path.join(folder, f"seed_{one.seed}") if len(values.seeds) > 1 else folder
        with workdirs.claimed(folder, one.flags):
            one.train(folder)
        print(f"Model: {os.path.join(folder, 'saved_model')}")


def evaluate(values, names):
    """Measures any SavedModel on the data that the flags name."""
    path = values.saved_model or os.path.join(values.workdir, "saved_model")
    if not values.saved_model and not values.workdir:
        raise ValueError("Expected --saved_model=DIR, or --workdir=DIR of a trained run. Received neither")
    first = runs_of(values, names, os.path.basename(os.path.dirname(os.path.abspath(path))))[0]
    found = first.measure(path)
    workdir = values.workdir or os.path.join("runs", "evaluation")
    report(workdir, [found], first, f"{path} on {values.data}")


def compare(values, _):
    """One report over the workdirs that --runs matches; with --suite, beside the paper's numbers of that table."""
    evaluations = experiment.read_evaluations(values.runs)
    _, rows, table = table_of(values.suite) if values.suite else ("", [], {"title": f"Runs {values.runs}"})
    evaluations.sort(key=lambda found: (rows.index(found["row"]) if found["row"] in rows else len(rows), found["seed"]))
    report(values.workdir or os.path.join("runs", "report"), evaluations, None, table["title"], table)


def report(workdir, evaluations, first_run, title, table=None):
    experiment.write_report(workdir, evaluations, title=title, command=command_line(), run=first_run, suite=table)
    print(f"Report:  {os.path.join(workdir, 'report.html')}  (also report.md, results.json)")
    print(f"Figures: {os.path.join(workdir, 'figures')}{os.sep}")
    for found in evaluations[:6]:
        print(f"Model:   {found['saved_model']}  ({found['row']}, seed {found['seed']})")
    print("Next:    python run_experiment.py --mode=evaluate --saved_model=DIR --data=NAME measures any SavedModel;\n"
          f"         tensorboard --logdir={workdir} shows the training.")


def command_line():
    return " ".join(["python run_experiment.py", *map(shlex.quote, sys.argv[1:])])


def main(_):
    if not flags.FLAGS["verbosity"].present:
        logging.set_verbosity(logging.WARNING)
    values = flags.FLAGS
    if len(sys.argv) == 1:
        values = parsed(["--mode=suite", "--suite=flags/quickstart"])
        values["suite"].present = 1
    mode = {"run": run, "suite": suite, "train": train, "evaluate": evaluate, "report": compare}[values.mode]
    try:
        mode(values, NAMES)
    except training.Interrupted as stopped:
        print(stopped)
        sys.exit(130)
    except (ValueError, OSError, training.TrainingDiverged, workdirs.Busy) as error:
        if logging.get_verbosity() >= logging.DEBUG:
            raise
        sys.exit(f"Error: {error}\n(--verbosity=1 shows where it came from)")


if __name__ == "__main__":
    NAMES = define_flags(flags.FLAGS)
    app.run(main)
