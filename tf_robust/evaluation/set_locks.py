"""Division of the evaluation sets among several processes that write to one records file."""

import contextlib
import os
from collections.abc import Iterator

from tf_robust.data.source import digest
from tf_robust.utils.locks import WorkdirLocked, file_lock


class SetLocks:
    """One lock file for each evaluation set; the operating system frees a lock when its holder ends, even if it is killed.

    Args:
        folder: of the lock files; created when needed.
    """

    def __init__(self, folder: str):
        self._folder = folder

    @contextlib.contextmanager
    def try_lock(self, name: str) -> Iterator[bool]:
        """Holds the lock of a set if it is free, and yields whether it was."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(file_lock(os.path.join(self._folder, f"{digest(name)}.lock"), wait=False, remove=True))
            except WorkdirLocked:
                yield False
                return
            yield True

    def writing(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which no other process writes to the records file."""
        return file_lock(os.path.join(self._folder, "writing.lock"), remove=True)

    def clear(self) -> None:
        """Removes the lock files that no process holds (one that was killed leaves its own), and the folder if none is left."""
        names = os.listdir(self._folder) if os.path.isdir(self._folder) else []
        for name in names:
            with contextlib.suppress(WorkdirLocked, OSError), file_lock(os.path.join(self._folder, name), wait=False, remove=True):
                pass
        with contextlib.suppress(OSError):
            os.rmdir(self._folder)
