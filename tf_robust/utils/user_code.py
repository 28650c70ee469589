"""Digests of code outside this package: results of an earlier version of it are outdated."""

import functools
import hashlib
import inspect
import itertools
import os
import types
from collections.abc import Iterator


def digest(*objects: object) -> str | None:
    """Returns 16 hexadecimal digits of the SHA-256 of the code of functions and classes that are not of this package; None: all are.

    It covers the files in which they are defined, or their byte code where there is no file, as in a notebook.
    """
    parts = [part for one in objects for part in _parts(one)]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16] if parts else None


def _parts(one) -> Iterator[bytes]:
    function = one
    while isinstance(function, functools.partial):
        function = function.func
    if function is None or _in_package(function):
        return
    if function is not one:
        yield repr((one.args, sorted(one.keywords.items()))).encode()
    if isinstance(function, type):
        for parent in itertools.takewhile(lambda parent: not _in_package(parent), function.__mro__[1:-1]):
            yield from _parts(parent)
    try:
        file = inspect.getsourcefile(function) or ""
    except TypeError:  # a class of a notebook, or built in
        file = ""
    if isinstance(function, types.FunctionType):
        values = [cell.cell_contents for cell in function.__closure__ or ()]
        simple = [value for value in values if isinstance(value, int | float | str | tuple)]
        yield repr([function.__defaults__, function.__kwdefaults__, *simple]).encode()
    if os.path.isfile(file):
        with open(file, "rb") as opened:
            yield opened.read()
    elif isinstance(function, type):
        for name, value in sorted(vars(function).items()):
            if isinstance(value, types.FunctionType):
                yield from _parts(value)
            elif not name.startswith("__"):
                yield f"{name}={value!r}".encode()
    elif isinstance(function, types.FunctionType):
        yield from _byte_code(function.__code__)


def _in_package(one):
    return (getattr(one, "__module__", None) or "").partition(".")[0] == __package__.partition(".")[0]


def _byte_code(code: types.CodeType) -> Iterator[bytes]:
    inner = [value for value in code.co_consts if isinstance(value, types.CodeType)]
    yield code.co_code
    yield repr((code.co_names, [value for value in code.co_consts if value not in inner])).encode()
    for value in inner:
        yield from _byte_code(value)
