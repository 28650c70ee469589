"""Atomic writes: temporary file, fsync, rename. Reading of JSON with checks."""

import contextlib
import errno
import glob
import hashlib
import json
import os
import re
import secrets
import shutil
import typing
import zipfile
from collections.abc import Collection, Iterator

import jsonschema
import tensorflow as tf

from tf_robust.utils.errors import FULL
from tf_robust.utils.quiet import LOG_LINE

try:
    import fcntl
except ImportError:  # Windows: temporary files of killed processes are not removed
    fcntl = None  # type: ignore[assignment]

_TAIL_BYTES = 4096  # in which a last line is looked for
# errors that a damaged .npz file raises
DAMAGED = (OSError, ValueError, EOFError, KeyError, IndexError, RuntimeError, MemoryError, zipfile.BadZipFile)
Json = dict[str, typing.Any] | list | str | float | bool | None


def disk_is_full(error: BaseException) -> bool:
    """Returns whether an error of the system or of TensorFlow indicates that a disk or a quota is full."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return isinstance(error, tf.errors.ResourceExhaustedError) and "space" in error.message  # otherwise memory is exhausted


def path_text(path: str) -> str:
    """Returns a path, or a name in it, as text that can be written: bytes that are not UTF-8 become \\xe9 and the like."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike, mode: str = "w") -> Iterator[typing.IO]:
    """Opens a temporary file that is renamed to `path` when the block ends without an error.

    Args:
        path: of the file; its folder is created if missing.
        mode: as in `open`, "w" or "wb".

    Raises:
        OSError: the file cannot be written; the message for a full disk suggests a remedy.
    """
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    temporary = f"{path}.writing-{_unique()}"
    _remove_leftovers(path, keep=temporary)
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


def _unique() -> str:
    """Returns the end of a temporary name; hosts and containers that share a folder may have processes with the same number."""
    return f"{os.getpid()}-{secrets.token_hex(4)}"


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


def _remove_leftovers(path: str | os.PathLike, keep: str) -> None:
    """Removes temporary files of killed processes, whose locks the system has freed."""
    if fcntl:
        for leftover in set(glob.glob(f"{glob.escape(os.fspath(path))}.writing-*")) - {keep}:
            _remove_unlocked(leftover)


def _remove_unlocked(path):
    """Removes a temporary file, unless another process is writing it."""
    with contextlib.suppress(OSError), open(path, "r+b") as file:  # an error: another process is writing it
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):  # otherwise renamed meanwhile, and a new file has its name
            os.remove(path)


@contextlib.contextmanager
def atomic_folder(path: str) -> Iterator[str]:
    """Yields the name of a temporary folder that replaces `path` when the block ends without an error.

    Args:
        path: of the folder.

    Raises:
        OSError: the disk is full; the message suggests a remedy.
    """
    temporary, old = f"{path}.writing-{(unique := _unique())}", f"{path}.old-{unique}"
    try:
        yield temporary
        for folder, _, files in os.walk(temporary):
            for name in files:
                with open(os.path.join(folder, name), "rb") as file:
                    os.fsync(file.fileno())
        if os.path.isdir(path):
            os.rename(path, old)
        os.rename(temporary, path)
    except (OSError, tf.errors.OpError) as error:
        if disk_is_full(error):
            raise OSError(errno.ENOSPC, FULL, path) from error
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if os.path.isdir(old) and not os.path.lexists(path):  # interrupted between the renames
            os.rename(old, path)
        shutil.rmtree(old, ignore_errors=True)


def clear_unfinished(*folders: str) -> None:
    """Removes temporary files and folders of killed processes. Call it only while no other process writes folders there.

    Args:
        *folders: to search, without their subfolders; missing ones are skipped.
    """
    for folder in filter(os.path.isdir, folders):
        for name in os.listdir(folder):
            if ending := re.search(r"\.(writing|old)-\d+(-[0-9a-f]{8})?$", name):
                path, complete = os.path.join(folder, name), os.path.join(folder, name[: ending.start()])
                if ending[1] == "old" and not os.path.lexists(complete):  # killed between the renames of `atomic_folder`
                    os.rename(path, complete)
                elif os.path.isdir(path):
                    shutil.rmtree(path)
                elif fcntl:
                    _remove_unlocked(path)
                else:
                    os.remove(path)


def write_json(path: str | os.PathLike, value: Json) -> None:
    """Writes a value as JSON, atomically."""
    with atomic_file(path) as file:
        json.dump(value, file, indent=1)
        file.write("\n")


def read_json(
    path: str | os.PathLike, schema: dict | bool | None = None, advice: str = "Try: delete it, or restore an intact copy"
) -> typing.Any:
    """Returns the content of a JSON file.

    Args:
        path: of the file.
        schema: JSON schema that the content must satisfy; None: the content is an object.
        advice: end of the error messages.

    Raises:
        ValueError: the file is damaged, or its content does not satisfy the schema.
    """
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"Expected JSON in {path}. Received: a damaged file ({error}). {advice}") from error
    try:
        jsonschema.validate(content, {"type": "object"} if schema is None else schema)
    except jsonschema.ValidationError as error:
        raise ValueError(f"Expected valid content in {path}. Received: {error.message[:200]} ({error.json_path}). {advice}") from error
    return content


def digest_of_folder(path: str, exclude: Collection[str] = ()) -> str:
    """Returns 16 hexadecimal digits of the SHA-256 over a file, or over a folder's files and their names.

    Args:
        path: of the file or folder.
        exclude: names of files that are left out.
    """
    digest = hashlib.sha256()
    files = (
        [path]
        if os.path.isfile(path)
        else sorted(os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names if name not in exclude)
    )
    for name in files:
        digest.update(os.path.relpath(name, path).encode())
        with open(name, "rb") as file:
            for block in iter(lambda: file.read(2**20), b""):
                digest.update(block)
    return digest.hexdigest()[:16]


def last_line(path: str, length: int = 160) -> str:
    """Returns the last line of a text file that is neither blank nor of TensorFlow's log, or its beginning; empty if there is none.

    Args:
        path: of the file, which may be missing.
        length: number of characters.
    """
    if not os.path.isfile(path):
        return ""
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - _TAIL_BYTES))
        lines = [line for line in file.read().splitlines() if line.strip() and not LOG_LINE.match(line)]
    return lines[-1].decode("utf-8", errors="replace").strip()[:length] if lines else ""
