"""Flags: definition and parsing. Importing this module does not import TensorFlow."""

import difflib
import glob
import os
import re
import typing
from collections.abc import Callable, Mapping, Sequence

from absl import flags

from tf_robust.data.kinds import data_of
from tf_robust.utils.hyperparameters import Parameter, text_of

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# folder with flags/: the package of a wheel, or the root of a checkout
FLAGS_HOME = _PACKAGE if os.path.isdir(os.path.join(_PACKAGE, "flags")) else os.path.dirname(_PACKAGE)
_PATHS = ("workdir", "data_dir", "corrupted_dir", "frost_dir", "saved_model", "init_from", "label_map")


class Options(dict[str, typing.Any]):
    """{flag: value} of a command; `given`: {flag: value} of those that were given."""

    def __init__(self, values: Mapping[str, typing.Any], given: Mapping[str, typing.Any]):
        super().__init__(values)
        self.given = dict(given)

    def changed(self, changes: Mapping[str, typing.Any]) -> "Options":
        """Returns options with other values, which count as given."""
        return Options({**self, **changes}, {**self.given, **changes})


def parse(
    parameters: Mapping[str, Parameter],
    arguments: Sequence[str],
    owner_of: Callable[[str], str] = lambda flag: "",
) -> tuple[Options, list[str]]:
    """Returns the values of flags, and the positional arguments, which stand before or after them; raises ValueError for invalid ones.

    `arguments` may have --flagfile, whose path may be relative to `FLAGS_HOME`; `owner_of`: an unknown flag -> the method or command that
    has it, for the message.
    """
    values, located = flags.FlagValues(), _with_existing_flagfiles(arguments)
    values.set_gnu_getopt(True)
    for name, parameter in parameters.items():
        if parameter.kind is bool:
            flags.DEFINE_bool(name, typing.cast(bool, parameter.default), parameter.help, flag_values=values)
        else:
            flags.DEFINE(_Parser(parameter), name, parameter.default, parameter.help, values)
    try:
        words = values(["tf-robust", *located])[1:]
    except (flags.Error, ValueError, OSError) as error:  # ValueError: a flagfile that is not text or has an impossible name
        raise ValueError(_message_of(error, located, parameters, owner_of)) from error
    for word in words:
        if word.startswith("-"):
            raise ValueError(f"Expected flags before --. Received: {word} after it{'' if '--' in arguments else _place('', arguments)}")
        if word not in located:  # a line of a flagfile
            raise ValueError(f"Unrecognized argument {word!r}. Expected --flag=value{_place(word, located)}")
    found = {name: values[name].value for name in parameters}
    found |= {name: os.path.expanduser(found[name]) for name in _PATHS if name in found}
    if "data" in found:
        found["data"] = data_of(found["data"])
    found |= {name: tuple(map(data_of, found[name])) for name in ("shifts", "ood") if name in found}
    return Options(found, {name: found[name] for name in parameters if values[name].present}), words


class _Parser(flags.ArgumentParser):
    """Parses the text of a flag as its parameter does."""

    def __init__(self, parameter: Parameter):
        self.parse = parameter.parse


def expanded(arguments: Sequence[str]) -> list[str]:
    """Returns arguments with the lines of their flagfiles in place of these; raises ValueError for one that cannot be read."""
    located = _with_existing_flagfiles(arguments)
    try:
        return flags.FlagValues().read_flags_from_files(located, force_gnu=True)
    except (flags.Error, ValueError, OSError) as error:
        raise ValueError(_message_of(error, located, {})) from error


def last_value(arguments: Sequence[str], name: str, default: str) -> str:
    """Returns the value that a flag has by some arguments without flagfiles, the last one; `default` if it is not among them."""
    found = default
    for word, following in zip(arguments, [*arguments[1:], ""]):
        flag, separator, value = word.lstrip("-").partition("=")
        if word.startswith("-") and flag == name:
            found = value if separator else following
    return found


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


def _message_of(error, arguments, parameters, owner_of=lambda flag: ""):
    """The message of an error in arguments, with the nearest name and the flagfile that it may be in."""
    text = str(error)
    if isinstance(error, flags.UnrecognizedFlagError):
        place = _place(f"--{error.flagname}", arguments)
        if owner := owner_of(error.flagname):
            return f"Unknown flag --{error.flagname}{place}: it belongs to {owner}"
        nearest = difflib.get_close_matches(error.flagname, parameters, n=2, cutoff=0.6)
        advice = f"Did you mean {' or '.join(f'--{name}' for name in nearest)}?" if nearest else "Try: --help, which lists the flags"
        return f"Unknown flag --{error.flagname}{place}. {advice}"
    if isinstance(error, flags.CantOpenFlagFileError):
        path = next((path for path in flagfiles_of(arguments) if not os.path.isfile(path)), None)
        if path is None:
            return f"{text.removeprefix('ERROR:: ')}{_place('', arguments)}"
        own = glob.glob(os.path.join(glob.escape(os.path.dirname(path)), "*.flags"))
        nearest = difflib.get_close_matches(path, own or glob.glob("flags/**/*.flags", root_dir=FLAGS_HOME, recursive=True), n=1)
        advice = f"Did you mean {nearest[0]}?" if nearest else "Try: tf-robust list suites"
        return f"Expected a file of flags. Not found: {path}. {advice}"
    invalid = re.match(r"flag --(\w+)=(.*?): (.*)$", text, re.DOTALL)
    return f"{invalid[3]}{_place(f'--{invalid[1]}', arguments)}" if invalid else f"{text}{_place('', arguments)}"


def _place(argument, arguments):
    """The flagfiles that an argument may be in, for a message; empty if it is on the command line."""
    paths = flagfiles_of(arguments)
    if not paths or (argument and any(given.startswith(argument) for given in arguments)):
        return ""
    return f" (in {', '.join(paths)})"


def arguments_of(options: Options) -> list[str]:
    """Returns arguments from which the given options are parsed again."""
    return [f"--{name}={text_of(value)}" for name, value in options.given.items()]
