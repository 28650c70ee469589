"""The commands: each is a function of its flags and of the arguments from which they were parsed. Prints tables and next commands."""

import contextlib
import functools
import os
import shlex
import shutil
import sys
import threading
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence

import tensorflow as tf
from absl import logging

from tf_robust import corrupted_datasets, evaluation, exporter, report
from tf_robust.cli import BEGIN, checks
from tf_robust.cli.build import build_model, build_runs, read_rows, row_of
from tf_robust.cli.command_line import COMMANDS as TABLE
from tf_robust.cli.command_line import TRAIN_ONLY, command, read_command
from tf_robust.cli.flags import FLAGS_HOME, Options, arguments_of, expanded, last_value
from tf_robust.configs import PATH_FLAGS, DataConfig
from tf_robust.data import pipeline
from tf_robust.evaluation.evaluation_data import EvaluationData, with_default_split
from tf_robust.hardening import harden as hardening
from tf_robust.hardening.config import HardenConfig
from tf_robust.hardening.result import HARDENED
from tf_robust.hardening.trainable import check_format
from tf_robust.integrations import storage, tracking
from tf_robust.integrations.launchers import Launcher, launcher_of
from tf_robust.report import comparison
from tf_robust.report.chart import save_png
from tf_robust.report.evaluated_model import EvaluatedModel
from tf_robust.runs import dry_run, scheduler
from tf_robust.runs import suite as suites
from tf_robust.runs.config import run_parameters
from tf_robust.runs.run import Run
from tf_robust.runs.sweep import Sweep, axes_of, best, grid, name_of
from tf_robust.runs.workdir import folder_name, row_name, with_distinct_rows
from tf_robust.saved_models.formats import files
from tf_robust.saved_models.interface import training_data
from tf_robust.training import distribution, loop
from tf_robust.utils.errors import FAILED, INTERRUPTED, WRONG_INPUT, RunFailed, exit_with, message_of, unknown
from tf_robust.utils.files import is_run, is_url, read_json, write_json
from tf_robust.utils.hyperparameters import instances, text_of
from tf_robust.utils.locks import WorkdirLocked
from tf_robust.utils.progress import print_note

_OF_COMMAND = (
    *("suite", "sweep", "sweep_metric", "sweep_engine", "sweep_storage", "trials", "workdir", "seeds"),
    *("launcher", "launcher_options", "dry_run"),
)  # flags that say nothing on a run itself
_DATA_FLAGS = (
    *("data", "data_range", "data_dir", "download", "label_map", "label_set", "classes", "image_size", "image_fit"),
    *("validation_fraction", "evaluation_split", "subset"),
)  # on which the evaluated images and labels depend
_LOCATION_FLAGS = tuple(name for name in PATH_FLAGS if name != "data_service")  # not in the flags.txt of a workdir
_LISTED = 6  # models after a report


def train(options: Options, argv: Sequence[str]) -> None:
    """Trains, exports, evaluates and reports one row, once per seed; with evaluations=none trains and exports only."""
    workdir, row, table = row_of(options, argv)
    only = options["evaluations"] == TRAIN_ONLY
    if only:  # the run is recorded with the default evaluations, for `evaluate WORKDIR`
        options = options.changed({"evaluations": TABLE["train"].parameters()["evaluations"].default})
    runs = build_runs(options, row, table.get("shown_as", {}).get(row, ""))
    if options["dry_run"]:
        return _print_costs(runs)

    def folder_of(run):
        return os.path.join(workdir, f"seed_{run.seed}") if len(runs) > 1 else workdir

    for run in runs:
        run.evaluates = not only
    show = functools.partial(_report_complete, workdir, len(runs), table, argv)
    evaluations, failures = scheduler.run_all(runs, folder_of, _launcher(options, workdir), show)
    for run in runs if only else ():
        if run.chief and os.path.isdir(model := os.path.join(folder_of(run), "saved_model")):
            print(f"Model:   {model}")
            _print_commands({"evaluate it": command("evaluate", folder_of(run), *_location_flags(run))})
    _report_runs(workdir, runs, evaluations, failures, table, argv)


