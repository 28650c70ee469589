"""Files: atomic writes (temporary file, fsync, rename), JSON with checks, arrays, figures, and what a path is."""

from __future__ import annotations

import base64
import contextlib
import errno
import glob
import hashlib
import json
import os
import re
import secrets
import shutil
import textwrap
import typing
import zipfile
from collections.abc import Collection, Iterator

import numpy as np
import numpy.typing as npt

from tf_robust.utils.errors import FULL
from tf_robust.utils.quiet import LOG_LINE

if typing.TYPE_CHECKING:
    from matplotlib.figure import Figure

try:
    import fcntl
except ImportError:  # Windows: temporary files of killed processes are not removed
    fcntl = None  # type: ignore[assignment]

# errors that a damaged .npz file raises
DAMAGED = (OSError, ValueError, EOFError, KeyError, IndexError, RuntimeError, MemoryError, zipfile.BadZipFile)


def is_url(path: str) -> bool:
    """Returns whether a path is the URL of an object store."""
    return "://" in path


def is_run(folder: str) -> bool:
    """Returns whether a folder is the workdir of a run."""
    return bool(folder) and os.path.exists(os.path.join(folder, "flags.txt"))


def disk_is_full(error: BaseException) -> bool:
    """Returns whether an error of the system or of TensorFlow indicates that a disk or a quota is full."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return type(error).__name__ == "ResourceExhaustedError" and "space" in getattr(error, "message", "")  # otherwise memory is exhausted


def path_text(path: str) -> str:
    """Returns a path, or a name in it, as text that can be written: bytes that are not UTF-8 become \\xe9 and the like."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _temporary(path, kind="writing"):
    """A temporary name; hosts and containers that share a folder may have processes with the same number."""
    return f"{path}.{kind}-{os.getpid()}-{secrets.token_hex(4)}"


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike, mode: str = "w") -> Iterator[typing.IO]:
    """Opens a temporary file (mode "w" or "wb") that is renamed to `path` when the block ends without an error; creates its folder."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    temporary = _temporary(path)
    for leftover in glob.glob(f"{glob.escape(os.fspath(path))}.writing-*") if fcntl else ():
        _remove_unlocked(leftover)  # of a killed process, whose lock the system has freed
    try:
        with _open_locked(temporary, mode.replace("w", "x")) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if fcntl:  # rename while it is locked
                os.replace(temporary, path)
        if not fcntl:  # Windows does not rename open files
            os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)
        if disk_is_full(error):
            raise OSError(errno.ENOSPC, FULL, path) from error
        raise


def _open_locked(path: str, mode: str) -> typing.IO:
    """Opens and locks a file, so that no other process takes it for a leftover of a killed process."""
    while True:
        file = open(path, mode)
        if not fcntl:
            return file
        with contextlib.suppress(OSError):  # no locks on this file system: leftovers stay
            fcntl.lockf(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # another process locked and removed it first


def _remove_unlocked(path):
    """Removes a temporary file, unless another process is writing it."""
    with contextlib.suppress(OSError), open(path, "r+b") as file:  # an error: another process is writing it
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):  # otherwise renamed meanwhile, and a new file has its name
            os.remove(path)


@contextlib.contextmanager
def atomic_folder(path: str) -> Iterator[str]:
    """Yields the name of a temporary folder that replaces `path` when the block ends without an error."""
    temporary, old = _temporary(path), _temporary(path, "old")
    try:
        yield temporary
        for file in (os.path.join(folder, name) for folder, _, names in os.walk(temporary) for name in names):
            with open(file, "rb") as opened:
                os.fsync(opened.fileno())
        if os.path.isdir(path):
            os.rename(path, old)
        os.rename(temporary, path)
    except Exception as error:
        if disk_is_full(error):
            raise OSError(errno.ENOSPC, FULL, path) from error
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if os.path.isdir(old) and not os.path.lexists(path):  # interrupted between the renames
            os.rename(old, path)
        shutil.rmtree(old, ignore_errors=True)


def clear_unfinished(*folders: str) -> None:
    """Removes temporary files and folders of killed processes from folders that may be missing, but not from their subfolders.

    Call it only while no other process writes folders there.
    """
    for folder in filter(os.path.isdir, folders):
        for name in os.listdir(folder):
            if ending := re.search(r"\.(writing|old)-\d+(-[0-9a-f]{8})?$", name):
                path, complete = os.path.join(folder, name), os.path.join(folder, name[: ending.start()])
                if ending[1] == "old" and not os.path.lexists(complete):  # killed between the renames of `atomic_folder`
                    os.rename(path, complete)
                elif os.path.isdir(path):
                    shutil.rmtree(path)
                else:
                    (_remove_unlocked if fcntl else os.remove)(path)


def write_json(path: str | os.PathLike, value: dict[str, typing.Any] | list | str | float | bool | None) -> None:
    """Writes a value as JSON, atomically."""
    with atomic_file(path) as file:
        json.dump(value, file, indent=1)
        file.write("\n")


def read_json(
    path: str | os.PathLike, schema: dict | bool | None = None, advice: str = "Try: delete it, or restore an intact copy"
) -> typing.Any:
    """Returns the content of a JSON file; a ValueError, which ends with the advice, if it is damaged or does not satisfy the JSON schema.

    Without a schema the content must be an object.
    """
    import jsonschema

    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        jsonschema.validate(content, {"type": "object"} if schema is None else schema)
    except jsonschema.ValidationError as error:
        raise ValueError(f"Expected valid content in {path}. Received: {error.message[:200]} ({error.json_path}). {advice}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"Expected JSON in {path}. Received: a damaged file ({error}). {advice}") from error
    return content


def digest_of_folder(path: str, exclude: Collection[str] = ()) -> str:
    """Returns 16 hexadecimal digits of the SHA-256 over a file, or over a folder's files and their names, without the names to exclude."""
    files = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names if name not in exclude)
    digest = hashlib.sha256()
    for name in [path] if os.path.isfile(path) else sorted(files):
        digest.update(os.path.relpath(name, path).encode())
        with open(name, "rb") as file:
            while block := file.read(2**20):
                digest.update(block)
    return digest.hexdigest()[:16]


