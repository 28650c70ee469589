"""Flags: definition and parsing. Importing this module does not import TensorFlow."""

import difflib
import fractions
import logging
import math
import os
import re
import typing
from collections.abc import Callable, Mapping, Sequence

from absl import flags

from tf_robust.data.kinds import DATA_KINDS
from tf_robust.experiments.compatibility import RENAMED_FLAGS
from tf_robust.experiments.flag_index import data_names, flag_parameters
from tf_robust.experiments.launchers import LAUNCHERS
from tf_robust.saved_models.formats import files
from tf_robust.utils.errors import unknown
from tf_robust.utils.hyperparameters import Parameter, parameters

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# folder with flags/: the package of a wheel, or the root of a checkout
FLAGS_HOME = _PACKAGE if os.path.isdir(os.path.join(_PACKAGE, "flags")) else os.path.dirname(_PACKAGE)
MODES = ("run", "suite", "train", "evaluate", "corrupt", "report", "serve")  # of the previous version
SECTIONS = ("data", "models", "methods", "views", "corruptions", "attacks", "measures", "zoo", "suites")


def define_flags(values: flags.FlagValues) -> None:
    """Defines all flags, and their names of the previous version, in a FlagValues."""
    values.set_gnu_getopt(True)  # flags stand before or after positional arguments
    flags.DEFINE_enum("mode", None, MODES, "previous form of the commands: tf-robust evaluate ... is --mode=evaluate.", values)
    flags.DEFINE_string(
        "workdir", "", "folder of the results, or s3://BUCKET/PATH and others; empty: a folder in runs/, named after the run.", values
    )
    _define_flag(values, "seeds", Parameter("seeds", tuple[int, ...], (0,), "seeds, one run for each: 0,1,2; short: --seed=3."))
    flags.DEFINE_alias("seed", "seeds", values)
    flags.DEFINE_string("suite", "", "folder of flagfiles (suite); order of rows and numbers of the paper (report).", values)
    _define_flag(values, "runs", Parameter("runs", tuple[str, ...], (), "workdirs or glob patterns to compare (report)."))
    flags.DEFINE_string("baseline", "", "row that the others are compared with (report); empty: plain training, else the first.", values)
    flags.DEFINE_string(
        "sweep",
        "",
        "grid of flags (sweep), 'fcl_k=128,256;fcl_sigma=0.1,0.5': the best on validation images is evaluated on the test set; with "
        "sweep_engine optuna also ranges, 'fcl_k=64..512;learning_rate=log:0.01..0.3'.",
        values,
    )
    flags.DEFINE_string(
        "sweep_metric",
        "",
        "measure to choose the best by, or several: all that no other surpasses; empty: the first.",
        values,
    )
    engines = "grid: all combinations; optuna: sampled by TPE, pruned by Hyperband on the validation accuracy."
    flags.DEFINE_enum("sweep_engine", "grid", ("grid", "optuna"), engines, values)
    _define_flag(values, "trials", Parameter("trials", int, 20, "number of points that optuna samples."))
    flags.DEFINE_string("sweep_storage", "", "URL of optuna's database, shared by processes; empty: SQLite in the workdir.", values)
    launcher_help = "where runs are trained and shards are evaluated: in this process, or by tasks of Ray or Slurm."
    flags.DEFINE_enum("launcher", "local", LAUNCHERS, launcher_help, values)
    options = "resources of a task: num_cpus=2,num_gpus=1 (ray); cpus_per_task=4,timeout_min=600,slurm_partition=NAME (slurm)."
    _define_flag(values, "launcher_options", Parameter("launcher_options", tuple[str, ...], (), options))
    flags.DEFINE_string("saved_model", "", "model to evaluate (evaluate, attack); empty: that of the workdir.", values)
    flags.DEFINE_bool("dry_run", False, "print what a run or suite will cost, from a few steps of each row, and exit.", values)
    flags.DEFINE_string(
        "require", "", "required bounds of measures, or the exit code is 1: 'corruptions/mean15>=0.7,flips/mean<=0.1'.", values
    )
    flags.DEFINE_string(
        "require_not_worse_than",
        "",
        "evaluation.json of another model on the same images: the exit code is 1 if a main measure is significantly worse (paired).",
        values,
    )
    flags.DEFINE_string("junit", "", "file for the outcome of each required bound as JUnit XML, which CI systems show.", values)
    help_of_formats = f"formats to write (export), or to write and evaluate side by side (evaluate), of {', '.join(files())}."
    _define_flag(values, "formats", Parameter("formats", tuple[str, ...], (), help_of_formats))
    flags.DEFINE_bool("unit_range", False, "exported files take images in [0, 1], whatever the model takes (export).", values)
    flags.DEFINE_bool("logits", False, "exported files return logits, also of a model that returns probabilities (export).", values)
    flags.DEFINE_bool("list", False, "previous form of tf-robust list.", values)
    flags.DEFINE_enum("section", None, SECTIONS, "names to list (list); empty: all.", values)
    for name, parameter in flag_parameters().items():
        _define_flag(values, name, parameter)
    for old, new in RENAMED_FLAGS.items():
        flags.DEFINE_alias(old, new, values)