def suite(options: Options, argv: Sequence[str]) -> None:
    """Completes all rows of a folder of flagfiles with all seeds, and reports. Flags on the command line override those of the rows."""
    folder, names, table = suites.table_of(options["suite"], FLAGS_HOME)
    if "suites" in table:
        raise ValueError(
            f"Expected a folder of flagfiles. Received: {options['suite']}, which averages over {', '.join(table['suites'])}. Try: "
            f"tf-robust suite for each of these, then tf-robust report"
        )
    files, shown_as = {row: os.path.join(folder, f"{row}.flags") for row in names}, table.get("shown_as", {})
    of_suite = ("suite", "workdir", "launcher", "launcher_options", "dry_run")
    rows = read_rows(files, {name: value for name, value in options.given.items() if name not in of_suite})
    workdir = options["workdir"] or os.path.join("runs", table["name"])
    evaluating = [row for row, of_row in rows.items() if "saved_model" in of_row]
    if evaluating and (len(evaluating) < len(rows) or options["dry_run"]):
        raise ValueError(
            f"Expected rows that are all trained, or, without --dry_run, rows that all evaluate a model (--saved_model). Received: "
            f"{options['suite']}, with saved_model: {', '.join(evaluating)}. Try: two folders, then tf-robust report of both workdirs"
        )
    if evaluating:
        models = {row: functools.partial(build_model, of_row, shown_as.get(row, row)) for row, of_row in rows.items()}
        evaluations, failures = suites.evaluate_models(models, workdir)
        _report(workdir, evaluations, None, {**table, "notes": [*table.get("notes", ()), *failures]}, {}, argv)
        return exit_with(FAILED, "\n".join(["Rows failed:", *failures])) if failures else None
    runs = []
    for row, of_row in rows.items():
        try:
            runs += build_runs(of_row, row, shown_as.get(row, ""))
        except ValueError as error:
            raise ValueError(f"{files[row]}: {error}") from error
    if options["dry_run"]:
        return _print_costs(runs)
    runs.sort(key=lambda run: run.seed)  # all rows of a seed before the next seed: an incomplete table is balanced

    def folder_of(run):
        return os.path.join(workdir, run.row, f"seed_{run.seed}")

    show = functools.partial(_report_complete, workdir, len(runs), table, argv)
    evaluations, failures = scheduler.run_all(runs, folder_of, _launcher(options, workdir), show)
    _report_runs(workdir, runs, evaluations, failures, table, argv)


def sweep(options: Options, argv: Sequence[str]) -> None:
    """Trains points of hyperparameters; the best on validation images is evaluated on the test set."""
    workdir, _, table = row_of(options, argv)

    def runs_at(point, split):
        return build_runs(options.changed({**point, "evaluation_split": split}), name_of(point))

    parameters = run_parameters(options["method"], options["augmentations"], options["views"])
    axes = axes_of(options["sweep"], {name: one.default for name, one in parameters.items()})
    metrics = [name.strip() for name in options["sweep_metric"].split(",") if name.strip()]
    sampled = options["sweep_engine"] == "optuna"
    of_axes = Sweep(axes, metrics, runs_at, workdir)
    runs = of_axes.runs(sampled)
    if options["dry_run"]:
        if sampled:
            print(f"One of {options['trials']} trials, in the middle of the ranges:")
        return _print_costs(runs)
    if sampled:
        from tf_robust.runs.sampled_sweep import sample  # of an extra

        points, evaluations, notes = sample(of_axes, options["trials"], options["sweep_storage"], options["seeds"])
    else:
        evaluations, notes = scheduler.run_all(runs, of_axes.folder_of, _launcher(options, workdir))
        points = grid(axes)
    if not evaluations:
        raise RunFailed("\n".join(["All runs failed.", *notes]))
    _report(workdir, evaluations, runs[0].data(), {"title": f"{table['title']}: {options['sweep']}", "notes": notes}, {}, argv)
    rows, message = best(evaluations, metrics)
    points = [point for point in points if name_of(point) in rows]
    given = {name: text_of(value) for name, value in options.given.items() if name not in (*_OF_COMMAND, *points[0])}
    with_seeds = {**given, **points[0], "seeds": "0,1,2", "workdir": f"{workdir}/chosen"}
    table = {"title": f"{'; '.join(rows)}, chosen on validation, on the test set", "notes": [message]}
    hint = {"train it with more seeds": command("train", *(f"--{name}={text}" for name, text in with_seeds.items()))}
    _report(os.path.join(workdir, "test"), of_axes.test(points), None, table, hint, argv)
    print("\n".join([message, *(notes if sampled else ())]))
    if notes and not sampled:
        raise RunFailed("\n".join([f"{len(notes)} of {len(runs)} runs failed.", *notes]))


