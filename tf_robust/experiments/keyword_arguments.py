"""Keyword arguments of the functions of `tf_robust.api`, which have the names of flags."""

import difflib
import functools
import os
import re
import typing
import warnings
from collections.abc import Callable, Mapping, Set

import numpy as np
from absl import flags

from tf_robust.experiments.compatibility import RENAMED_FLAGS
from tf_robust.experiments.flags import data_of, flag_names, parse_arguments, text_of, with_values
from tf_robust.experiments.runs import Run, runs_of

_FLAG = re.compile(r"--([a-z_]+)(?:=('[^']*'|\S*[^\s.,;:)]))?")
_BOOLEANS = {"true": "True", "false": "False"}
Function = typing.TypeVar("Function", bound=Callable)


def with_python_errors(function: Function) -> Function:
    """Returns a function whose errors name flags as keyword arguments: `--input_range=0,255` as `input_range="0,255"`."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except (ValueError, FileNotFoundError) as error:
            if type(error) not in (ValueError, FileNotFoundError) or (message := in_python(str(error))) == str(error):
                raise
            raise type(error)(message) from error

    return typing.cast(Function, call)


def in_python(message: str) -> str:
    """Returns a message with keyword arguments instead of flags; what is no flag of an API, such as --help, stays."""
    names = set(flag_names())
    return _FLAG.sub(lambda match: _argument(*match.groups()) if match[1] in names else match[0], message)


def _argument(name, value):
    return name if value is None else f"{name}={_literal(value.strip(chr(39)))}"


def _literal(text):
    return text if re.fullmatch(r"-?[0-9.]+", text) else _BOOLEANS.get(text, f'"{text}"')


def run_of(arguments: Mapping[str, typing.Any]) -> tuple[Run, flags.FlagValues]:
    """Returns the run of keyword arguments with the names of flags, and the values of all flags.

    Raises:
        ValueError: data in memory, unknown names, or several seeds.
    """
    if not isinstance(arguments.get("data", ""), str):
        raise ValueError(f"Expected the name of a data set. Received: {type(arguments['data']).__name__}. Try: npz:FILE or folder:DIR")
    if names := arguments.keys() - set(flag_names()):
        similar = [name for given in sorted(names) for name in difflib.get_close_matches(given, flag_names(), n=2)]
        hint = f" Did you mean {' or '.join(map(repr, similar))}?" if similar else ""
        raise ValueError(f"Expected names of flags, as `tf-robust --helpfull` lists them. Received: {', '.join(sorted(names))}.{hint}")
    if isinstance(arguments.get("input_range"), (tuple, list)):  # as of methods
        arguments = {**arguments, "input_range": ",".join(f"{value:g}" for value in arguments["input_range"])}
    arguments = {name: value.item() if isinstance(value, np.generic) else value for name, value in arguments.items()}
    values = with_values(parse_arguments([]), arguments)
    if len(values.seeds) > 1:
        raise ValueError(f"Expected one seed. Received: seeds={text_of(values.seeds)}. Try: one call per seed")
    return runs_of(values, values.method)[0], values


def renamed(arguments: Mapping[str, typing.Any]) -> dict[str, typing.Any]:
    """Returns arguments with the names of flags of the previous version replaced, and data sets by name for paths of existing ones."""
    for old in arguments.keys() & RENAMED_FLAGS.keys():
        warnings.warn(
            f"{old} is now {RENAMED_FLAGS[old]}. The old name will be removed in the next release.", DeprecationWarning, stacklevel=3
        )
    arguments = {RENAMED_FLAGS.get(name, name): value for name, value in arguments.items()}
    for name in arguments.keys() & {"data", "shifts", "ood"}:
        given = arguments[name]
        if name == "data" and isinstance(given, str | os.PathLike):
            arguments[name] = data_of(given)
        elif name != "data" and not isinstance(given, Mapping):  # of data sets in memory, by name
            given = given.split(",") if isinstance(given, str) else (given,) if isinstance(given, os.PathLike) else given
            arguments[name] = tuple(map(data_of, given))
    return {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in arguments.items()}


def check_used(arguments: Mapping[str, typing.Any], used: Set[str], purpose: str) -> None:
    """Raises ValueError if an argument has no effect.

    Args:
        arguments: by name.
        used: names that have an effect.
        purpose: of the call, for the message.
    """
    if unused := sorted(arguments.keys() - used):
        raise ValueError(f"Expected arguments that have an effect on {purpose}. Received: {', '.join(unused)}. Try: leave them out")