def flag_names() -> tuple[str, ...]:
    """Returns the sorted names of all flags, without those of the previous version. Methods may be added at run time."""
    values = flags.FlagValues()
    define_flags(values)
    return tuple(sorted(set(values) - RENAMED_FLAGS.keys() - {"seed"}))


def parse_arguments(arguments: Sequence[str]) -> flags.FlagValues:
    """Returns a new FlagValues with flags read from arguments.

    Raises:
        ValueError: as in `read_arguments`.
    """
    values = flags.FlagValues()
    define_flags(values)
    read_arguments(values, arguments)
    return values


def read_arguments(values: flags.FlagValues, arguments: Sequence[str], positional: bool = False) -> list[str]:
    """Reads arguments into a FlagValues, and returns the positional ones.

    Args:
        values: has all flags.
        arguments: of the command line, possibly with --flagfile; its path may be relative to `FLAGS_HOME`.
        positional: whether positional arguments are allowed.

    Raises:
        ValueError: an unknown flag, an invalid value or a positional argument that is not allowed, in the arguments or a flagfile.
    """
    located = _with_existing_flagfiles(arguments)
    try:
        words = values(["tf-robust", *located])[1:]
    except (flags.Error, ValueError, OSError) as error:  # ValueError: a flagfile that is not text or has an impossible name
        raise ValueError(_message_of(error, located)) from error
    for word in words:
        if not positional or word not in located:  # a line of a flagfile
            raise ValueError(f"Unrecognized argument {word!r}. Expected --flag=value{_place(word, located)}")
    if {"seed", "seeds"} <= {argument.lstrip("-").partition("=")[0] for argument in arguments if argument.startswith("-")}:
        raise ValueError("Expected --seed or --seeds, which are the same flag. Received: both")
    for name in ("workdir", "data_dir", "corrupted_dir", "frost_dir", "saved_model", "init_from", "label_map"):
        if isinstance(path := values[name].value, str) and path.startswith("~"):
            values[name].value = os.path.expanduser(path)
    values["data"].value = data_of(values["data"].value)
    for name in ("shifts", "ood"):
        values[name].value = tuple(map(data_of, values[name].value))
    for old, new in RENAMED_FLAGS.items():
        if values[old].present:
            logging.warning("--%s is now --%s. The old name will be removed in the next release.", old, new)
    return words


def flagfiles_of(arguments: Sequence[str]) -> list[str]:
    """Returns the paths of the flagfiles on a command line."""
    located = _with_existing_flagfiles(arguments)
    return [argument.removeprefix("--flagfile=") for argument in located if argument.startswith("--flagfile=")]