def _print_costs(runs: Sequence[Run]) -> None:
    print(f"\n{dry_run.cost_table(runs)}")


def _launcher(options: Options, workdir: str) -> Launcher | None:
    return launcher_of(options["launcher"], options["launcher_options"], workdir)


def _location_flags(run: Run) -> list[str]:
    """Returns arguments for the paths of a run that differ from their defaults."""
    values = {**vars(run.config.evaluation), **vars(run.config.data), **vars(run.config.train)}
    defaults = run.config.parameters
    return [f"--{name}={text_of(values[name])}" for name in _LOCATION_FLAGS if name in defaults and values[name] != defaults[name].default]


def _report_complete(workdir: str, count: int, table: Mapping, argv: Sequence[str], evaluations: Sequence[dict]) -> None:
    """Writes the report of a table of which some runs are complete."""
    notes = [*table.get("notes", ()), f"{len(evaluations)} of {count} runs are complete. Reload this page when others are."]
    comparison.write_report(workdir, evaluations, title=table["title"], command=command(*argv), suite={**table, "notes": notes})


def _report_runs(
    workdir: str, runs: Sequence[Run], evaluations: Sequence[dict], failures: Sequence[str], table: Mapping, argv: Sequence[str]
) -> None:
    """Reports on the runs of a table, and raises `RunFailed` with all failures."""
    if not runs[0].chief:
        print("Done. The chief worker writes checkpoints and runs the evaluation.")
    if evaluations:
        first_workdir = os.path.dirname(evaluations[0]["saved_model"])
        more = command("evaluate", first_workdir, *_location_flags(runs[0]), "--evaluations=clean,corruptions,adversarial")
        next_commands = {"evaluate more of a model": more, "see the training": shlex.join(["tensorboard", f"--logdir={workdir}"])}
        noted = {**table, "notes": [*table.get("notes", ()), *failures]}
        _report(workdir, evaluations, runs[0].data(), noted, next_commands, argv)
        with tracking.tracked(runs[0].config.train.tracker, workdir, f"report of {table['title']}", "reports", {}) as tracked:
            tracked.files("report", workdir, ("report.html", "report.md", "results.json", "figures"))
    if failures:
        raise RunFailed("\n".join([f"{len(failures)} of {len(runs)} runs failed.", *failures]))


def _report(
    workdir: str,
    evaluations: Sequence[dict],
    data: EvaluationData | None,
    table: Mapping,
    next_commands: Mapping[str, str],
    argv: Sequence[str],
) -> None:
    """Writes and prints a report, its summary last.

    `data` provides images for the figures; `table` has "title" and optional fields of `suite.json`; `next_commands`: {purpose: command}.
    """
    written = comparison.write_report(workdir, evaluations, title=table["title"], command=command(*argv), data=data, suite=table)
    comparison.print_table(written, evaluations)
    print(f"Report:  {os.path.join(workdir, 'report.html')}  (also report.md, report.tex, results.json)")
    print(f"Figures: {os.path.join(workdir, 'figures')}{os.sep}")
    present = [one for one in evaluations if os.path.exists(one["saved_model"])]  # records may be copied without it
    for one in present[:_LISTED]:
        print(f"Model:   {one['saved_model']}  ({one['row']}, seed {one['seed']})")
    if len(present) > _LISTED:
        print(f"         and {len(present) - _LISTED} more")
    _print_commands(next_commands)
    comparison.print_summary(written)


