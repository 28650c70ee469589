"""What a method, an augmentation or a dataclass can be told: its keyword arguments, their types, defaults and help.

The command line's flags are derived from these, so that a hyperparameter is written down once: as a keyword argument
with an annotation, a default and a line under `Args:` in the docstring.
"""

import dataclasses
import functools
import inspect
import re
import typing


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