def _with_existing_flagfiles(arguments):
    """Arguments with each flagfile as --flagfile=PATH; relative to `FLAGS_HOME` if it is only there."""
    result: list[str] = []
    for argument in arguments:
        if result and result[-1] in ("--flagfile", "-flagfile"):
            result[-1] = argument = f"--flagfile={argument}"
        else:
            result.append(argument)
        path = argument.removeprefix("--flagfile=")
        if path != argument and not os.path.exists(path) and os.path.exists(os.path.join(FLAGS_HOME, path)):
            result[-1] = f"--flagfile={os.path.join(FLAGS_HOME, path)}"
    return result


def _message_of(error, arguments):
    """The message of an error in arguments, with the nearest name and the flagfile that it may be in."""
    text = str(error)
    if isinstance(error, flags.UnrecognizedFlagError):
        nearest = difflib.get_close_matches(error.flagname, flag_names(), n=2, cutoff=0.6)
        advice = f"Did you mean {' or '.join(f'--{name}' for name in nearest)}?" if nearest else "Try: tf-robust --helpfull lists all flags"
        return f"Unknown flag --{error.flagname}{_place(f'--{error.flagname}', arguments)}. {advice}"
    if isinstance(error, flags.CantOpenFlagFileError):
        missing = [path for path in flagfiles_of(arguments) if not os.path.isfile(path)]
        return _missing_flagfile(missing[0]) if missing else f"{text.removeprefix('ERROR:: ')}{_place('', arguments)}"
    invalid = re.match(r"flag --(\w+)=(.*?): (.*)$", text, re.DOTALL)
    if not invalid:
        return f"{text}{_place('', arguments)}"
    name, value, reason = invalid.groups()
    place = _place(f"--{name}", arguments)
    if choices := re.match(r"value should be one of <(.*)>", reason):
        return f"{unknown(f'value of --{name}', value, choices.group(1).split('|'))}{place}"
    return f"{reason.rstrip('.')}. Received: --{name}={value}{place}"


def _place(argument, arguments):
    """The flagfiles that an argument may be in, for a message; empty if it is on the command line."""
    paths = flagfiles_of(arguments)
    if not paths or (argument and any(given.startswith(argument) for given in arguments)):
        return ""
    return f" (in {', '.join(paths)})"


def _missing_flagfile(path):
    """The message for a flagfile that does not exist, with the nearest in its folder or in flags/."""
    folders = [os.path.dirname(path) or ".", os.path.join(FLAGS_HOME, os.path.dirname(path))]
    known = [os.path.join(os.path.dirname(path), name) for folder in folders if os.path.isdir(folder) for name in os.listdir(folder)]
    if not known:
        known = [
            os.path.relpath(os.path.join(folder, name), FLAGS_HOME)
            for folder, _, names in os.walk(os.path.join(FLAGS_HOME, "flags"))
            for name in names
        ]
    nearest = difflib.get_close_matches(path, [name for name in known if name.endswith(".flags")], n=1)
    advice = f"Did you mean {nearest[0]}?" if nearest else "Try: tf-robust list suites"
    return f"Expected a file of flags. Not found: {path}. {advice}"


def given_values(values: flags.FlagValues) -> dict[str, typing.Any]:
    """Returns {name: value} of the flags that were given explicitly."""
    return {name: values[name].value for name in flag_names() if values[name].present}


def arguments_of(values: flags.FlagValues) -> list[str]:
    """Returns arguments from which the flags that were given are parsed again, without --launcher, for a task of one."""
    given = {name: value for name, value in given_values(values).items() if not name.startswith("launcher")}
    return [f"--{name}={text_of(value)}" for name, value in given.items()]