def _print_commands(commands: Mapping[str, str]) -> None:
    """Prints the next commands, {purpose: command}, each command on a line of its own."""
    for number, (purpose, line) in enumerate(commands.items()):
        print(f"{'' if number else 'Next:':<9}{purpose}:\n           {line}")


def evaluate(options: Options, argv: Sequence[str]) -> None:
    """Evaluates a model on data, or the model of a run on its data. Ends the process if requirements are not met."""
    requirements = evaluation.parse_requirements(options["require"])
    before = comparison.read_baseline(options["require_not_worse_than"]) if options["require_not_worse_than"] else None
    if options["junit"] and not requirements and not before:
        raise ValueError("Expected --require or --require_not_worse_than with --junit, whose outcomes it has. Received: neither")
    model = build_model(options)

    def check(name: str, config: evaluation.EvalConfig, deployed: bool = True) -> None:
        """Raises ValueError for required metrics that an evaluation does not give."""
        try:
            evaluation.check_requirements(requirements, config, model.data.config.label_fraction, deployed)
            if before:
                mains = comparison.main_metrics(before)
                evaluation.check_metrics(mains, config, "--require_not_worse_than", model.data.config.label_fraction)
        except ValueError as error:
            raise ValueError(f"{name}: {error}" if name else str(error)) from error

    evaluated = _evaluate_formats(model, options, argv, check) if options["formats"] else [_evaluate(model, options, argv, check)]
    if not requirements and not before:
        return
    outcomes, lines = {}, []
    for one in evaluated:
        of_model = evaluation.outcomes(one["rows"], requirements) + (comparison.not_worse(one, before) if before else [])
        path = os.path.join(one["measured_in"], "evaluation.json")
        write_json(path, {**read_json(path), "requirements": of_model})
        outcomes[one["row"]] = of_model
        if missed := evaluation.shortfalls(of_model):
            lines += [f"{one['row']}:", *missed] if options["formats"] else missed
    if options["junit"]:
        evaluation.write_junit(options["junit"], outcomes)
    if lines:
        exit_with(FAILED, "\n".join(["Requirements not met:", *lines]))


def _evaluate(model, options, argv, check):
    """Evaluates one model, and returns the content of its `evaluation.json`, with the folder of its records as "measured_in"."""
    folder, config = _folder_of(model, options), model.data.eval_config
    check("", config, deployed=False)
    path, images = os.path.join(folder, "evaluation.json"), os.path.join(folder, evaluation.PER_IMAGE)
    earlier = read_json(path) if os.path.exists(path) else {}
    of_run, own = (os.path.join(place, "measured.jsonl") for place in (model.run, folder))
    if model.run and os.path.exists(of_run) and not os.path.exists(own):  # the same sets are measured only once
        os.makedirs(folder, exist_ok=True)
        shutil.copyfile(of_run, own)
    if launcher := _launcher(options, folder):
        scheduler.share(launcher, functools.partial(_evaluate_sets, arguments_of(options), folder), folder)
    done = model.evaluate(folder)
    replaced = {"another model": "model_digest", "other flags": "options"}
    others = [name for name, field in replaced.items() if earlier and earlier.get(field) != done.content[field]]
    if others:
        print_note(f"this replaces the results in {folder}, of {' and '.join(others)}. To keep both: --workdir=DIR.")
    if not config.per_image and os.path.isdir(images):
        print_note(f"{images} is of an earlier evaluation. Try: --per_image")
    write_json(path, done.content)
    found = {**done.content, "measured_in": folder}
    siblings = os.path.join(os.path.dirname(os.path.normpath(folder)) or ".", "*")
    hint = {"compare it with the others in its folder": command("report", siblings)}
    _report(folder, [found], done.data, {"title": f"{model.path} on {model.data.config.data}"}, hint, argv)
    if config.per_image:
        print(f"Results of each image: {images}{os.sep}")
    return found