def last_line(path: str) -> str:
    """Returns at most 160 letters of the last line of a text file that is neither blank nor TensorFlow's log; empty if there is none."""
    if not os.path.isfile(path):
        return ""
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - 4096))
        lines = [line for line in file.read().splitlines() if line.strip() and not LOG_LINE.match(line)]
    return lines[-1].decode("utf-8", errors="replace").strip()[:160] if lines else ""


def storable(array: npt.ArrayLike) -> np.ndarray:
    """Returns an array for `np.savez`: bfloat16 and other types that its files do not know as float32, which holds their values exactly."""
    array = np.asarray(array)
    return array.astype(np.float32) if array.dtype.kind == "V" else array


def encoded(array: np.ndarray) -> str:
    """Returns the bytes of an array as base64 text, for JSON."""
    return base64.b64encode(array.tobytes()).decode()


def decoded(text: str, dtype: npt.DTypeLike) -> np.ndarray:
    """Returns the array of a text of `encoded`, read-only and of shape [N]: the shape is not in the text."""
    return np.frombuffer(base64.b64decode(text), dtype)


def save_figure(figure: Figure, path: str) -> str:
    """Writes a Matplotlib figure as a PNG file, atomically, and returns the path."""
    with atomic_file(path, "wb") as file:
        figure.savefig(file, format="png", dpi=120, bbox_inches="tight", facecolor="white")
    return path


def wrapped(text: str, letters: int) -> str:
    """Returns a text whose lines are broken to at most so many letters."""
    return "\n".join(part for line in text.split("\n") for part in textwrap.wrap(line, letters) or [""])
