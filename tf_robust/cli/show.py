"""Texts of `tf-robust list` and `--help`: available names; commands, and the most used flags in groups."""

import inspect
import json
import os
import textwrap
from collections.abc import Sequence

from tf_robust.cli.command_line import COMMANDS, Command
from tf_robust.cli.flags import FLAGS_HOME
from tf_robust.configs.evaluation import OPTIONS
from tf_robust.data.kinds import DATA_KINDS
from tf_robust.saved_models import zoo

_WIDTH, _NAME, _COLUMN = 118, 44, 32  # characters
_GROUPS = {
    "Runs": ("workdir", "seeds", "dry_run", "launcher"),
    "Data": (
        *("data", "data_dir", "download", "image_size", "image_fit", "data_range"),
        *("train_examples", "label_fraction", "validation_fraction"),
    ),
    "Model and training": (
        *("model", "resize", "init_from", "method", "augmentations", "views", "epochs", "batch_size", "optimizer", "learning_rate"),
        *("schedule", "weight_decay", "label_smoothing", "ema", "select", "early_stopping", "mixed_precision", "strategy"),
        "data_service",
    ),
    "Evaluation": ("evaluations", "evaluation_split", "subset", "shifts", "ood"),
}


def listing(section: str = "") -> str:
    """Returns data sets, models, methods, views, corruptions, attacks and suites, one line each, or one section of them."""
    parts = names()
    if section:
        heading, part = parts[section]
        return "\n".join([heading, *(_wrapped(name, text, 10) for name, text in part.items())])
    return "\n\n".join(_block(heading, part) for heading, part in parts.values())


def names() -> dict[str, tuple[str, dict[str, str]]]:
    """Returns {section: (heading, {name: one line about it})}."""
    from tf_robust import attacks, corruptions, methods, metrics, models
    from tf_robust.data.augment import AUGMENTATIONS, VIEWS
    from tf_robust.evaluation.metric_table import examples
    from tf_robust.evaluation.metric_value import describe

    groups = {name: group for group, members in metrics.GROUPS.items() for name in members}
    groups |= {name: "C-bar" for members in metrics.BAR.values() for name in members}
    described = {name: describe(name) for names in examples().values() for name in names}
    views = {name + "*" * (name in AUGMENTATIONS): text for name, text in _summaries(VIEWS).items()}
    meanings = {name: f"{one.name}: {one.meaning}" for name, one in described.items()}
    return {
        "data": ("Data sets (--data)", {kind.form: kind.help for kind in DATA_KINDS.values()}),
        "models": ("Models (--model)", _summaries(models.MODELS)),
        "methods": ("Methods (--method)", _summaries(methods.METHODS)),
        "views": ("Views (--views; * also --augmentations)", views),
        "corruptions": (
            "Corruptions, at severities 1 to 5",
            {name: f"{groups.get(name, 'extra')}: {_first_line(one.apply)}" for name, one in corruptions.CORRUPTIONS.items()},
        ),
        "attacks": ("Attacks", _summaries(attacks.ATTACKS)),
        "metrics": ("Metrics, by the names of --require and results.json", meanings),
        "zoo": ("Pretrained models: tfr.load(NAME), tf-robust evaluate zoo:NAME", {name: _pretrained(name) for name in zoo.names()}),
        "suites": ("Suites (tf-robust suite FOLDER; one row: tf-robust train --flagfile=FOLDER/ROW.flags)", _tables()),
    }


def command_help(command: Command, arguments: Sequence[str] = ()) -> str:
    """Returns the usage, purpose, most used flags with their defaults, options of evaluations, and examples of a command."""
    usage = " ".join(filter(None, ("tf-robust", command.name, command.argument, "[--FLAG=VALUE ...]")))
    known, unused = command.parameters(arguments), command.unused(arguments)
    flags = [name for name in command.flags if name in known]
    defaults = {**command.defaults, **({"data": "NAME"} if command.sets == "saved_model" else {})}
    shown = {f"--{name}{_default(known[name], defaults.get(name))}": known[name].help for name in flags}
    parts = [f"{usage}\n\n{command.purpose}"]
    if shown:
        parts.append("Flags\n" + "\n".join(_wrapped(flag, text, 12) for flag, text in shown.items()))
    if others := sorted(known.keys() - {*flags, command.sets}):
        parts.append(textwrap.fill("Also: " + ", ".join(f"--{name}" for name in others), _WIDTH))
    evaluations = {name: ", ".join(f"--{option}" for option in options if option in unused) for name, options in OPTIONS.items()}
    if unused:
        lines = [_wrapped(name, text, 12) for name, text in evaluations.items() if text]
        parts.append("\n".join(["Further flags of --evaluations=", *lines]))
    parts.append("\n".join(["Examples", *(f"  tf-robust {example}" for example in command.examples)]))
    return "\n\n".join([*parts, f"All flags: tf-robust {command.name} --helpfull"])