def _evaluate_formats(model, options, argv, check):
    """Exports a model, evaluates each file, reports, and returns the evaluations."""
    folder = os.path.join(_folder_of(model, options), "formats")
    found = exporter.evaluate_formats(model, options["formats"], folder, attack_chosen="attack" in options.given, check=check)
    table = {"title": f"{model.path} on {model.data.config.data}, by format", "baseline": found[0]["row"]}
    beside = command("report", *(one["measured_in"] for one in found), "DIR", f"--baseline={table['baseline']}")
    _report(folder, found, None, table, {"put another evaluation of the model, in DIR, on the same page": beside}, argv)
    return found


def _folder_of(model: EvaluatedModel, options: Options) -> str:
    """Returns the folder of the evaluation of a model, which holds no run."""
    if model.run and (not options["workdir"] or not options["saved_model"]):
        return os.path.join(model.run, "measured")
    others = {*model.data.eval_config.evaluations} - {"clean"}
    is_attack = others and others <= {"adversarial", "attack_curves", "certified"}  # neither replaces the other's report
    name = f"{folder_name(model.data.config.data)}-{row_name(model.path)}"
    folder = options["workdir"] or os.path.join("runs", "attack" if is_attack else "evaluation", name)
    if is_run(folder):
        raise ValueError(
            f"--workdir already holds a run; evaluating into it would overwrite its evaluation.json. Received: {folder}. "
            f"Try: tf-robust evaluate {folder} to evaluate the run's own model, or --workdir={folder}/measured"
        )
    return folder


def _evaluate_sets(arguments: Sequence[str], folder: str) -> None:
    """Evaluates the sets of an evaluation that no other process evaluates, until all are done."""
    given = [one for one in arguments if not one.startswith("--launcher")]
    build_model(read_command(["evaluate", *given])[1]).evaluate(folder, draw=False)


def harden(options: Options, argv: Sequence[str]) -> None:
    """Hardens a model, and writes the model, its card and `harden.html` into the workdir."""
    model = build_model(options)
    (config,) = instances(options, HardenConfig)
    check_format(options["saved_model"])
    name = f"{folder_name(options['data'])}-{row_name(options['saved_model'])}-{folder_name(options['target'])}"
    folder = options["workdir"] or os.path.join("runs", "hardened", name)
    hardened = hardening.harden(model.load(), model.data, config, folder, begin=BEGIN, log=functools.partial(print, flush=True))
    if hardened.evaluations:
        print(f"\nReport: {hardened.report(os.path.join(folder, 'harden.html'), command(*argv))}")
    save_png(hardened.frontier(), os.path.join(folder, "figures"))
    if hardened.changed:
        interface, path = hardened.trainable.classifier.interface, os.path.join(folder, f"{HARDENED}{hardened.trainable.suffix}")
        print(f"Model:  {path}, which takes images on the scale {interface.input_range} and returns {interface.outputs}")
        print(*hardened.files, sep="\n", end="\n" * bool(hardened.files))
    if hardened.interrupted:
        print("The test images were not used. The same command resumes the search.")
        sys.exit(INTERRUPTED)
    if not hardened.chosen or config.require_recipe and hardened.chosen.is_control:
        sys.exit(FAILED)  # the summary says that nothing helped, or no recipe


def export(options: Options, argv: Sequence[str]) -> None:
    """Exports a model and prints the difference of each format to the model."""
    model, names = build_model(options), list(options["formats"])
    chosen = names != [*files()] or "formats" in options.given
    own = os.path.join(model.run, "exported") if model.run else os.path.join("runs", "exported", row_name(model.path))
    folder = options["workdir"] or own
    unit_range, logits = options["unit_range"], options["logits"]
    written, failures = exporter.write_formats(model, names, folder, chosen=chosen, unit_range=unit_range, logits=logits)
    if written:
        given = {name: text_of(value) for name, value in options.given.items() if name in TABLE["evaluate"].parameters()}
        path = given.pop("saved_model", "")
        flags = [f"--{name}={text}" for name, text in {**given, "formats": ",".join(written)}.items()]
        _print_commands({"evaluate what is deployed": command("evaluate", *filter(None, [path]), *flags)})
    reasons = [f"{name}: {error}" for name, error in failures.items()]
    if failures and (chosen or not written):
        if len(failures) == 1:
            raise next(iter(failures.values()))
        raise ValueError("\n  ".join(["Expected all formats to be written. Not written:", *reasons]))
    for reason in reasons:
        print(f"Not written: {reason}", flush=True)