def with_values(values: flags.FlagValues, changes: Mapping[str, typing.Any]) -> flags.FlagValues:
    """Returns a new FlagValues with the given flags of `values` and those of `changes`.

    Args:
        values: a parsed FlagValues.
        changes: {name: value}; values have the type of the flag, or are text as on the command line.

    Raises:
        ValueError: an unknown flag or an invalid value.
    """
    changed, names = parse_arguments([]), flag_names()
    for name, value in {**given_values(values), **changes}.items():
        if name not in names:
            raise unknown("flag", name, names)
        if isinstance(value, (int, float)) and isinstance(changed[name].value, tuple):
            value = (value,)
        try:
            changed[name].parse(value)
        except flags.Error as error:
            raise ValueError(f"Expected a value of --{name}: {values[name].help} Received: {value!r} ({error})") from error
    return changed


def values_of(values: flags.FlagValues, target: Callable, prefix: str = "") -> dict[str, typing.Any]:
    """Returns {keyword argument of a class or function: value of its flag}, without arguments that have no flag.

    Args:
        values: parsed flags.
        target: class or function.
        prefix: of the flags' names.
    """
    return {name: values[prefix + name].value for name in parameters(target) if prefix + name in values}


def text_of(value: object) -> str:
    """Returns the value of a flag as it is written on the command line."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def data_of(name: str | os.PathLike) -> str:
    """Returns the name of a data set: folder:DIR, csv:FILE or npz:FILE of a path that exists, unless it is the name of a known set."""
    path, known = os.fspath(name), isinstance(name, str) and name in data_names()
    existing = os.path.expanduser(path)
    if not known and os.path.isdir(existing):
        return f"folder:{path.rstrip(os.sep) or path}"
    if known or not os.path.isfile(existing):
        return path
    suffix = os.path.splitext(path)[1]
    return next((f"{key}:{path}" for key, kind in DATA_KINDS.items() if suffix and kind.suffix == suffix), path)


class _FiniteParser(flags.FloatParser):
    """Parses numbers except infinities and NaN, also fractions such as 8/255."""

    def convert(self, argument):
        try:
            is_fraction = isinstance(argument, str) and "/" in argument
            value = float(fractions.Fraction(argument)) if is_fraction else super().convert(argument)
        except (ValueError, ZeroDivisionError) as error:
            raise ValueError("Expected a number") from error
        if not math.isfinite(value):
            raise ValueError("Expected a finite number")
        return value


class _IntegerParser(flags.IntegerParser):
    """Parses integers of 32 bits."""

    def convert(self, argument):
        try:
            value = super().convert(argument)
        except ValueError as error:
            raise ValueError("Expected an integer") from error
        if abs(value) >= 2**31:
            raise ValueError(f"Expected an integer below 2^31 = {2**31}")
        return value


class _TupleParser(flags.ArgumentParser):
    """Parses comma-separated values of one type; empty text gives ()."""

    def __init__(self, kind):
        self.kind, self.convert_one = kind, {int: _IntegerParser().convert, float: _FiniteParser().convert}.get(kind, kind)

    def parse(self, argument):
        values = argument.split(",") if isinstance(argument, str) else argument
        try:
            return tuple(self.convert_one(value) for value in values if value != "")
        except ValueError as error:
            kind = "integers" if self.kind is int else "numbers"
            raise ValueError(f"Expected {kind} with commas between them, such as 0,1,2") from error


def _define_flag(values, name, parameter):
    """Defines a flag for a `Parameter` on a FlagValues."""
    simple = {bool: flags.DEFINE_bool, str: flags.DEFINE_string}
    numbers = {int: _IntegerParser, float: _FiniteParser}
    if parameter.choices:
        flags.DEFINE_enum(name, parameter.default, parameter.choices, parameter.help, flag_values=values)
    elif parameter.kind in simple:
        simple[parameter.kind](name, parameter.default, parameter.help, flag_values=values)
    elif parameter.kind in numbers:
        flags.DEFINE(numbers[parameter.kind](), name, parameter.default, parameter.help, values, flags.ArgumentSerializer())
    else:
        parser = _TupleParser(typing.get_args(parameter.kind)[0])
        flags.DEFINE(parser, name, parameter.default, parameter.help, values, flags.CsvListSerializer(","))
