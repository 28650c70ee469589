"""Flags: definition and parsing. Importing this module does not import TensorFlow."""

import logging
import math
import os
import shlex
import typing
from collections.abc import Callable, Mapping, Sequence

from absl import flags

from tf_robust.experiments.compatibility import RENAMED_FLAGS
from tf_robust.experiments.flag_index import flag_parameters
from tf_robust.utils.errors import unknown
from tf_robust.utils.hyperparameters import Parameter, parameters

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# folder with flags/: the package of a wheel, or the root of a checkout
FLAGS_HOME = _PACKAGE if os.path.isdir(os.path.join(_PACKAGE, "flags")) else os.path.dirname(_PACKAGE)
MODES = ("run", "suite", "train", "evaluate", "corrupt", "report", "serve")


def define_flags(values: flags.FlagValues) -> None:
    """Defines all flags, and their names of the previous version, in a FlagValues."""
    flags.DEFINE_enum(
        "mode",
        "run",
        MODES,
        "run: train, export, evaluate, report. suite: all rows of a table, a folder of "
        "flagfiles. train: without evaluation. evaluate: any SavedModel. corrupt: write a corrupted set. report: over "
        "many workdirs. serve: make batches for runs with --data_service.",
        values,
    )
    flags.DEFINE_string("workdir", "", "folder of the results; empty: a folder in runs/, named after the run.", values)
    _define_flag(values, "seeds", Parameter("seeds", tuple[int, ...], (0,), "seeds, one run for each: 0,1,2."))
    flags.DEFINE_string("suite", "", "folder of flagfiles (mode suite); order of rows and numbers of the paper (mode report).", values)
    flags.DEFINE_string("runs", "", "workdirs to compare, a glob pattern (mode report).", values)
    flags.DEFINE_string(
        "sweep",
        "",
        "grid of flags (mode run), 'fcl_k=128,256;fcl_sigma=0.1,0.5': the best on validation images is evaluated on the test set.",
        values,
    )
    flags.DEFINE_string("sweep_metric", "", "measure by which the best is chosen; empty: the first measure.", values)
    flags.DEFINE_string("saved_model", "", "SavedModel to evaluate (mode evaluate); empty: that of the workdir.", values)
    flags.DEFINE_bool("dry_run", False, "print what a run or suite will cost, from a few steps of each row, and exit.", values)
    flags.DEFINE_string(
        "require", "", "required bounds of measures, or the exit code is 1: 'corruptions/mean15>=0.7,flips/mean<=0.1'.", values
    )
    flags.DEFINE_bool("list", False, "print data sets, models, methods, views, corruptions, attacks and tables, and exit.", values)
    for name, parameter in flag_parameters().items():
        _define_flag(values, name, parameter)
    for old, new in RENAMED_FLAGS.items():
        flags.DEFINE_alias(old, new, values)


def flag_names() -> tuple[str, ...]:
    """Returns the sorted names of all flags, without those of the previous version. Methods may be added at run time."""
    values = flags.FlagValues()
    define_flags(values)
    return tuple(sorted(set(values) - RENAMED_FLAGS.keys()))


def parse_arguments(arguments: Sequence[str]) -> flags.FlagValues:
    """Returns a new FlagValues with flags read from arguments.

    Raises:
        ValueError: as in `read_arguments`.
    """
    values = flags.FlagValues()
    define_flags(values)
    read_arguments(values, arguments)
    return values


def read_arguments(values: flags.FlagValues, arguments: Sequence[str]) -> None:
    """Reads arguments into a FlagValues.

    Args:
        values: has all flags.
        arguments: of the command line, possibly with --flagfile.

    Raises:
        ValueError: an unknown flag or an invalid value, in the arguments or a flagfile.
    """
    try:
        unrecognized = values(["run_experiment.py", *arguments])[1:]
        if unrecognized:
            raise flags.Error(f"Unrecognized argument {' '.join(unrecognized)!r}. Expected --flag=value")
    except (flags.Error, ValueError) as error:  # ValueError: a flagfile that is not text or has an impossible name
        raise ValueError(f"Expected flags as --help lists them. Received: {shlex.join(arguments)}: {error}") from error
    for old, new in RENAMED_FLAGS.items():
        if values[old].present:
            logging.warning("--%s is now --%s. The old name will be removed in the next release.", old, new)


def given_values(values: flags.FlagValues) -> dict[str, typing.Any]:
    """Returns {name: value} of the flags that were given explicitly."""
    return {name: values[name].value for name in flag_names() if values[name].present}


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


class _FiniteParser(flags.FloatParser):
    """Parses numbers except infinities and NaN."""

    def convert(self, argument):
        value = super().convert(argument)
        if not math.isfinite(value):
            raise ValueError(f"Expected a finite number. Received: {argument}")
        return value


class _IntegerParser(flags.IntegerParser):
    """Parses integers of 32 bits."""

    def convert(self, argument):
        value = super().convert(argument)
        if abs(value) >= 2**31:
            raise ValueError(f"Expected an integer below 2^31 = {2**31}. Received: {argument}")
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
            raise ValueError(f"Expected comma-separated {self.kind.__name__} values. Received: {argument}") from error


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