def convert(options: Options, _: Sequence[str]) -> None:
    """Converts a model to a Keras file."""
    model = build_model(options)
    path, output = model.path, options["output"] or f"{os.path.splitext(model.path)[0]}.keras"
    size = (options["image_size"], options["image_size"]) if options["image_size"] else None
    record = exporter.convert(model, output, with_data="data" in options.given, image_size=size)
    print(f"Model: {output}, whose scores differ by at most {record.difference:.1g} of the largest from {path}")


def corrupt(options: Options, _: Sequence[str]) -> None:
    """Writes a corrupted copy of the data, which `evaluate` reads with --corrupted_dir."""
    data_config, eval_config, writer_config = instances(options, DataConfig, evaluation.EvalConfig, corrupted_datasets.WriterConfig)
    given = EvaluationData(data_config, eval_config)
    given = given if "evaluation_split" in options.given else with_default_split(given, {})
    source = given.evaluation_source()
    corruption_config = corrupted_datasets.CorruptionConfig(
        options["seeds"][0] if "seeds" in options.given else evaluation.SEED,
        eval_config.constants(source.image_shape),
        eval_config.protocol(source.image_shape),
        eval_config.frost_dir or None,
    )
    workdir = options["workdir"] or os.path.join("runs", f"{folder_name(options['data'])}-c")
    if corrupted_datasets.write(given.evaluation_source, workdir, writer_config, corruption_config):
        return  # other processes write the rest
    print(f"Written: {workdir}  ({len(source):,} images; card.json describes it, sheet.png shows examples)")
    named = [f"--{name}={text_of(options[name])}" for name in _DATA_FLAGS if name in options.given]
    arguments = (*named, "--evaluations=clean,corruptions", f"--corrupted_dir={workdir}")
    _print_commands({"evaluate a model on it": command("evaluate", "MODEL", *arguments)})


