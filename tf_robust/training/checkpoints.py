"""Checkpoints: all variables of method, optimizer and metrics, the step, and the training time, in one file."""

import contextlib
import glob
import logging
import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from tf_robust.utils.files import DAMAGED, atomic_file, storable

KEPT = 2

Method = Any  # a `methods.base.Method`, which this package does not import


def _variables(method, state):
    variables = [*method.variables, *method.optimizer.variables]
    return [*variables, *(v for metric in method.metrics for v in metric.variables), *state]


def save(method: Method, folder: str, step: int, seconds: float = 0.0, write: bool = True, state: Sequence[Any] = ()) -> None:
    """Writes `folder`/step_<step>.npz and keeps the last two checkpoints.

    Args:
        method: a compiled method.
        folder: of the checkpoints.
        step: the global step.
        seconds: training time up to this step, of all processes.
        write: False: only read the variables, which all workers must do together.
        state: further variables, of the training loop.
    """
    arrays = {f"{i:05d}": storable(v.numpy()) for i, v in enumerate(_variables(method, state))}
    if not write:
        return
    with atomic_file(_path(folder, step), "wb") as file:
        np.savez(file, step=np.int64(step), seconds=np.float64(seconds), **arrays)
    _remove_old(folder)


def _remove_old(folder):
    for old in existing(folder)[:-KEPT]:
        with contextlib.suppress(FileNotFoundError):  # removed by another worker
            os.remove(old)


def restore(method: Method, folder: str, state: Sequence[Any] = ()) -> tuple[int, float]:
    """Restores the newest undamaged checkpoint; warns if it is not the newest.

    Args:
        method: a compiled method.
        folder: of the checkpoints.
        state: further variables, as in `save`.

    Returns:
        (the step, the training time in seconds up to it); zeros if there is no checkpoint.

    Raises:
        ValueError: a checkpoint is of another model or optimizer, or all checkpoints are damaged.
    """
    paths, damaged = existing(folder), []
    for path in reversed(paths):
        try:
            with np.load(path) as file:  # reading a member checks its CRC
                arrays = {name: file[name] for name in file.files}
            step, seconds = int(arrays.pop("step")), float(arrays.pop("seconds", 0.0))  # absent in older checkpoints
        except DAMAGED as error:
            logging.warning("Checkpoint %s is truncated or damaged (%s); using the one before it.", path, error)
            damaged.append(path)
            continue
        variables = _variables(method, state)
        shapes = [arrays[name].shape for name in sorted(arrays)]
        if shapes != [tuple(v.shape) for v in variables]:
            raise ValueError(
                f"Expected a checkpoint of this model and optimizer ({len(variables)} variables). "
                f"Received: {path} with {len(shapes)} variables of other shapes"
            )
        for variable, name in zip(variables, sorted(arrays)):
            variable.assign(arrays[name])
        for path in damaged:  # otherwise it would count as one of those kept
            with contextlib.suppress(FileNotFoundError):
                os.replace(path, f"{path}.damaged")
        _remove_old(folder)  # the process may have been killed between saving and removing
        return step, seconds
    if paths:
        raise ValueError(
            f"Expected a readable checkpoint in {folder}. Received: only damaged ones ({len(paths)}). "
            f"Try: delete them to start from the beginning"
        )
    return 0, 0.0


def _path(folder, step):
    return os.path.join(folder, f"step_{step:09d}.npz")


def existing(folder: str) -> list[str]:
    """Returns the paths of a folder's checkpoints, the oldest first."""
    return sorted(p for p in glob.glob(os.path.join(folder, "step_*.npz")) if re.search(r"step_\d+\.npz$", p))
