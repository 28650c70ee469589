"""Suites: a folder of flagfiles describes a table, with one row per file. Reads tables and completes their runs."""

import glob
import os
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from tf_robust.experiments import flags
from tf_robust.experiments.evaluated_model import evaluated_model
from tf_robust.experiments.run import Run
from tf_robust.experiments.runs import runs_of
from tf_robust.training import loop
from tf_robust.utils.errors import message_of, unknown
from tf_robust.utils.files import read_json, write_json
from tf_robust.utils.locks import WorkdirLocked
from tf_robust.utils.progress import duration

_SKIPPED_SECONDS = 2  # runs that take less were already complete
_TEXTS = {"type": "array", "items": {"type": "string"}}
_PAIR = {"type": "array", "prefixItems": [{"type": "number"}, {"type": ["number", "null"]}], "minItems": 2, "maxItems": 2}
_SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "title": {"type": "string"},
        "baseline": {"type": "string"},
        "rows": _TEXTS,
        "notes": _TEXTS,
        "shown_as": {"type": "object", "additionalProperties": {"type": "string"}},
        "panels": {"type": "object", "additionalProperties": _TEXTS},
        "suites": {"type": "object", "additionalProperties": {"type": "object", "additionalProperties": {"type": "string"}}},
        "paper": {"type": "object", "additionalProperties": {"type": "object", "additionalProperties": _PAIR}},
    },
}


def table_of(folder: str, home: str) -> tuple[str, list[str], dict]:
    """Returns path, row names and description of a table.

    Args:
        folder: of the flagfiles, an existing path or one relative to `home`.
        home: folder with `flags/`.

    Returns:
        The path; the row names, in the order of `suite.json`; and a dictionary with "title", "name", "rows" and the optional fields of
        `suite.json`: "baseline", "paper", "notes", "shown_as": {row: name in tables, for several rows that are one method with other
        label fractions}, "panels": {title: [rows whose attack curves share a panel]}, and "suites": {suite in the same folder over
        which this table, which has no flagfiles, averages: {measure of the mean: measure of that suite}}.

    Raises:
        FileNotFoundError: there are no flagfiles.
        ValueError: `suite.json` is invalid.
    """
    path = folder.rstrip("/") if os.path.isdir(folder) else os.path.join(home, folder.rstrip("/"))
    rows = sorted(os.path.basename(file).removesuffix(".flags") for file in glob.glob(os.path.join(path, "*.flags")))
    suite_file = os.path.join(path, "suite.json")
    description = read_json(suite_file, _SCHEMA) if folder and os.path.exists(suite_file) else {}
    if not folder or not (rows or "suites" in description):
        raise FileNotFoundError(f"Expected --suite to name a folder of .flags files. Received: {folder!r}")
    name = os.path.relpath(path, os.path.join(home, "flags")).replace(os.sep, "_").lstrip("._")
    table = {"title": name, "rows": [], "name": name, **description}
    if "suites" in table:
        return path, table["rows"], table
    first = [row for row in table["rows"] if row in rows]
    return path, [*first, *(row for row in rows if row not in first)], table


def _predecessor(run, runs):
    """The number of the run from which a run starts: its `init_from_row`, with the same seed."""
    name = run.config.init_from_row
    for number, other in enumerate(runs):
        if (other.row, other.seed) == (name, run.seed) and other is not run:
            return number
    raise unknown("row to start from", name, sorted({other.row for other in runs} - {run.row}))


def _depth(number, predecessors):
    """The number of runs that must be completed before a run. Raises ValueError for a cycle."""
    seen = []
    while number in predecessors:
        seen.append(number)
        number = predecessors[number]
        if number in seen:
            raise ValueError("Expected init_from_row flags without a cycle. Received rows that start from each other in a cycle")
    return len(seen)


def check_images_match(runs: Sequence[Run]) -> None:
    """Checks that runs of one table evaluate on the same images.

    Raises:
        ValueError: two runs have the same evaluation on different images.
    """
    first: dict[str, tuple[Run, dict]] = {}
    for run in runs:
        for evaluation in run.eval_config.evaluations:
            images = {"data": run.config.data, "evaluation_split": run.eval_config.evaluation_split, "subset": run.eval_config.subset}
            if evaluation in ("adversarial", "attack_curves", "certified"):
                images["attack_subset"] = run.eval_config.attack_subset
            other, before = first.setdefault(evaluation, (run, images))
            differing = [f"{name} ({before[name]} and {images[name]})" for name in images if before[name] != images[name]]
            if differing:
                raise ValueError(
                    f"Expected rows with the same images. Received: {other.row} and {run.row}, which differ "
                    f"in {', '.join(differing)} and both have the evaluation {evaluation!r}. Try: the same value for all "
                    f"rows on the command line, or separate folders"
                )


