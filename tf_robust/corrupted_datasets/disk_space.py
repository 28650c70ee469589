"""Is there room on the disk, and what to say when there is none."""

import contextlib
import errno
import shutil

import tensorflow as tf

from tf_robust.utils.files import disk_is_full


def check_disk_space(layout, units):
    """Raises OSError unless the disk has room for `units`, as far as their size is known beforehand."""
    needed, free = layout.room(units), shutil.disk_usage(layout.folder).free
    if needed > free:
        raise OSError(errno.ENOSPC, f"Expected {_bytes(needed)} free for what is still to be written. Received: "
                      f"{_bytes(free)}. Make room, or write fewer corruptions; what is there stays valid, and the same "
                      "command goes on", layout.folder)


@contextlib.contextmanager
def explain_full_disk(layout, units):
    """Turns the error of a full disk, in writing `units`, into one that says what is needed."""
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        if not disk_is_full(error):
            raise
        left = layout.missing(units)
        needed = layout.room(left) or layout.plan.values(left)
        done = f"{len(units) - len(left)} of {len(units)}"
        raise OSError(errno.ENOSPC, f"The disk is full. {done} chunks are written and stay valid; the rest needs at "
                      f"most about {_bytes(needed)}. Make room; the same command goes on", layout.folder) from error


def _bytes(count):
    units = ("bytes", "kB", "MB", "GB", "TB")
    power = min(len(units) - 1, (len(str(int(count))) - 1) // 3)
    return f"{count / 1000**power:.3g} {units[power]}"
