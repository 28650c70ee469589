"""Builds runs and models from the flags of a command."""

import os
from collections.abc import Mapping, Sequence

from tf_robust.cli.command_line import row_parameters
from tf_robust.cli.flags import FLAGS_HOME, Options, expanded, flagfiles_of, parse
from tf_robust.configs import DataConfig
from tf_robust.evaluation import EvalConfig
from tf_robust.evaluation.evaluation_data import EvaluationData, is_same_data
from tf_robust.report.evaluated_model import EvaluatedModel
from tf_robust.runs import suite
from tf_robust.runs.config import run_config
from tf_robust.runs.run import Run
from tf_robust.runs.workdir import folder_name, recorded_flags, row_name
from tf_robust.saved_models.loading import ModelInterface
from tf_robust.utils.hyperparameters import instances, parameters, text_of


def build_runs(options: Options, row: str, shown_as: str = "") -> list[Run]:
    """Returns a `Run` for each seed, from the flags of a training. `shown_as`: name of the row in tables; empty: `row`."""
    seeds = options["seeds"]
    if not seeds or len(set(seeds)) != len(seeds):
        raise ValueError(f"Expected --seeds, each once. Received: {text_of(seeds) or 'none'}")
    config = run_config(options)
    return [Run(config, row, seed, shown_as) for seed in seeds]


def build_model(options: Options, row: str = "") -> EvaluatedModel:
    """Returns the model of `--saved_model`: a file, a SavedModel folder, or the workdir of a run, whose recorded flags hold unless they are
    given. `row`: its name in tables; empty: that of its file. Raises ValueError without a model."""
    path = options["saved_model"]
    folder = path or options.get("workdir", "")
    recorded = os.path.join(folder, "flags.txt")
    run, model_name, values, given = "", "", {**options}, dict(options.given)
    if not os.path.exists(recorded):
        if not path:
            raise ValueError(f"Expected a model, or --workdir=DIR of a trained run. Received: {folder or 'neither'}")
        own = os.path.join(path, "saved_model")
        path = own if os.path.isdir(own) else path
    else:
        run, path, before = folder, os.path.join(folder, "saved_model"), recorded_flags(recorded)
        try:
            config = run_config(before)
        except ValueError as error:
            raise ValueError(f"{error} (in {recorded})") from error
        if others := sorted(before.keys() - config.parameters.keys() - {"seeds"}):
            raise ValueError(f"Unknown flag --{others[0]} (in {recorded})")
        model_name = config.train.model
        if not os.path.isdir(path):
            raise ValueError(
                f"Expected a run with an exported model. Received: {folder}, whose training has not ended. Try: the command of the run "
                "again, which resumes it"
            )
        if not is_same_data(before.get("data", ""), given.get("data", before.get("data", ""))):
            before.pop("evaluation_split", None)  # of data without splits all images are evaluated, unless the model was trained on them
        known = {*options, *(parameters(EvalConfig) if "evaluations" in options else ())}
        before = {name: text for name, text in before.items() if name in known}
        values, given = {**values, **before, **given}, {**before, **given}
    seeds = values["seeds"] if "seeds" in values else "0"
    config, eval_config, interface = instances(values, DataConfig, EvalConfig, ModelInterface)
    data = EvaluationData(config, eval_config, int(text_of(seeds).split(",")[0]))
    return EvaluatedModel(path, data, row or row_name(path), interface, "evaluation_split" in given, run, model_name)


def read_rows(files: Mapping[str, str], overrides: Mapping[str, object]) -> dict[str, Options]:
    """Returns the flags of the rows of a suite from {row: path of its flagfile}. A row takes those of the overrides that it has."""
    rows = {}
    for row, path in files.items():
        arguments = [f"--flagfile={path}"]
        changes = [f"--{name}={text_of(value)}" for name, value in overrides.items()]
        parameters = row_parameters(expanded(arguments), changes)
        rows[row] = parse(parameters, [*arguments, *(one for one in changes if one[2:].partition("=")[0] in parameters)])[0]
    return rows


def row_of(options: Options, argv: Sequence[str]) -> tuple[str, str, dict]:
    """Returns workdir, row name and table of a training: those of its flagfile, if it is one of a table."""
    row, table = options["method"], {"title": f"{options['method']} on {options['data']}"}
    name = f"{folder_name(options['data'])}-{folder_name(options['model'])}-{options['method']}"
    for path in (path for path in flagfiles_of(argv) if path.endswith(".flags")):
        row = name = os.path.basename(path).removesuffix(".flags")
        if os.path.exists(os.path.join(os.path.dirname(path), "suite.json")):
            table = suite.table_of(os.path.dirname(path), FLAGS_HOME)[2]
            name = os.path.join(table["name"], row)
    return options["workdir"] or os.path.join("runs", name), row, table
