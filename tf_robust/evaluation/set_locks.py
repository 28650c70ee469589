"""What each of several processes that measure into one file has taken."""

import contextlib
import os

from tf_robust.data.source import digest
from tf_robust.utils.locks import Unavailable, fcntl

_WRITING = "writing"  # what a process takes while it writes


class SetLocks:
    """Names taken by processes, a byte of a lock file each: the system frees them when a process ends, however it ends.

    Args:
        path: of the lock file; its folder is made if it is missing.
    """

    def __init__(self, path):
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        self._file = open(path, "a", encoding="utf-8")

    @contextlib.contextmanager
    def taken(self, name):
        """While open, no other process takes the name; gives whether it could be taken."""
        place = _place(name)
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except (BlockingIOError, PermissionError):  # which of the two depends on the system
            yield False
            return
        except Unavailable:  # then one process alone may measure into the file
            yield True
            return
        try:
            yield True
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, place)

    @contextlib.contextmanager
    def writing(self):
        """Waits until no other process writes, and keeps others waiting while open."""
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX, 1, _place(_WRITING))
        except Unavailable:
            yield
            return
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _place(_WRITING))


def _place(name):
    return int(digest(name), 16) % 2**62
