"""Suites: a folder of flagfiles describes a table, with one row per file. Its `suite.json` has the numbers of the paper.

A table may also average over suites, such as the column Average of URRL's Table 2: its `suite.json` names the suites and, for each metric
of the mean, the metric of each suite.
"""

import glob
import os
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from tf_robust import evaluation, report
from tf_robust.report.evaluated_model import EvaluatedModel
from tf_robust.report.tables import PerImage
from tf_robust.runs.run import Run
from tf_robust.utils.errors import RunFailed, message_of, unknown
from tf_robust.utils.files import read_json, write_json
from tf_robust.utils.progress import print_line

_TEXTS = {"type": "array", "items": {"type": "string"}}
_PAIR = {"type": "array", "prefixItems": [{"type": "number"}, {"type": ["number", "null"]}], "minItems": 2, "maxItems": 2}
_SCHEMA: dict[str, typing.Any] = {
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
    """Returns path, row names and description of a table, whose folder is an existing path or one relative to `home`, with `flags/`.

    The row names are in the order of `suite.json`; the description has "title", "name", "rows" and the optional fields of `suite.json`:
    "baseline", "paper", "notes", "shown_as": {row: name in tables, for several rows that are one method with other label fractions},
    "panels": {title: [rows whose attack curves share a panel]}, and "suites": {suite in the same folder over which this table, which has no
    flagfiles, averages: {metric of the mean: metric of that suite}}. Raises FileNotFoundError without flagfiles, and ValueError if
    `suite.json` is invalid.
    """
    path = folder.rstrip("/") if os.path.isdir(folder) else os.path.join(home, folder.rstrip("/"))
    rows = sorted(os.path.basename(file).removesuffix(".flags") for file in glob.glob(os.path.join(path, "*.flags")))
    suite_file, description = os.path.join(path, "suite.json"), {}
    if folder and os.path.exists(suite_file):
        keys = read_json(suite_file, advice="Try: docs/reference/training.md lists its keys").keys()
        if unknown_keys := keys - _SCHEMA["properties"].keys():
            raise unknown(f"key in {suite_file}", min(unknown_keys), _SCHEMA["properties"])
        description = read_json(suite_file, _SCHEMA, advice="Try: docs/reference/training.md describes the values of its keys")
    if not folder or not (rows or "suites" in description):
        raise FileNotFoundError(f"Expected --suite to name a folder of .flags files. Received: {folder!r}")
    name = os.path.relpath(path, os.path.join(home, "flags")).replace(os.sep, "_").lstrip("._")
    table = {"title": name, "rows": [], "name": name, **description}
    if "suites" in table:
        return path, table["rows"], table
    for row in table["rows"]:
        if row not in rows:
            raise unknown(f'row in "rows" of {suite_file}', row, rows)
    names = [table.get("shown_as", {}).get(row, row) for row in rows]
    if "baseline" in table and table["baseline"] not in names:
        raise unknown(f'"baseline" in {suite_file}', table["baseline"], names)
    return path, [*table["rows"], *(row for row in rows if row not in table["rows"])], table


def check_images_match(runs: Sequence[Run]) -> None:
    """Raises ValueError if two runs of one table have the same evaluation on different images."""
    first: dict[str, tuple[Run, dict]] = {}
    for run in runs:
        for chosen in run.config.evaluation.evaluations:
            images = {name: getattr(run.config.data, name) for name in ("data", "image_size", "image_fit")}
            images |= {name: getattr(run.config.evaluation, name) for name in ("evaluation_split", "subset")}
            if chosen in ("adversarial", "attack_curves", "certified"):
                images["attack_subset"] = run.config.evaluation.attack_subset
            other, before = first.setdefault(chosen, (run, images))
            differing = [f"{name} ({before[name]} and {images[name]})" for name in images if before[name] != images[name]]
            if differing:
                raise ValueError(
                    f"Expected rows with the same images. Received: {other.row} and {run.row}, which differ "
                    f"in {', '.join(differing)} and both have the evaluation {chosen!r}. Try: the same value for all "
                    f"rows on the command line, or separate folders"
                )


def evaluate_models(models: Mapping[str, Callable[[], EvaluatedModel]], workdir: str) -> tuple[list[dict], list[str]]:
    """Evaluates the models of a suite, {row: function that returns its model}, each in a folder of the workdir; continues after failures.

    Returns the evaluations, and messages about the rows that failed; raises RunFailed if all did.
    """
    evaluations: list[dict] = []
    failures: list[str] = []
    for row, load in models.items():
        folder = os.path.join(workdir, row)
        try:
            model = load()
            print_line(f"{row}: {folder}")
            evaluations.append({**model.evaluate(folder).content, "measured_in": folder})
            write_json(os.path.join(folder, "evaluation.json"), evaluations[-1])
        except (ValueError, OSError, tf.errors.OpError) as error:
            failures.append(f"{row} failed: {message_of(error)}")
            print_line(f"  FAILED: {message_of(error)}")
    if not evaluations:
        raise RunFailed("\n".join(["All rows failed.", *failures]))
    return evaluations, failures


Divided = Mapping[str, Sequence[dict]]  # {suite: its evaluations}


def sort_by_rows(evaluations: list[dict], rows: Sequence[str]) -> None:
    """Sorts evaluations in the order of some rows, others last, and by seed."""
    evaluations.sort(key=lambda one: (rows.index(one["row"]) if one["row"] in rows else len(rows), one["seed"]))


class SuiteMeans:
    """A table, in a folder without flagfiles, that averages over the suites in "suites" of its `suite.json`.

    `table` is its description, as `table_of` returns it; `read_data`: path of a flagfile -> its data.
    """

    def __init__(self, folder: str, table: dict, home: str, read_data: Callable[[str], str]):
        self.table = table
        self.suites: dict[str, dict] = {}  # their descriptions
        self.data: dict[str, str] = {}  # the --data of their flagfiles
        self._rows: dict[str, list[str]] = {}
        for name in table["suites"]:
            path, self._rows[name], self.suites[name] = table_of(os.path.join(os.path.dirname(folder), name), home)
            self.data[name] = read_data(f"{os.path.join(path, self._rows[name][0])}.flags")

    def divide(self, evaluations: Iterable[dict]) -> dict[str, list[dict]]:
        """Returns {suite whose flagfiles have their data: its evaluations, in the order of its rows}; raises ValueError for other data."""

        def last(data):  # of folders the last part of the path is compared
            return os.path.basename(data.removeprefix("folder:").rstrip("/")) if data.startswith("folder:") else data

        names = {last(data): name for name, data in self.data.items()}
        divided: dict[str, list[dict]] = {}
        for one in evaluations:
            if last(one["data"]) not in names:
                raise ValueError(
                    f"Expected runs on the data of these suites: {', '.join(self.data.values())}. Received: {one['data']} "
                    f"in {one['saved_model']}"
                )
            divided.setdefault(names[last(one["data"])], []).append(one)
        for name, members in divided.items():
            sort_by_rows(members, self._rows[name])
        return {name: divided[name] for name in self.suites if name in divided}

    def means(self, divided: Divided) -> tuple[list[dict], list[str]]:
        """Returns the means over the suites, for every row and seed with an evaluation in all suites of `divided`, and notes about others.

        Each is an evaluation with "parts": {suite: evaluation}. Raises ValueError if there is none.
        """
        cells: dict[tuple[str, int], dict[str, dict]] = {}
        evaluations, notes = [], []
        for name, members in divided.items():
            for one in members:
                cells.setdefault((one["row"], one["seed"]), {})[name] = one
        for (row, seed), parts in cells.items():
            if len(parts) < len(divided):
                missing = ", ".join(name for name in divided if name not in parts)
                notes.append(f"{row}, seed {seed}, is excluded: it was not measured in {missing}.")
                continue
            first = next(iter(parts.values()))
            evaluations.append(
                {
                    **{key: first[key] for key in ("method", "model", "split", "commit", "versions", "date") if key in first},
                    **{"row": row, "seed": seed, "data": f"mean over {len(parts)} data sets", "parts": parts},
                    "rows": [mean for metric in self._metrics() if (mean := self._mean(metric, parts))],
                    "training": {"seconds": sum(one.get("training", {}).get("seconds", 0) for one in parts.values())},
                }
            )
        splits = sorted({part["split"] for one in evaluations for part in one["parts"].values()})
        if len(splits) > 1:
            raise ValueError(f"Expected evaluations on one split of all data sets. Received: {' and '.join(splits)}")
        evaluations = [one for one in evaluations if one["rows"]]
        if not evaluations:
            raise ValueError(f"Expected a row that was measured in all of {', '.join(divided)}. Received: none")
        if len(divided) < len(self.suites):
            missing = ", ".join(name for name in self.suites if name not in divided)
            notes.append(
                f"The mean is over {len(divided)} of {len(self.suites)} data sets, as are the numbers of the paper. Missing: {missing}."
            )
        sort_by_rows(evaluations, self.table["rows"])
        return evaluations, notes

    def paper(self, divided: Divided) -> dict[str, dict[str, list]]:
        """Returns the means of the paper, {row: {metric: [mean, None]}}: the printed ones, or means of those of the suites in `divided`."""
        if len(divided) == len(self.suites):
            return self.table.get("paper", {})
        means: dict[str, dict[str, list]] = {}
        for row in self.table["rows"]:
            for metric in self._metrics():
                printed = [self.suites[name].get("paper", {}).get(row, {}).get(self.table["suites"][name].get(metric)) for name in divided]
                if all(printed):
                    means.setdefault(row, {})[metric] = [float(np.mean([value for value, _ in printed])), None]
        return means

    def per_image(self, reader: PerImage) -> PerImage:
        """Returns the `per_image` argument of `report.aggregate` for the means: values whose mean is that over suites, and whose standard
        error is that of the mean of independent suites. `reader` returns those of the suites' evaluations."""

        def read(one, metric):
            members = [(part, self._metric(name, metric, part)) for name, part in one["parts"].items()]
            results = [reader(part, own) if own else None for part, own in members]
            complete = [result for result in results if result is not None]
            if len(complete) < len(results):
                return None
            values = [values.astype(np.float64) for _, values in complete]
            count, mean = sum(map(len, values)), np.mean([part.mean() for part in values])
            scaled = [mean + (part - part.mean()) * count / (len(values) * len(part)) for part in values]
            other_order = any(digest.endswith(evaluation.OTHER_ORDER) for digest, _ in complete)
            digest = evaluation.record_key([digest for digest, _ in complete])
            return digest + evaluation.OTHER_ORDER * other_order, np.concatenate(scaled)

        return read

    def write(self, folder: str, divided: Divided, command: str) -> tuple[report.Table, list[str]]:
        """Writes the report of the means; returns its table, and notes on what is missing. Arguments as in `means`."""
        mean_evaluations, notes = self.means(divided)
        baseline = self.table.get("baseline")
        table = report.write(
            folder,
            mean_evaluations,
            title=self.table["title"],
            command=command,
            paper=self.paper(divided),
            commit=", ".join(dict.fromkeys(one["commit"] for members in divided.values() for one in members)),
            baseline=baseline if any(one["row"] == baseline for one in mean_evaluations) else None,
            notes=[*self.table.get("notes", ()), *notes],
            per_image=self.per_image(evaluation.PerImage()),
        )
        return table, notes

    def _metrics(self):
        return list(dict.fromkeys(metric for metrics in self.table["suites"].values() for metric in metrics))

    def _metric(self, name, metric, part):
        """The metric of a suite's evaluation, or None; `clean` for `clean/per_class` if all classes have the same size."""
        own, available = self.table["suites"][name].get(metric), {row["metric"] for row in part["rows"]}
        return next((name for name in (own, own and own.removesuffix("/per_class")) if name in available), None)

    def _mean(self, metric, parts):
        """A row of the mean's evaluation, None if a suite lacks the metric. The images of the suites are independent."""
        names = {name: self._metric(name, metric, part) for name, part in parts.items()}
        rows = [row for name, part in parts.items() for row in part["rows"] if row["metric"] == names[name]]
        if len(rows) < len(parts):
            return None
        value, low, high = float(np.mean([row["value"] for row in rows])), None, None
        if all(row["low"] is not None and row["high"] is not None for row in rows):
            half = float(np.sqrt(sum(((row["high"] - row["low"]) / 2) ** 2 for row in rows)) / len(rows))
            low, high = value - half, value + half
        return {"metric": metric, "value": value, "count": sum(row["count"] for row in rows), "low": low, "high": high}
