"""A folder of flagfiles is a table: its rows, what its `suite.json` says of them, and all its runs completed."""

import glob
import os
import time

import tensorflow as tf

from tf_robust import training, workdir
from tf_robust.files import read_json


def table_of(folder, home):
    """A folder of flagfiles: where it is, its rows in the order of its `suite.json`, and what else that says.

    Args:
        folder: a path, or one below `home`. home: the folder that has `flags/`.

    Returns:
        (path, [row names], {"title", "name", "rows", and what the file has of "baseline", "paper", "notes"})

    Raises:
        FileNotFoundError: there are no flagfiles.
    """
    here = folder.rstrip("/") if os.path.isdir(folder) else os.path.join(home, folder.rstrip("/"))
    found = sorted(os.path.basename(path).removesuffix(".flags") for path in glob.glob(os.path.join(here, "*.flags")))
    if not folder or not found:
        raise FileNotFoundError(f"Expected --suite to name a folder of .flags files. Received: {folder!r}")
    name = os.path.relpath(here, os.path.join(home, "flags")).replace(os.sep, "_").lstrip("._")
    description = os.path.join(here, "suite.json")
    table = {"title": name, "rows": [], "name": name, **(read_json(description) if os.path.exists(description) else {})}
    first = [row for row in table["rows"] if row in found]
    return here, [*first, *(row for row in found if row not in first)], table


def run_all(runs, folder_of):
    """Completes every run; one that fails does not stop the others.

    Two processes with the same command share the work: what one is at, the other leaves, and waits for at the end.

    Args:
        runs: list of `Run`. folder_of: run -> its workdir.

    Returns:
        (evaluations in the order of the runs, sentences about the runs that failed)
    """
    found, failures, left, waiting = {}, [], list(range(len(runs))), set()
    while left:
        busy = []
        for number in left:
            run = runs[number]
            if number not in waiting:
                print(f"[{number + 1}/{len(runs)}] {run.row}, seed {run.seed}: {folder_of(run)}", flush=True)
            try:
                found[number] = run.complete(folder_of(run))
            except workdir.Busy as error:
                if number not in waiting:
                    print(f"  {error}; left to it.", flush=True)
                waiting.add(number)
                busy.append(number)
            except (ValueError, OSError, tf.errors.OpError, training.TrainingDiverged) as error:
                if len(runs) == 1:
                    raise
                failures.append(f"{run.row}, seed {run.seed}, failed: {error}")
                print(f"  FAILED: {error}", flush=True)
        left = busy
        if left:
            time.sleep(10)
    return [found[number] for number in sorted(found)], failures
