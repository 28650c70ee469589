"""File locks of POSIX systems. Where there are none (Windows), modules that use them can be imported, and locking raises `Unavailable`."""

import errno


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
