"""Hyperparameters of methods, augmentations and dataclasses: their names, types, defaults and help texts.

The command line's flags are derived from these, so that a hyperparameter is written down once: as a keyword argument
with an annotation, a default and an entry under `Args:` in the docstring (Google style).
"""

import dataclasses
import functools
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Callable

import docstring_parser

Kind = type | types.GenericAlias  # bool, int, float, str, or `tuple[kind, ...]`
Value = bool | int | float | str | tuple


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One hyperparameter.

    Attributes:
        name: of the keyword argument.
        kind: bool, int, float, str, or a tuple of one of them as `tuple[float, ...]`.
        default: the value where none is given.
        help: its text in the docstring.
        choices: the values of a `typing.Literal`; empty otherwise.
    """

    name: str
    kind: Kind
    default: Value
    help: str
    choices: tuple = ()


@functools.cache
def parameters(target: Callable) -> dict[str, Parameter]:
    """Returns the hyperparameters of a function, or of a class including its bases, by name.

    Args:
        target: a class or function; its keyword arguments with an annotation and a default are hyperparameters.

    Returns:
        {name: Parameter}, which is cached: do not change it.
    """
    result: dict[str, Parameter] = {}
    for source in _sources(target):
        texts = _argument_texts(source)
        for name, argument in inspect.signature(source.__init__ if inspect.isclass(source) else source).parameters.items():
            if argument.default is inspect.Parameter.empty or argument.annotation is inspect.Parameter.empty:
                continue
            kind, choices = argument.annotation, ()
            if typing.get_origin(kind) is typing.Literal:
                kind, choices = str, typing.get_args(kind)
            result.setdefault(name, Parameter(name, kind, argument.default, texts.get(name, ""), choices))
    return result


@functools.cache
def signature(target: type) -> inspect.Signature:
    """Returns the signature of a class with the arguments that its `**kwargs` pass on to its bases."""
    found: dict[str, inspect.Parameter] = {}
    for source in _sources(target):
        _, *arguments = inspect.signature(source.__init__).parameters.values()  # without self
        inherited = bool(found)  # those without a default are set by a subclass
        for argument in arguments:
            if argument.kind is not argument.VAR_KEYWORD and not (inherited and argument.default is argument.empty):
                found.setdefault(argument.name, argument)
    return inspect.Signature(list(found.values()))


def documentation(target: type) -> str:
    """Returns the docstring of a class (Google style), with the arguments of its bases."""
    text = inspect.cleandoc(target.__doc__ or "")
    before, _, own = text.partition("\nArgs:\n")
    sections = re.split(r"\n(?=\S)", own, maxsplit=1)[1:]  # those after Args
    texts: dict[str, str] = {}
    for source in _sources(target):
        texts = {**_argument_texts(source), **texts}
    lines = [
        textwrap.fill(f"{name}: {texts[name]}", 120, initial_indent="    ", subsequent_indent="        ")
        for name in signature(target).parameters
        if name in texts
    ]
    return "\n".join([before.rstrip(), "", "Args:", *lines, *(f"\n{section}" for section in sections)])


def _sources(target):
    """Returns the functions or classes that define the arguments of a function or class: of a class its bases, too.

    The `**kwargs` of a class are those of the class `kwargs_of`, one of its bases; by default of the next one.
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


def _argument_texts(source: Callable) -> dict[str, str]:
    """Returns {argument: its text in the docstring}, each on one line."""
    arguments = docstring_parser.parse(source.__doc__ or "", docstring_parser.DocstringStyle.GOOGLE).params
    return {argument.arg_name: " ".join((argument.description or "").split()) for argument in arguments}