def measure_all(
    flagfiles: Mapping[str, str], overrides: Mapping[str, object], workdir: str, shown_as: Mapping[str, str]
) -> tuple[list[dict], list[str]]:
    """Evaluates the models of a suite whose flagfiles have saved_model, and continues after models that are missing or unsuitable.

    Args:
        flagfiles: {row: path of its flagfile}.
        overrides: {flag: value} for all rows.
        workdir: gets a folder per row.
        shown_as: {row: its name in tables}.

    Returns:
        The evaluations, and messages about the rows that failed.

    Raises:
        ValueError: all rows failed.
    """
    evaluations: list[dict] = []
    failures: list[str] = []
    for row, flagfile in flagfiles.items():
        arguments, folder = [f"--flagfile={flagfile}"], os.path.join(workdir, row)
        values = flags.with_values(flags.parse_arguments(arguments), overrides)
        try:
            model = evaluated_model(values, values.saved_model)
            run = runs_of(model.values, row, shown_as.get(row, ""))[0]
            print(f"{row}: {folder}", flush=True)
            evaluations.append({**model.evaluate(run, folder)[0], "measured_in": folder})
            write_json(os.path.join(folder, "evaluation.json"), evaluations[-1])
        except (ValueError, OSError, tf.errors.OpError) as error:
            failures.append(f"{row} failed: {message_of(error)}")
            print(f"  FAILED: {message_of(error)}", flush=True)
    if not evaluations:
        raise ValueError("\n".join(["All rows failed.", *failures]))
    return evaluations, failures


def run_all(runs: Sequence[Run], folder_of: Callable[[Run], str]) -> tuple[list[dict], list[str]]:
    """Completes all runs and continues after failures. Runs from which others start come first.

    Processes with the same command share the work: a run that another process holds is skipped, and waited for at the end.

    Args:
        runs: of one table.
        folder_of: run -> its workdir.

    Returns:
        The evaluations in the order of the runs (none in workers other than the chief), and messages about the runs that failed.

    Raises:
        ValueError: the runs cannot be in one table, or the only run failed.
    """
    if len(runs) > 1 and any(run.config.strategy == "multi_worker" for run in runs):
        raise ValueError(f"Expected one run with strategy=multi_worker: one row, and one seed in --seeds. Received: {len(runs)} runs")
    check_images_match(runs)
    evaluations: dict[int, dict | None] = {}
    failures: dict[int, str] = {}
    waiting: set[int] = set()
    times: list[float] = []
    pending = list(range(len(runs)))
    predecessors = {}
    if len({run.row for run in runs}) > 1:
        predecessors = {number: _predecessor(run, runs) for number, run in enumerate(runs) if run.config.init_from_row}
    pending.sort(key=lambda number: (runs[number].seed, _depth(number, predecessors), number))
    while pending:
        locked = []
        for number in pending:
            run, predecessor = runs[number], predecessors.get(number)
            if predecessor in failures:
                failures[number] = f"{run.row}, seed {run.seed}: the row from which it starts, {runs[predecessor].row}, failed"
                continue
            if predecessor is not None and predecessor not in evaluations:
                locked.append(number)
                continue
            run.init_path = run.init_path if predecessor is None else folder_of(runs[predecessor])
            if number not in waiting:
                remaining = f", {duration(np.mean(times) * (len(runs) - len(evaluations) - len(failures)))} left" if times else ""
                print(f"[{number + 1}/{len(runs)}] {run.row}, seed {run.seed}: {folder_of(run)}{remaining}", flush=True)
            began = time.monotonic()
            try:
                evaluations[number] = run.complete(folder_of(run))
                times += [time.monotonic() - began] if time.monotonic() - began > _SKIPPED_SECONDS else []
            except WorkdirLocked as error:
                if number not in waiting:
                    print(f"  {error}. Skipped for now.", flush=True)
                waiting.add(number)
                locked.append(number)
            except (ValueError, OSError, tf.errors.OpError, loop.TrainingDiverged) as error:
                if len(runs) == 1:
                    raise
                failures[number] = f"{run.row}, seed {run.seed}, failed: {message_of(error)}"
                print(f"  FAILED: {message_of(error)}", flush=True)
        pending = locked
        if pending:
            time.sleep(10)
    complete = [evaluation for _, evaluation in sorted(evaluations.items()) if evaluation]
    return complete, [failures[number] for number in sorted(failures)]
