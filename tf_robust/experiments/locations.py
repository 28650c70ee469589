"""Folders and row names of runs."""

import os
from collections.abc import Sequence

from absl.flags import FlagValues

from tf_robust.experiments import suites
from tf_robust.experiments.run import Run


def resolve_workdir(values: FlagValues, argv: Sequence[str], home: str) -> tuple[str, str, dict]:
    """Returns workdir, row name and table of a single row: those of its flagfile, if it is one of a table.

    Args:
        values: parsed flags.
        argv: the arguments from which they were parsed.
        home: folder with `flags/`.
    """
    row, table = values.method, {"title": f"{values.method} on {values.data}"}
    name = f"{folder_name(values.data)}-{values.model}-{values.method}"
    paths = [argument.removeprefix("--flagfile=") for argument in argv if argument.startswith("--flagfile=")]
    for path in (path for path in paths if path.endswith(".flags")):
        row = name = os.path.basename(path).removesuffix(".flags")
        if os.path.exists(os.path.join(os.path.dirname(path), "suite.json")):
            table = suites.table_of(os.path.dirname(path), home)[2]
            name = os.path.join(table["name"], row)
    return values.workdir or os.path.join("runs", name), row, table


def folder_name(data: str) -> str:
    """Returns the name of a data set without characters that a folder name cannot have."""
    return data.replace(":", "_").replace("/", "_")


def seed_folder(workdir: str, run: Run, count: int) -> str:
    """Returns the folder of one of `count` runs: with several seeds a subfolder of the workdir."""
    return os.path.join(workdir, f"seed_{run.seed}") if count > 1 else workdir


def row_name(saved_model: str) -> str:
    """Returns the row of a SavedModel: the name of its run's folder, or of the parent folder if that is `seed_N`."""
    folders = os.path.abspath(saved_model).split(os.sep)[:-1]
    return next((name for name in reversed(folders) if name and not name.startswith("seed_")), "model")
