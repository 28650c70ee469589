"""Checkpoints that hold everything: each variable of classifier, optimizer and metrics, the step, and the time, in one file."""

import contextlib
import glob
import logging
import os
import re

import numpy as np

from tf_robust.utils.files import DAMAGED, atomic_file

KEPT = 2


def _variables(method):
    variables = [*method.variables, *method.optimizer.variables]
    return variables + [v for metric in method.metrics for v in metric.variables]


def save(method, folder, step, seconds=0.0, write=True):
    """Writes `folder`/step_<step>.npz and keeps the last two.

    Args:
        seconds: spent on training up to this step, by all processes. write: False only takes part in reading the variables.
    """
    arrays = {f"{i:05d}": v.numpy() for i, v in enumerate(_variables(method))}
    if not write:
        return
    with atomic_file(_path(folder, step), "wb") as file:
        np.savez(file, step=np.int64(step), seconds=np.float64(seconds), **arrays)
    _remove_old(folder)


def _remove_old(folder):
    for old in existing(folder)[:-KEPT]:
        with contextlib.suppress(FileNotFoundError):  # another worker did
            os.remove(old)


def restore(method, folder):
    """Restores the newest checkpoint that can be read whole; says so when it has to use the one before.

    Returns:
        (int, the step; float, the seconds spent on training up to it); zeros when there is no checkpoint.

    Raises:
        ValueError: a checkpoint is of another model or optimizer, or there are checkpoints and none can be read.
    """
    paths, damaged = existing(folder), []
    for path in reversed(paths):
        try:
            with np.load(path) as file:  # reading a member checks its CRC
                arrays = {name: file[name] for name in file.files}
            step, seconds = int(arrays.pop("step")), float(arrays.pop("seconds", 0.0))  # older checkpoints have no seconds
        except DAMAGED as error:
            logging.warning("Checkpoint %s is truncated or damaged (%s); using the one before it.", path, error)
            damaged.append(path)
            continue
        variables = _variables(method)
        shapes = [arrays[name].shape for name in sorted(arrays)]
        if shapes != [tuple(v.shape) for v in variables]:
            raise ValueError(f"Expected a checkpoint of this model and optimizer ({len(variables)} variables). "
                             f"{path} holds {len(shapes)} variables of other shapes")
        for variable, name in zip(variables, sorted(arrays)):
            variable.assign(arrays[name])
        for path in damaged:  # else it would count as one of those kept
            with contextlib.suppress(FileNotFoundError):
                os.replace(path, f"{path}.damaged")
        _remove_old(folder)  # a kill may have come between saving and this
        return step, seconds
    if paths:
        raise ValueError(f"Expected a readable checkpoint in {folder}. All {len(paths)} are damaged; "
                         f"delete them to start anew")
    return 0, 0.0


def _path(folder, step):
    return os.path.join(folder, f"step_{step:09d}.npz")


def existing(folder):
    """The paths of a folder's checkpoints, the oldest first."""
    return sorted(p for p in glob.glob(os.path.join(folder, "step_*.npz")) if re.search(r"step_\d+\.npz$", p))
