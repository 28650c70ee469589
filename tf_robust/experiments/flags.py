"""The flags: derived from what methods, views, settings and measuring can be told; and the runs that they describe."""

import functools
import logging
import math
import shlex
import typing

from absl import flags

from tf_robust import corrupted_datasets, evaluation, methods
from tf_robust.data.augment import AUGMENTATIONS, VIEWS
from tf_robust.experiments.compatibility import RENAMED_FLAGS
from tf_robust.experiments.config import TrainConfig
from tf_robust.experiments.run import PATH_FLAGS, Run
from tf_robust.methods.base import Method
from tf_robust.saved_models import loading
from tf_robust.utils.errors import unknown
from tf_robust.utils.hyperparameters import Parameter, parameters

MODES = ("run", "suite", "train", "evaluate", "corrupt", "report", "serve")


def define_flags(values):
    """Defines all flags, and the names of the previous version, on a FlagValues."""
    flags.DEFINE_enum(
        "mode",
        "run",
        MODES,
        "run: train, export, evaluate, report. suite: a folder of flagfiles is a "
        "table. train: no evaluation. evaluate: any SavedModel. corrupt: write a corrupted set. report: over "
        "many workdirs. serve: make batches for trainings that --data_service sends here.",
        values,
    )
    flags.DEFINE_string("workdir", "", "folder of the results; empty: one below runs/, named after what is run.", values)
    _define_flag(values, "seeds", Parameter("seeds", tuple[int, ...], (0,), "seeds, one run each: 0,1,2."))
    flags.DEFINE_string("suite", "", "folder of flagfiles (mode suite); its order and the paper's numbers (mode report).", values)
    flags.DEFINE_string("runs", "", "workdirs to compare, a glob pattern (mode report).", values)
    flags.DEFINE_string(
        "sweep", "", "grid of settings (mode run), 'fcl_k=128,256;fcl_sigma=0.1,0.5': the best on validation is tested.", values
    )
    flags.DEFINE_string("sweep_metric", "", "measure that decides on the best; empty: the first one.", values)
    flags.DEFINE_string("saved_model", "", "SavedModel to measure (mode evaluate); empty: the workdir's own.", values)
    flags.DEFINE_bool("dry_run", False, "say what a run or suite will take, from a few steps of each row, and end.", values)
    flags.DEFINE_string("hardware", "", "file that describes the machines for which --dry_run is to say it (docs/scale.md).", values)
    flags.DEFINE_string(
        "require", "", "measures that must be reached, else the exit code is 1: 'corruptions/mean15>=0.7,flips/mean<=0.1'.", values
    )
    flags.DEFINE_bool("list", False, "print data sets, models, methods, views, corruptions, attacks and tables, and end.", values)
    groups = {"": (TrainConfig, evaluation.EvalConfig, loading.ModelInterface, corrupted_datasets.WriterConfig, Method)}
    shared = parameters(Method)
    for name, target in (*methods.METHODS.items(), *VIEWS.items()):  # SimCLR is both, and what they are told differs
        groups[f"{name}_"] = (*groups.get(f"{name}_", ()), target)
    for prefix, targets in groups.items():
        for parameter in (p for target in targets for p in parameters(target).values()):
            if not prefix or parameter.name not in shared:
                _define_flag(values, prefix + parameter.name, parameter)
    for old, new in RENAMED_FLAGS.items():
        flags.DEFINE_alias(old, new, values)


def flag_names():
    """Returns the names of all flags, sorted; without those of the previous version. Methods may be added at run time."""
    values = flags.FlagValues()
    define_flags(values)
    return tuple(sorted(set(values) - RENAMED_FLAGS.keys()))


def parsed(arguments):
    """Returns a new FlagValues with flags read from a list of arguments; errors as of `read`."""
    values = flags.FlagValues()
    define_flags(values)
    read(values, arguments)
    return values


def read(values, arguments):
    """Reads arguments into a FlagValues; ValueError where they, or a flagfile that they name, are no flags."""
    try:
        words = values(["run_experiment.py", *arguments])[1:]
        if words:
            raise flags.Error(f"{' '.join(words)!r} is no --NAME=VALUE")
    except (flags.Error, ValueError) as error:  # of a file that is no text, or whose name cannot be one
        raise ValueError(f"Expected flags as --help lists them. Received {shlex.join(arguments)}: {error}") from error
    for old, new in RENAMED_FLAGS.items():
        if values[old].present:
            logging.warning("--%s is now --%s. The old name will be removed in the next release.", old, new)


def given_values(values):
    """Returns {name: value} of the flags that were given, not left at their defaults."""
    return {name: values[name].value for name in flag_names() if values[name].present}


