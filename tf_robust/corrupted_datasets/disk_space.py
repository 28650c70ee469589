"""Checks of the free disk space, and messages for a full disk."""

import contextlib
import errno
import shutil
from collections.abc import Iterator, Sequence

import tensorflow as tf

from tf_robust.corrupted_datasets.layout import Layout
from tf_robust.corrupted_datasets.plan import Unit
from tf_robust.utils.files import disk_is_full


def check_disk_space(layout: Layout, units: Sequence[Unit]) -> None:
    """Raises OSError unless the disk has room for `units`, as far as their size is known in advance."""
    needed, free = layout.room(units), shutil.disk_usage(layout.folder).free
    if needed > free:
        raise OSError(
            errno.ENOSPC,
            f"Expected {_bytes(needed)} of free disk space for the remaining chunks. Received: "
            f"{_bytes(free)}. Try: free disk space, or write fewer corruptions. Completed chunks stay valid; the same "
            "command resumes",
            layout.folder,
        )


@contextlib.contextmanager
def explain_full_disk(layout: Layout, units: Sequence[Unit]) -> Iterator[None]:
    """Turns the error of a full disk, while writing `units`, into one that states the space that is needed."""
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        if not disk_is_full(error):
            raise
        remaining = layout.missing(units)
        needed = layout.room(remaining) or layout.plan.values(remaining)
        done = f"{len(units) - len(remaining)} of {len(units)}"
        raise OSError(
            errno.ENOSPC,
            f"The disk is full. {done} chunks are written and stay valid; the rest needs at "
            f"most about {_bytes(needed)}. Try: free disk space; the same command resumes",
            layout.folder,
        ) from error


def _bytes(count):
    units = ("bytes", "kB", "MB", "GB", "TB")
    power = min(len(units) - 1, (len(str(int(count))) - 1) // 3)
    return f"{count / 1000**power:.3g} {units[power]}"
