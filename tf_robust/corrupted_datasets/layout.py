"""Where the units of a corrupted set go, and when a group of them is complete.

Nothing is noted about progress but the files themselves.
A unit is one whole file below `.writing/`; a group (the units of one final file or folder) is finished when all of them
are there, by whichever process sees it first. So a process may be killed at any moment, and many may share the work.
"""

import contextlib
import os
import shutil

from tf_robust.utils.locks import held

UNFINISHED = ".writing"


class Layout:
    """How a `Plan` becomes files in a folder.

    Subclasses say which group a unit belongs to, where it goes, and how a group is finished.
    """

    def __init__(self, folder, plan):
        self.folder, self.plan = folder, plan

    def group(self, name, severity):
        """What the final file or folder of these units is called."""
        raise NotImplementedError

    def path(self, unit):
        """Where a unit is, below `.writing/`, until its group is finished."""
        raise NotImplementedError

    def is_finished(self, group):
        raise NotImplementedError

    def write(self, unit, levels, labels):
        """Writes one unit, whole: uint8 [n, H, W, C] and int64 [n]."""
        raise NotImplementedError

    def _finish(self, group, paths):
        """Makes the final file or folder from the files of all its units."""
        raise NotImplementedError

    def room(self, units):
        """Bytes that these units and the finishing of their groups take at most, or 0 where that is not known."""
        raise NotImplementedError

    def groups(self):
        return list(dict.fromkeys(self.group(unit.name, unit.severity) for unit in self.plan.units()))

    def units_of(self, group):
        return sorted(unit for unit in self.plan.units() if self.group(unit.name, unit.severity) == group)

    def unfinished(self, *words):
        return os.path.join(self.folder, UNFINISHED, *words)

    def missing(self, units):
        """Those of the units that are not written yet."""
        done = {group for group in self.groups() if self.is_finished(group)}
        return [unit for unit in units
                if self.group(unit.name, unit.severity) not in done and not os.path.exists(self.path(unit))]

    def finish(self, group):
        """Finishes a group if all its units are there. Returns whether it is finished."""
        with held(self.unfinished("lock")):
            if not self.is_finished(group):
                paths = [self.path(unit) for unit in self.units_of(group)]
                if not all(map(os.path.exists, paths)):
                    return False
                self._finish(group, paths)
            shutil.rmtree(self.unfinished(group), ignore_errors=True)
        return True

    def tidy(self):
        """Removes `.writing/` if nothing waits in it any more."""
        with held(self.unfinished("lock")), contextlib.suppress(FileNotFoundError):  # another process may be faster
            if all(name.startswith("lock") for name in os.listdir(self.unfinished())):
                shutil.rmtree(self.unfinished(), ignore_errors=True)