def with_values(values, changes):
    """Returns a new FlagValues: the given flags of `values`, and those of `changes` with other values.

    Args:
        values: a parsed FlagValues.
        changes: {name: value}; values have the flag's type, or are text as on the command line.

    Raises:
        ValueError: a flag that does not exist, or a value that it does not take.
    """
    changed, names = parsed([]), flag_names()
    for name, value in {**given_values(values), **changes}.items():
        if name not in names:
            raise unknown("flag", name, names)
        try:
            changed[name].parse(value)
        except flags.Error as error:
            raise ValueError(f"Expected a value of --{name}: {values[name].help} Received: {value!r} ({error})") from error
    return changed


def values_of(values, target, prefix=""):
    """Returns {keyword argument of a class or function: value of its flag}; without those that have no flag."""
    return {name: values[prefix + name].value for name in parameters(target) if prefix + name in values}


def runs_of(values, row, shown_as=""):
    """One `Run` a seed. Its flags are those that it depends on: not the other methods', not where things are."""
    used = set()

    def of(target, prefix):
        found = values_of(values, target, prefix)
        used.update(prefix + name for name in found)
        return found

    config = TrainConfig(**of(TrainConfig, ""))
    eval_config = evaluation.EvalConfig(**of(evaluation.EvalConfig, ""))
    options = {**of(Method, ""), **of(methods.METHODS[config.method], f"{config.method}_")}
    augmentations = {name: of(VIEWS[name], f"{name}_") for name in (*config.augmentations, *config.views)}
    names = flag_names()
    texts = {name: text_of(values[name].value) for name in names if name in used and name not in PATH_FLAGS}
    defaults = {name: text_of(values[name].default) for name in names}
    if not values.seeds or len(set(values.seeds)) != len(values.seeds):
        raise ValueError(f"Expected --seeds, each once. Received: {text_of(values.seeds) or 'none'}")
    runs = [
        Run(
            config,
            eval_config,
            {"method": options, "augmentations": augmentations},
            {**texts, "seeds": str(seed)},
            defaults,
            row,
            seed,
            shown_as,
        )
        for seed in values.seeds
    ]
    for run in runs:
        run.ignored = {name: owner for name, owner in _owners().items() if values[name].present and name not in used}
    return runs


@functools.cache
def _owners():
    """{flag: the flag that makes it count} of the flags of a method, an augmentation or a view."""
    shared, found = parameters(Method), {}
    for flag, targets in (("method", methods.METHODS), ("augmentations", AUGMENTATIONS), ("views", VIEWS)):
        for name, target in targets.items():
            for parameter in parameters(target).keys() - shared.keys():
                found.setdefault(f"{name}_{parameter}", []).append(f"--{flag}={name}")
    return {name: " or ".join(owners) for name, owners in found.items()}


def warn_of_ignored_flags(runs):
    """Logs a warning for each flag that was given and that none of the runs uses, since it belongs to another method or view."""
    ignored = {name: (owner, run) for run in runs for name, owner in run.ignored.items()}
    for name, (owner, run) in ignored.items():
        if not any(name in other.flags for other in runs):
            logging.warning(
                "--%s has no effect: it belongs to %s. Received: --method=%s, --augmentations=%s, --views=%s",
                name,
                owner,
                run.config.method,
                ",".join(run.config.augmentations),
                ",".join(run.config.views),
            )


def text_of(value):
    """A flag's value as it is written on the command line."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


class _FiniteParser(flags.FloatParser):
    """Numbers but infinities and NaN."""

    def convert(self, argument):
        value = super().convert(argument)
        if not math.isfinite(value):
            raise ValueError(f"Expected a finite number. Received: {argument}")
        return value


class _IntegerParser(flags.IntegerParser):
    """Whole numbers of 32 bits."""

    def convert(self, argument):
        value = super().convert(argument)
        if abs(value) >= 2**31:
            raise ValueError(f"Expected a whole number below 2^31 = {2**31}. Received: {argument}")
        return value


class _TupleParser(flags.ArgumentParser):
    """Comma-separated values of one type; empty for none."""

    def __init__(self, kind):
        self.kind, self.one = kind, {int: _IntegerParser().convert, float: _FiniteParser().convert}.get(kind, kind)

    def parse(self, argument):
        words = argument.split(",") if isinstance(argument, str) else argument
        try:
            return tuple(self.one(word) for word in words if word != "")
        except ValueError as error:
            raise ValueError(f"Expected {self.kind.__name__} values with commas between. Received: {argument}") from error


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