def full_help(command: Command, arguments: Sequence[str]) -> str:
    """Returns all flags of a command with their defaults."""
    parameters = command.parameters(arguments)
    lines = [_wrapped(f"--{name}{_default(one)}", one.help, 12) for name, one in sorted(parameters.items())]
    return "\n".join([f"Flags of tf-robust {command.name}", *lines])


def help_text() -> str:
    """Returns the commands, and the most used flags of a training in groups, one line each, with their defaults."""
    parameters = COMMANDS["train"].parameters()
    shown = [name for names in _GROUPS.values() for name in names]
    commands = {" ".join(filter(None, (one.name, one.argument))): one.purpose for one in COMMANDS.values()}
    parts = [
        "tf-robust                                quick start, about a minute\n"
        "tf-robust COMMAND ... [--FLAG=VALUE ...]   flags alone: train; from a checkout: python run_experiment.py",
        _block("Commands (tf-robust COMMAND --help: its flags and examples)", commands),
    ]
    for heading, names in _GROUPS.items():
        parts.append(_block(heading, {f"--{name}{_default(parameters[name])}": parameters[name].help for name in names}))
    parts.append(textwrap.fill("Other flags of train: " + ", ".join(f"--{name}" for name in sorted(set(parameters) - set(shown))), _WIDTH))
    parts.append(
        "Flags of the chosen method, augmentations and views have its name as a prefix (--fcl_weight, --augmix_severity).\n"
        "Flags of an evaluation (--attack_radii, --severities) are those of the chosen --evaluations: tf-robust train --help.\n"
        "--flagfile=FILE: flags from a file, one per line. --plugin=MODULE: a module of your own with methods, corruptions, ...\n"
        "--version. tf-robust train --method=fcl --helpfull: all flags."
    )
    return "\n\n".join(parts)


def _default(parameter, other=None):
    """Returns "=VALUE" with the default of a flag, or another one."""
    default = parameter.default if other is None else other
    values = default if isinstance(default, (tuple, list)) else [default]
    text = ",".join(f"{value:.6g}" if isinstance(value, float) else str(value) for value in values)
    return "" if isinstance(default, bool) else f"={text}"


def _summaries(registry):
    """Returns {name: first line of its docstring}."""
    return {name: _first_line(getattr(target, "func", target)) for name, target in registry.items()}


def _first_line(target):
    """Returns the first line of a docstring."""
    return (inspect.getdoc(target) or "").split("\n")[0]


def _tables():
    """Returns {folder of a table: title and number of rows}."""
    found = {}
    for folder, _, files in sorted(os.walk(os.path.join(FLAGS_HOME, "flags"))):
        rows, title = sum(file.endswith(".flags") for file in files), os.path.basename(folder)
        if "suite.json" in files:
            with open(os.path.join(folder, "suite.json"), encoding="utf-8") as file:
                title = json.load(file).get("title", title)
        if rows or "suite.json" in files:
            found[os.path.relpath(folder, FLAGS_HOME)] = f"{title} ({rows} rows)"
    return found


def _pretrained(name):
    """Returns a pretrained model's title and main metrics."""
    card = zoo.card(name)
    values = {row["metric"]: row["value"] for row in card["evaluation"]["rows"]}
    metrics = ("clean", "corruptions/mean15")
    return f"{card['title']}: " + ", ".join(f"{name} {values[name]:.3f}" for name in metrics if name in values)


def _wrapped(name, text, max_lines=2):
    """Returns a name, and its text on further lines."""
    lines = textwrap.wrap(text, _WIDTH - _COLUMN, max_lines=max_lines, placeholder=" ...") or [""]
    first = f"  {name:<{_COLUMN - 3}} "
    if len(first) > _COLUMN:
        return "\n".join([first.rstrip(), *(" " * _COLUMN + line for line in lines)])
    return "\n".join([first + lines[0], *(" " * _COLUMN + line for line in lines[1:])])


def _block(heading, part):
    """Returns a heading, and names and texts in two columns. part: {name: text}."""
    width = max(min(len(name), _NAME) for name in part)
    lines = [f"  {name:<{width}}  {text}".rstrip() for name, text in part.items()]
    return "\n".join([heading, *(line if len(line) <= _WIDTH else line[: _WIDTH - 3].rsplit(" ", 1)[0] + " ..." for line in lines)])
