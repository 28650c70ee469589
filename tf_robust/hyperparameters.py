"""What a method, an augmentation or a dataclass can be told: its keyword arguments, their types, defaults and help.

The command line's flags are derived from these, so that a hyperparameter is written down once: as a keyword argument
with an annotation, a default and a line under `Args:` in the docstring.
"""

import dataclasses
import functools
import inspect
import math
import re
import typing

from absl import flags


@dataclasses.dataclass(frozen=True)
class Parameter:
    """kind: bool, int, float, str, or a tuple of one of them as `tuple[float, ...]`; choices: of a Literal, or ()."""
    name: str
    kind: object
    default: object
    help: str
    choices: tuple = ()


@functools.cache
def parameters(target):
    """{name: Parameter}, not to be changed, of a function's annotated keyword arguments, or of a class's, over its bases."""
    found = {}
    sources = [c for c in target.__mro__ if "__init__" in vars(c)] if inspect.isclass(target) else [target]
    for source in sources:
        function = source.__init__ if inspect.isclass(source) else source
        texts = _documented(source)
        for name, argument in inspect.signature(function).parameters.items():
            if argument.default is inspect.Parameter.empty or argument.annotation is inspect.Parameter.empty:
                continue
            kind, choices = argument.annotation, ()
            if typing.get_origin(kind) is typing.Literal:
                kind, choices = str, typing.get_args(kind)
            found.setdefault(name, Parameter(name, kind, argument.default, texts.get(name, ""), choices))
    return found


class FiniteParser(flags.FloatParser):
    """Numbers but infinities and NaN."""

    def convert(self, argument):
        value = super().convert(argument)
        if not math.isfinite(value):
            raise ValueError(f"Expected a finite number. Received: {argument}")
        return value


class WholeParser(flags.IntegerParser):
    """Whole numbers of 32 bits."""

    def convert(self, argument):
        value = super().convert(argument)
        if abs(value) >= 2 ** 31:
            raise ValueError(f"Expected a whole number below 2^31 = {2 ** 31}. Received: {argument}")
        return value


class TupleParser(flags.ArgumentParser):
    """Comma-separated values of one type; empty for none."""

    def __init__(self, kind):
        self.kind, self.one = kind, {int: WholeParser().convert, float: FiniteParser().convert}.get(kind, kind)

    def parse(self, argument):
        words = argument.split(",") if isinstance(argument, str) else argument
        try:
            return tuple(self.one(word) for word in words if word != "")
        except ValueError as error:
            raise ValueError(f"Expected {self.kind.__name__} values with commas between. Received: {argument}") from error


def define_flag(values, name, parameter):
    """Defines a flag for a `Parameter` on a FlagValues."""
    simple = {bool: flags.DEFINE_bool, str: flags.DEFINE_string}
    numbers = {int: WholeParser, float: FiniteParser}
    if parameter.choices:
        flags.DEFINE_enum(name, parameter.default, parameter.choices, parameter.help, flag_values=values)
    elif parameter.kind in simple:
        simple[parameter.kind](name, parameter.default, parameter.help, flag_values=values)
    elif parameter.kind in numbers:
        flags.DEFINE(numbers[parameter.kind](), name, parameter.default, parameter.help, values, flags.ArgumentSerializer())
    else:
        parser = TupleParser(typing.get_args(parameter.kind)[0])
        flags.DEFINE(parser, name, parameter.default, parameter.help, values, flags.CsvListSerializer(","))


def _documented(source):
    """{argument: its text} from the `Args:` (or `Attributes:`) part of a docstring."""
    lines = inspect.cleandoc(source.__doc__ or "").split("\n")
    start = next((i for i, line in enumerate(lines) if line in ("Args:", "Attributes:")), len(lines))
    texts, names = {}, []
    for line in lines[start + 1:]:
        if line and not line.startswith(" "):
            break
        if not re.match(r"    \S", line) and names:
            texts[names[-1]] += " " + line.strip()
            continue
        # "a, b: text. c: text" documents several arguments on one line
        for group, text in re.findall(r"((?:\w+, )*\w+): (.*?)(?=(?:(?<=\. )(?:\w+, )*\w+: )|$)", line.strip()):
            names = group.split(", ")
            texts.update({name: text.strip() for name in names})
    return {name: text.strip() for name, text in texts.items()}
