"""Locks between processes: one lock file each, which the operating system frees when its holder ends, even if it is killed."""

import contextlib
import errno
import functools
import logging
import os
from collections.abc import Iterator

import filelock

_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)
_REMOVED = (errno.ENOENT, errno.EEXIST, errno.ESTALE)  # another process has just removed the lock file or its folder
_ATTEMPTS = 100  # else a folder that cannot be created is the reason


class WorkdirLocked(RuntimeError):
    """Another process works in this folder."""


@contextlib.contextmanager
def file_lock(path: str, *, wait: bool = True, remove: bool = False) -> Iterator[None]:
    """Holds a lock file, which is created if missing; without `wait` a held one raises WorkdirLocked.

    With `remove` the file is removed at the end: other processes notice, and lock a new one. On a file system without locks, logs a warning
    and continues.
    """
    # an existence lock, filelock's fallback, would outlive a process that is killed
    lock = filelock.FileLock(path, blocking=wait, fallback_to_soft=False)
    for attempt in range(_ATTEMPTS):
        try:
            lock.acquire()  # creates the folder too
            break
        except filelock.Timeout as error:
            raise WorkdirLocked(f"Another process holds {path}") from error
        except OSError as error:
            if error.errno in _NO_LOCKS:
                _warn(os.path.dirname(path), error.strerror)
                break
            if error.errno not in _REMOVED or attempt == _ATTEMPTS - 1:
                raise
    try:
        yield
    finally:
        if remove:  # while it is locked: a process that locks the removed file notices that it has no name, and tries again
            with contextlib.suppress(OSError):
                os.remove(path)
        lock.release()


@functools.cache  # once for each folder
def _warn(folder: str, reason: str) -> None:
    logging.warning("%s has no file locks (%s): only one process may work in it.", folder, reason)


@contextlib.contextmanager
def held(folder: str) -> Iterator[None]:
    """Holds a folder, which is created if it is missing; raises WorkdirLocked if another process does."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(file_lock(os.path.join(folder, "lock"), wait=False))
        except WorkdirLocked as error:
            raise WorkdirLocked(f"Another process is working in {folder}") from error
        except OSError as error:
            raise PermissionError(f"Expected a workdir that can be written. Received: {folder} ({error.strerror})") from error
        yield
