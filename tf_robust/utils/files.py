"""What is written is written whole: to a temporary name, flushed to disk, renamed."""

import contextlib
import errno
import glob
import hashlib
import json
import os
import re
import shutil
import zipfile

import jsonschema
import tensorflow as tf

from tf_robust.utils.errors import FULL

try:
    import fcntl
except ImportError:  # Windows: what killed processes leave stays
    fcntl = None  # type: ignore[assignment]

DAMAGED = (OSError, ValueError, EOFError, KeyError, IndexError, RuntimeError, MemoryError, zipfile.BadZipFile)  # said of damaged .npz


def disk_is_full(error):
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return isinstance(error, tf.errors.ResourceExhaustedError) and "space" in error.message  # else: of memory


@contextlib.contextmanager
def atomic_file(path, mode="w"):
    """Opens a temporary file that takes the name `path` when the block ends without an error."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    temporary = f"{path}.writing-{os.getpid()}"
    _clear_left(path, but=temporary)
    try:
        with _held(temporary, mode) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if fcntl:  # while it is locked
                os.replace(temporary, path)
        if not fcntl:  # Windows renames no open file
            os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)
        if disk_is_full(error):
            raise OSError(errno.ENOSPC, FULL, path) from error
        raise


def _held(path, mode):
    """A file, opened and locked, so that no other process takes it for one that a killed process left."""
    while True:
        file = open(path, mode)
        if not fcntl:
            return file
        with contextlib.suppress(OSError):  # no locks on this file system: what is left stays
            fcntl.lockf(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return file
        file.close()  # another process was quicker to lock and remove it


def _clear_left(path, but):
    """Removes what killed processes began to write in a file's place: the system has freed their locks."""
    if not fcntl:
        return
    for left in set(glob.glob(f"{glob.escape(path)}.writing-*")) - {but}:
        with contextlib.suppress(OSError), open(left, "r+b") as file:  # else: another process is writing it
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file.fileno()), os.stat(left)):  # else: renamed since it was opened, and the name taken anew
                os.remove(left)


@contextlib.contextmanager
def atomic_folder(path):
    """Gives the name of a temporary folder that takes the place of `path` when the block ends without an error."""
    temporary, old = f"{path}.writing-{os.getpid()}", f"{path}.old-{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
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
        shutil.rmtree(old, ignore_errors=True)


def clear_unfinished(*folders):
    """Removes what killed processes were writing in these folders, not below; only while no other process writes there."""
    for folder in filter(os.path.isdir, folders):
        for name in os.listdir(folder):
            if re.search(r"\.(writing|old)-\d+$", name):
                path = os.path.join(folder, name)
                shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)


def write_json(path, value):
    with atomic_file(path) as file:
        json.dump(value, file, indent=1)
        file.write("\n")


def read_json(path, schema=None, advice="Delete it, or put back a whole one"):
    """What a JSON file holds.

    Args:
        schema: a JSON schema that it must be valid by; None: it is an object. advice: what to do with one that is not.

    Raises:
        ValueError: it is damaged, or not as the schema says.
    """
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"Expected JSON in {path}. Received a damaged file ({error}). {advice}") from error
    try:
        jsonschema.validate(found, {"type": "object"} if schema is None else schema)
    except jsonschema.ValidationError as error:
        raise ValueError(f"Expected {path} to be whole. {error.message[:200]} ({error.json_path}). {advice}") from error
    return found


def digest_of_folder(path, but=()):
    """The first 16 hexadecimal digits of the SHA-256 over a file, or over a folder's files and their names.

    Args:
        but: names of files that do not count.
    """
    found = hashlib.sha256()
    files = [path] if os.path.isfile(path) else sorted(
        os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names if name not in but)
    for file in files:
        found.update(os.path.relpath(file, path).encode())
        with open(file, "rb") as content:
            for block in iter(lambda: content.read(2**20), b""):
                found.update(block)
    return found.hexdigest()[:16]
