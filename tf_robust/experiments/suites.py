"""A folder of flagfiles is a table: its rows, what its `suite.json` says of them, and all its runs completed."""

import glob
import os
import time

import numpy as np
import tensorflow as tf

from tf_robust.experiments import flags
from tf_robust.experiments.workdir import recorded_arguments
from tf_robust.saved_models import loading
from tf_robust.training import loop
from tf_robust.utils.errors import message_of, unknown
from tf_robust.utils.files import read_json, write_json
from tf_robust.utils.locks import WorkdirLocked
from tf_robust.utils.progress import duration

_AT_ONCE = 2  # seconds: what takes less was done before
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


def table_of(folder, home):
    """A folder of flagfiles: where it is, its rows in the order of its `suite.json`, and what else that says.

    Args:
        folder: a path, or one below `home`. home: the folder that has `flags/`.

    Returns:
        (path, [row names], {"title", "name", "rows", and what the file has of "baseline", "paper", "notes", "shown_as": {row: its
        name in tables, where several rows are one method with other shares of the labels}, "panels": {title: [rows whose
        attack curves one panel compares]} and "suites": {suite beside it that this table, which has no flagfiles, averages over:
        {measure of the mean: measure of that suite}}})

    Raises:
        FileNotFoundError: there are no flagfiles. ValueError: `suite.json` is damaged.
    """
    here = folder.rstrip("/") if os.path.isdir(folder) else os.path.join(home, folder.rstrip("/"))
    found = sorted(os.path.basename(path).removesuffix(".flags") for path in glob.glob(os.path.join(here, "*.flags")))
    description = os.path.join(here, "suite.json")
    told = read_json(description, _SCHEMA) if folder and os.path.exists(description) else {}
    if not folder or not (found or "suites" in told):
        raise FileNotFoundError(f"Expected --suite to name a folder of .flags files. Received: {folder!r}")
    name = os.path.relpath(here, os.path.join(home, "flags")).replace(os.sep, "_").lstrip("._")
    table = {"title": name, "rows": [], "name": name, **told}
    if "suites" in table:
        return here, table["rows"], table
    first = [row for row in table["rows"] if row in found]
    return here, [*first, *(row for row in found if row not in first)], table


def _source(run, runs):
    """The number of the run that one begins with: its `init_from_row`, with the same seed."""
    name = run.config.init_from_row
    for number, other in enumerate(runs):
        if (other.row, other.seed) == (name, run.seed) and other is not run:
            return number
    raise unknown("row to begin with", name, sorted({other.row for other in runs} - {run.row}))


def _depth(number, sources):
    """How many runs have to be done before one; a circle of them is refused."""
    seen = []
    while number in sources:
        seen.append(number)
        number = sources[number]
        if number in seen:
            raise ValueError("Expected rows that begin with others, in no circle. Received init_from_row flags in a circle")
    return len(seen)


def check_images_match(runs):
    """Raises ValueError where two runs measure one thing on different images: no table could have both."""
    first = {}
    for run in runs:
        for evaluation in run.eval_config.evaluations:
            told = {"data": run.config.data, "evaluation_split": run.eval_config.evaluation_split, "subset": run.eval_config.subset}
            if evaluation in ("adversarial", "attack_curves"):
                told["attack_subset"] = run.eval_config.attack_subset
            other, before = first.setdefault(evaluation, (run, told))
            differing = [f"{name} ({before[name]} and {told[name]})" for name in told if before[name] != told[name]]
            if differing:
                raise ValueError(
                    f"Expected rows that are measured on the same images. Received {other.row} and {run.row}, which differ "
                    f"in {', '.join(differing)} and both have the evaluation {evaluation!r}. Give all rows the same on "
                    f"the command line, or put them in folders of their own"
                )


