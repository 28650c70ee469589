"""File locks of POSIX systems. Where there are none (Windows), modules that use them can be imported, and locking raises `Unavailable`."""

import contextlib
import errno
import os


class WorkdirLocked(RuntimeError):
    """Another process works in this folder."""


class Unavailable(OSError):
    """This system has no POSIX file locks."""


class _NoLocks:
    """Stands for the module `fcntl` where it is missing."""
    LOCK_EX, LOCK_NB, LOCK_UN = 2, 4, 8

    def lockf(self, file, *_):
        raise Unavailable(errno.ENOTSUP, "This system has no POSIX file locks", getattr(file, "name", None))
    flock = lockf


try:
    import fcntl
except ImportError:
    fcntl = _NoLocks()


@contextlib.contextmanager
def held(path, wait=True):
    """Holds a lock file; the system frees it when the process ends, however it ends.

    Raises:
        WorkdirLocked: another process holds it, and `wait` is False.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise WorkdirLocked(f"Another process holds {path}") from error
            # a file system without locks: two processes may then finish the same group, with the same content
        yield
