"""Hyperparameters of methods, augmentations and dataclasses: their names, types, defaults and help texts.

The command line's flags are derived from these, so that a hyperparameter is written down once: as a keyword argument
with an annotation, a default and an entry under `Args:` in the docstring (Google style).
"""

import dataclasses
import fractions
import functools
import inspect
import math
import os
import re
import textwrap
import types
import typing
from collections.abc import Callable, Mapping

import docstring_parser

from tf_robust.utils.errors import unknown

Kind = type | types.GenericAlias  # bool, int, float, str, or `tuple[kind, ...]`
Value = bool | int | float | str | tuple
_EXPECTED = {bool: "true or false", int: "an integer below 2^31 = 2147483648", float: "a finite number", str: "text"}
_BOOLS = {"true": True, "1": True, "false": False, "0": False}


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One hyperparameter."""

    name: str  # of the keyword argument
    kind: Kind  # bool, int, float, str, or a tuple of one of them as `tuple[float, ...]`
    default: Value
    help: str  # its text in the docstring
    choices: tuple = ()  # the values of a `typing.Literal`; empty otherwise

    def parse(self, value: object) -> Value:
        """Returns a value of the kind of this parameter, from one or from text: "8/255" for a number, "0,1,2" for several."""
        value = value.tolist() if hasattr(value, "tolist") else os.fspath(value) if isinstance(value, os.PathLike) else value  # of NumPy
        if self.choices:
            if value not in self.choices:
                raise unknown(f"value of {self.name}", str(value), map(str, self.choices))
            return typing.cast(Value, value)
        if typing.get_origin(self.kind) is not tuple:
            return _parse_one(self.kind, value, self.name)
        if isinstance(value, str):
            value = [one for one in value.split(",") if one]
        values = value if isinstance(value, (tuple, list, set, frozenset)) else (value,)
        return tuple(_parse_one(typing.get_args(self.kind)[0], one, self.name) for one in values)


def _parse_one(kind, value, name):
    try:
        if kind is str and isinstance(value, str):
            return value
        if kind is bool and str(value).lower() in _BOOLS:
            return _BOOLS[str(value).lower()]
        if kind is int and not isinstance(value, bool) and int(value) == float(value) and abs(int(value)) < 2**31:
            return int(value)
        if kind is float and not isinstance(value, bool):
            number = float(fractions.Fraction(value)) if isinstance(value, str) and "/" in value else float(value)
            if math.isfinite(number):
                return number
    except (TypeError, ValueError, ZeroDivisionError):
        pass
    raise ValueError(f"Expected {name} as {_EXPECTED[kind]}. Received: {value!r}")


def seconds_of(text: str) -> float:
    """Returns the seconds of a time such as 90s, 30m or 1.5h; raises ValueError for any other text."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh])", text.strip())
    if not match or not float(match[1]):
        raise ValueError(f"Expected a time (90s, 30m, 2h). Received: {text!r}")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


def text_of(value: object) -> str:
    """Returns the value of a hyperparameter as it is written on the command line."""
    return ",".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)


def arguments_of(target: Callable, values: Mapping[str, typing.Any], prefix: str = "") -> dict[str, typing.Any]:
    """Returns the keyword arguments of a class or function that are among {prefix + name: value or text}, parsed."""
    found = {name: one for name, one in parameters(target).items() if prefix + name in values}
    return {name: dataclasses.replace(one, name=prefix + name).parse(values[prefix + name]) for name, one in found.items()}


def read(values: Mapping[str, typing.Any], *targets: Callable) -> list[typing.Any]:
    """Returns an instance of each of some classes, with its arguments among {name: value or text}; unknown names raise ValueError."""
    known = {name for target in targets for name in parameters(target)}
    for name in values:
        if name not in known:
            raise unknown("argument", name, known)
    return instances(values, *targets)


def instances(values: Mapping[str, typing.Any], *targets: Callable) -> list[typing.Any]:
    """Returns an instance of each of some classes, with its arguments among {name: value or text}."""
    return [target(**arguments_of(target, values)) for target in targets]


@functools.cache
def parameters(target: Callable) -> dict[str, Parameter]:
    """Returns {name: hyperparameter} of a function, or of a class including its bases; cached: do not change it.

    Hyperparameters are the keyword arguments with an annotation and a default.
    """
    texts, result = _texts(target), {}
    for name, argument in _arguments(target).items():
        if argument.empty not in (argument.default, argument.annotation):
            kind, choices = argument.annotation, ()
            if typing.get_origin(kind) is typing.Literal:
                kind, choices = str, typing.get_args(kind)
            result[name] = Parameter(name, kind, argument.default, texts.get(name, ""), choices)
    return result


@functools.cache
def signature(target: type) -> inspect.Signature:
    """Returns the signature of a class with the arguments that its `**kwargs` pass on to its bases."""
    return inspect.Signature([*_arguments(target).values()])


def documentation(target: type) -> str:
    """Returns the docstring of a class (Google style), with the arguments of its bases."""
    before, _, own = inspect.cleandoc(target.__doc__ or "").partition("\nArgs:\n")
    sections = re.split(r"\n(?=\S)", own, maxsplit=1)[1:]  # those after Args
    texts = _texts(target)
    lines = [
        textwrap.fill(f"{name}: {texts[name]}", 120, initial_indent="    ", subsequent_indent="        ")
        for name in signature(target).parameters
        if name in texts
    ]
    return "\n".join([before.rstrip(), "", "Args:", *lines, *(f"\n{section}" for section in sections)])


def _sources(target):
    """The functions or classes that define the arguments of a function or class: of a class its bases, too.

    The `**kwargs` of a class are passed to `kwargs_of`, one of its bases; by default to the next one.
    """
    if not inspect.isclass(target):
        return [target]
    sources: list[type] = []
    following = None
    for source in target.__mro__:
        if "__init__" in vars(source) and following in (None, source):
            sources.append(source)
            following = vars(source).get("kwargs_of")
            if not any(argument.kind is argument.VAR_KEYWORD for argument in inspect.signature(source.__init__).parameters.values()):
                break
    return sources


def _arguments(target):
    """{name: argument}; a base's arguments without a default are set by a subclass."""
    found: dict[str, inspect.Parameter] = {}
    for source in _sources(target):
        inherited = bool(found)
        for name, argument in inspect.signature(source.__init__ if inspect.isclass(source) else source).parameters.items():
            if name != "self" and argument.kind is not argument.VAR_KEYWORD and not (inherited and argument.default is argument.empty):
                found.setdefault(name, argument)
    return found


def _texts(target):
    """{argument: its text in the docstring, on one line}."""
    texts: dict[str, str] = {}
    for source in _sources(target):
        arguments = docstring_parser.parse(source.__doc__ or "", docstring_parser.DocstringStyle.GOOGLE).params
        texts = {**{one.arg_name: " ".join((one.description or "").split()) for one in arguments}, **texts}
    return texts