def measure_all(flagfiles, overrides, workdir, shown_as):
    """Measures the models of a suite whose flagfiles have mode=evaluate; one that is missing or does not fit does not stop the others.

    Args:
        flagfiles: {row: path of its flagfile}.
        overrides: {flag: value}, which hold for every row.
        workdir: gets a folder per row.
        shown_as: {row: its name in tables}.

    Returns:
        (evaluations, messages about the rows that failed)

    Raises:
        ValueError: all rows failed.
    """
    found, failures = [], []
    for row, flagfile in flagfiles.items():
        arguments, folder = [f"--flagfile={flagfile}"], os.path.join(workdir, row)
        values = flags.with_values(flags.parsed(arguments), overrides)
        recorded = os.path.join(values.workdir, "flags.txt")
        if not values.saved_model and os.path.exists(recorded):  # a run: its own flags first
            values = flags.with_values(flags.parsed([*recorded_arguments(recorded), *arguments]), overrides)
        try:
            run = flags.runs_of(values, row, shown_as.get(row, ""))[0]
            interface = loading.ModelInterface(**flags.values_of(values, loading.ModelInterface))
            print(f"{row}: {folder}", flush=True)
            found.append(
                {**run.measure(values.saved_model or os.path.join(values.workdir, "saved_model"), folder, interface), "measured_in": folder}
            )
            write_json(os.path.join(folder, "evaluation.json"), found[-1])
        except (ValueError, OSError, tf.errors.OpError) as error:
            failures.append(f"{row} failed: {message_of(error)}")
            print(f"  FAILED: {message_of(error)}", flush=True)
    if not found:
        raise ValueError("\n".join(["All rows failed.", *failures]))
    return found, failures


def run_all(runs, folder_of):
    """Completes every run, those that others begin with first; one that fails does not stop the others.

    Two processes with the same command share the work: what one is at, the other leaves, and waits for at the end.

    Args:
        runs: list of `Run`. folder_of: run -> its workdir.

    Returns:
        (evaluations in the order of the runs, sentences about the runs that failed)
    """
    if len(runs) > 1 and any(run.config.strategy == "multi_worker" for run in runs):
        raise ValueError(f"Expected one run at a time with strategy=multi_worker: one row and one of --seeds. Received {len(runs)} runs")
    check_images_match(runs)
    found, failures, left, waiting, times = {}, {}, list(range(len(runs))), set(), []
    sources = {}
    if len({run.row for run in runs}) > 1:
        sources = {number: _source(run, runs) for number, run in enumerate(runs) if run.config.init_from_row}
    left.sort(key=lambda number: (runs[number].seed, _depth(number, sources), number))
    while left:
        busy = []
        for number in left:
            run, source = runs[number], sources.get(number)
            if source in failures:
                failures[number] = f"{run.row}, seed {run.seed}: the row that it begins with, {runs[source].row}, failed"
                continue
            if source is not None and source not in found:
                busy.append(number)
                continue
            run.start = run.start if source is None else folder_of(runs[source])
            if number not in waiting:
                remaining = f", {duration(np.mean(times) * (len(runs) - len(found) - len(failures)))} left" if times else ""
                print(f"[{number + 1}/{len(runs)}] {run.row}, seed {run.seed}: {folder_of(run)}{remaining}", flush=True)
            began = time.monotonic()
            try:
                found[number] = run.complete(folder_of(run))
                times += [time.monotonic() - began] if time.monotonic() - began > _AT_ONCE else []
            except WorkdirLocked as error:
                if number not in waiting:
                    print(f"  {error}; left to it.", flush=True)
                waiting.add(number)
                busy.append(number)
            except (ValueError, OSError, tf.errors.OpError, loop.TrainingDiverged) as error:
                if len(runs) == 1:
                    raise
                failures[number] = f"{run.row}, seed {run.seed}, failed: {message_of(error)}"
                print(f"  FAILED: {message_of(error)}", flush=True)
        left = busy
        if left:
            time.sleep(10)
    return [found[number] for number in sorted(found)], [failures[number] for number in sorted(failures)]