def serve(options: Options, _: Sequence[str]) -> None:
    """Prepares batches for runs on other machines until it is interrupted."""
    if len(options["data_service"]) != 1:
        raise ValueError(
            f"Expected --data_service=HOST:PORT, the address of this machine for the runs. Received: "
            f"{text_of(options['data_service']) or 'nothing'}"
        )
    server = pipeline.Server(options["data_service"][0])
    print(f"Serving. Runs connect with --data_service={options['data_service'][0]}; Ctrl-C stops the server.", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        threading.Event().wait()
    del server


def compare(options: Options, argv: Sequence[str]) -> None:
    """Reports over the workdirs that match --runs, a report for each data set and split; --suite adds the numbers of the paper."""
    evaluations, workdir = comparison.read_evaluations(options["runs"]), options["workdir"] or os.path.join("runs", "report")
    earlier = os.path.join(workdir, "results.json")
    if not options["workdir"] and os.path.exists(earlier) and (before := read_json(earlier).get("command")) != command(*argv):
        print_note(f"this replaces the report of another command ({before}) in {workdir}. To keep both: --workdir=DIR")
    if options["suite"]:
        folder, rows, table = suites.table_of(options["suite"], FLAGS_HOME)
    else:
        models = {f"{one.get('exported_from', one['saved_model'])} on {one['data']}" for one in evaluations}
        patterns = f"Runs {', '.join(options['runs'][:4])}{', ...' if len(options['runs']) > 4 else ''}"
        folder, rows, table = "", [], {"title": models.pop() if len(models) == 1 else patterns}
        evaluations = with_distinct_rows(evaluations)
    if "suites" in table:
        means = suites.SuiteMeans(folder, table, FLAGS_HOME, lambda path: last_value(expanded([f"--flagfile={path}"]), "data", ""))
        return _report_means(workdir, means, evaluations, argv)
    if options["baseline"]:
        found = list(dict.fromkeys(one["row"] for one in evaluations))
        if options["baseline"] not in found:
            raise unknown("--baseline", options["baseline"], found)
        table = {**table, "baseline": options["baseline"]}
    suites.sort_by_rows(evaluations, [table.get("shown_as", {}).get(row, row) for row in rows])
    hint = {} if options["suite"] else {"add the numbers of a paper": "add --suite=FOLDER, a folder of flagfiles"}
    if not options["baseline"] and len({one["row"] for one in evaluations}) > 1:
        hint["compare with another row"] = "add --baseline=ROW"
    by_data: dict[tuple[str, str], list[dict]] = {}
    for one in evaluations:
        by_data.setdefault((one["data"], one["split"]), []).append(one)
    if len(by_data) == 1:
        return _report(workdir, evaluations, None, table, hint, argv)
    for (name, split), members in by_data.items():
        print(f"{name}, {split}: {', '.join(dict.fromkeys(one['row'] for one in members))}")
    splits = [split for _, split in by_data]
    if len({name for name, _ in by_data}) < len(splits):
        split = min(splits, key=("test", "validation", "all").index)
        print(f"Models on different images are not compared. Try: evaluate each model with --evaluation_split={split}")
    for (name, split), members in by_data.items():
        folder = os.path.join(workdir, folder_name(f"{name}-{split}"))
        _report(folder, members, None, {**table, "title": f"{table['title']}: {name}, {split}"}, hint, argv)


def _report_means(workdir, means, evaluations, argv):
    """Writes and prints a report for each suite, in subfolders, and that of the means over them."""
    divided = means.divide(evaluations)
    for name, members in divided.items():
        print(f"\n{name}")
        suite, folder = means.suites[name], os.path.join(workdir, name)
        table = comparison.write_report(folder, members, title=suite["title"], command=command(*argv), suite=suite)
        comparison.print_table(table, members)
    table, notes = means.write(workdir, divided, command(*argv))
    print("\n".join([means.table["title"], "", report.to_text(table), *notes, ""]))
    print(f"Report:  {os.path.join(workdir, 'report.html')}  (also report.md, report.tex, results.json, and a folder for each suite)")
    comparison.print_summary(table)


COMMANDS: dict[str, Callable[[Options, Sequence[str]], None]] = {
    "train": train,
    "evaluate": evaluate,
    "attack": evaluate,
    "corrupt": corrupt,
    "harden": harden,
    "export": export,
    "convert": convert,
    "suite": suite,
    "sweep": sweep,
    "report": compare,
    "serve": serve,
}
_WRONG_INPUT = (ValueError, ImportError, FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError, WorkdirLocked)


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


@contextlib.contextmanager
def local_options(name: str, options: Options) -> Iterator[Options]:
    """Opens a context with the options of a command, in which local paths replace URLs; errors and results are handled at its end."""
    with friendly_errors():
        if options.get("strategy") == "multi_worker":
            distribution.strategy("multi_worker")  # before any computation
        tracking.check(options.get("tracker", ()))
        changes, workdir = dict[str, typing.Any](), options.get("workdir", "")
        if is_url(options.get("saved_model", "")):
            changes["saved_model"] = storage.fetch_model(options["saved_model"])
            if "data" not in options.given and (data := training_data(changes["saved_model"])):
                options = options.changed({"data": data})
            checks.check_model(name, Options({**options, **changes}, options.given))
        if any(map(is_url, options.get("runs", ()))):
            changes["runs"] = tuple(storage.fetch_runs(pattern) if is_url(pattern) else pattern for pattern in options["runs"])
        store: contextlib.AbstractContextManager = contextlib.nullcontext()
        if is_url(workdir):
            changes["workdir"] = storage.local_folder(workdir)
            if not options.get("dry_run"):
                store = storage.copied(workdir.rstrip("/"), changes["workdir"])
        with store:
            yield Options({**options, **changes}, options.given) if changes else options
