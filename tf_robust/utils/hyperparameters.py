"""Hyperparameters of methods, augmentations and dataclasses: their names, types, defaults and help texts.

The command line's flags are derived from these, so that a hyperparameter is written down once: as a keyword argument
with an annotation, a default and an entry under `Args:` in the docstring (Google style).
"""

import dataclasses
import functools
import inspect
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
    sources = [c for c in target.__mro__ if "__init__" in vars(c)] if inspect.isclass(target) else [target]
    for source in sources:
        texts = _argument_texts(source)
        for name, argument in inspect.signature(source.__init__ if inspect.isclass(source) else source).parameters.items():
            if argument.default is inspect.Parameter.empty or argument.annotation is inspect.Parameter.empty:
                continue
            kind, choices = argument.annotation, ()
            if typing.get_origin(kind) is typing.Literal:
                kind, choices = str, typing.get_args(kind)
            result.setdefault(name, Parameter(name, kind, argument.default, texts.get(name, ""), choices))
    return result


def _argument_texts(source: Callable) -> dict[str, str]:
    """Returns {argument: its text in the docstring}, each on one line."""
    arguments = docstring_parser.parse(source.__doc__ or "", docstring_parser.DocstringStyle.GOOGLE).params
    return {argument.arg_name: " ".join((argument.description or "").split()) for argument in arguments}
