"""Files of the units of a corrupted set, and when a group of them is complete.

The files themselves are the only record of progress. A unit is one file below `.writing/`, written atomically; a group (the
units of one final file or folder) is finished when all of them exist, by whichever process notices first. So a process may be
killed at any moment, and many may share the work.
"""

import contextlib
import os
import shutil
from collections.abc import Iterable, Sequence

import numpy as np

from tf_robust.corrupted_datasets.plan import Plan, Unit
from tf_robust.utils.locks import file_lock

UNFINISHED = ".writing"


class Layout:
    """The files of a `Plan` in a folder.

    Subclasses define the group of a unit, the file of a unit, and how a group is finished.

    Args:
        folder: of the set.
        plan: the units.
    """

    def __init__(self, folder: str, plan: Plan) -> None:
        self.folder, self.plan = folder, plan

    def group(self, name: str, severity: int) -> str:
        """Returns the name of the final file or folder of these units."""
        raise NotImplementedError

    def path(self, unit: Unit) -> str:
        """Returns the path of a unit, below `.writing/`, until its group is finished."""
        raise NotImplementedError

    def is_finished(self, group: str) -> bool:
        """Returns whether the final file or folder of a group exists."""
        raise NotImplementedError

    def write(self, unit: Unit, levels: np.ndarray, labels: np.ndarray) -> None:
        """Writes one unit atomically: uint8 [n, H, W, C] and int64 [n]."""
        raise NotImplementedError

    def _finish(self, group, paths):
        """Creates the final file or folder from the files of all its units."""
        raise NotImplementedError

    def room(self, units: Sequence[Unit]) -> int:
        """Returns an upper bound of the bytes that these units and finishing their groups take, or 0 if it is unknown."""
        raise NotImplementedError

    def groups(self) -> list[str]:
        """Returns all groups."""
        return list(dict.fromkeys(self.group(unit.name, unit.severity) for unit in self.plan.units()))

    def units_of(self, group: str) -> list[Unit]:
        """Returns the units of a group, sorted."""
        return sorted(unit for unit in self.plan.units() if self.group(unit.name, unit.severity) == group)

    def unfinished(self, *names: str) -> str:
        """Returns a path below `.writing/`."""
        return os.path.join(self.folder, UNFINISHED, *names)

    def missing(self, units: Iterable[Unit]) -> list[Unit]:
        """Returns the units that are not written yet."""
        finished = {group for group in self.groups() if self.is_finished(group)}
        return [unit for unit in units if self.group(unit.name, unit.severity) not in finished and not os.path.exists(self.path(unit))]

    def finish(self, group: str) -> bool:
        """Finishes a group if all its units are written. Returns whether it is finished."""
        with file_lock(self.unfinished("lock")):
            if not self.is_finished(group):
                paths = [self.path(unit) for unit in self.units_of(group)]
                if not all(map(os.path.exists, paths)):
                    return False
                self._finish(group, paths)
            shutil.rmtree(self.unfinished(group), ignore_errors=True)
        return True

    def tidy(self) -> None:
        """Removes `.writing/` if it holds no unfinished units."""
        with file_lock(self.unfinished("lock")), contextlib.suppress(FileNotFoundError):  # another process may be faster
            if all(name.startswith("lock") for name in os.listdir(self.unfinished())):
                shutil.rmtree(self.unfinished(), ignore_errors=True)
