"""Means over the data sets of several suites, such as the column Average of URRL's Table 2.

The `suite.json` of such a table names the suites and, for each metric of the mean, the metric of each suite.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from tf_robust import evaluation, report
from tf_robust.report import comparison
from tf_robust.report.tables import PerImage
from tf_robust.runs import suite

Divided = Mapping[str, Sequence[dict]]  # {suite: its evaluations}


class SuiteMeans:
    """A table that averages over suites.

    Args:
        folder: of the table, which has no flagfiles.
        table: its `suite.json`, with "suites": {suite: {metric of the mean: metric of the suite}}.
        home: folder with `flags/`.
        read_data: path of a flagfile -> its data.

    Attributes:
        suites: {name: description, as `suite.table_of` returns it}.
        data: {name: the --data of its flagfiles}.
    """

    def __init__(self, folder: str, table: dict, home: str, read_data: Callable[[str], str]):
        self.table = table
        self.suites: dict[str, dict] = {}
        self.data: dict[str, str] = {}
        self._rows: dict[str, list[str]] = {}
        for name in table["suites"]:
            path, rows, self.suites[name] = suite.table_of(os.path.join(os.path.dirname(folder), name), home)
            self._rows[name] = rows
            self.data[name] = read_data(f"{os.path.join(path, rows[0])}.flags")

    def divide(self, evaluations: Iterable[dict]) -> dict[str, list[dict]]:
        """Returns {suite: its evaluations, in the order of its rows}.

        An evaluation belongs to the suite whose flagfiles have its data; of folders the last part of the path is compared.

        Args:
            evaluations: as in `evaluation.json`.

        Raises:
            ValueError: the data belong to no suite.
        """
        names = {_last(data): name for name, data in self.data.items()}
        divided: dict[str, list[dict]] = {}
        for one in evaluations:
            if _last(one["data"]) not in names:
                raise ValueError(
                    f"Expected runs on the data of these suites: {', '.join(self.data.values())}. Received: {one['data']} "
                    f"in {one['saved_model']}"
                )
            divided.setdefault(names[_last(one["data"])], []).append(one)
        for name, members in divided.items():
            rows = self._rows[name]
            members.sort(key=lambda one: (rows.index(one["row"]) if one["row"] in rows else len(rows), one["seed"]))
        return {name: divided[name] for name in self.suites if name in divided}

    def means(self, divided: Divided) -> tuple[list[dict], list[str]]:
        """Returns the means over the suites, for every row and seed with an evaluation in all suites of `divided`.

        Args:
            divided: as `divide` returns it.

        Returns:
            Evaluations, each with "parts": {suite: evaluation}, and notes about missing ones.

        Raises:
            ValueError: no row has evaluations in all of them.
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
            rows = [mean for metric in self._metrics() if (mean := self._mean(metric, parts))]
            first = next(iter(parts.values()))
            evaluations.append(
                {
                    **{key: first[key] for key in ("method", "model", "split", "commit", "versions", "date") if key in first},
                    "row": row,
                    "seed": seed,
                    "data": f"mean over {len(parts)} data sets",
                    "rows": rows,
                    "parts": parts,
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
        order = self.table["rows"]
        return sorted(evaluations, key=lambda one: (order.index(one["row"]) if one["row"] in order else len(order), one["seed"])), notes

    def paper(self, divided: Divided) -> dict[str, dict[str, list]]:
        """Returns the means of the paper, {row: {metric: [mean, None]}}.

        With all suites they are the printed means, else means of the printed numbers of the suites in `divided`.

        Args:
            divided: as `divide` returns it.
        """
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
        """Returns the `per_image` argument of `report.aggregate` for the means.

        The mean of its values is the mean over suites, and their standard error is that of the mean of independent suites.

        Args:
            reader: per-image results of the suites' evaluations.
        """

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

    def _metrics(self):
        return list(dict.fromkeys(metric for metrics in self.table["suites"].values() for metric in metrics))

    def _metric(self, name, metric, part):
        """The metric of a suite's evaluation, or None; `clean` for `clean/per_class` if all classes have the same size."""
        own, available = self.table["suites"][name].get(metric), {row["metric"] for row in part["rows"]}
        return next((name for name in (own, own and own.removesuffix("/per_class")) if name in available), None)

    def _mean(self, metric, parts):
        """A row of the mean's evaluation, None if a suite lacks the metric. The images of the suites are independent."""
        rows = []
        for name, part in parts.items():
            own = self._metric(name, metric, part)
            rows += [row for row in part["rows"] if row["metric"] == own]
        if len(rows) < len(parts):
            return None
        value, half = float(np.mean([row["value"] for row in rows])), None
        if all(row["low"] is not None and row["high"] is not None for row in rows):
            half = float(np.sqrt(sum(((row["high"] - row["low"]) / 2) ** 2 for row in rows)) / len(rows))
        return {
            "metric": metric,
            "value": value,
            "count": sum(row["count"] for row in rows),
            "low": None if half is None else value - half,
            "high": None if half is None else value + half,
        }


def _last(data):
    return os.path.basename(data.removeprefix("folder:").rstrip("/")) if data.startswith("folder:") else data


def write_means(folder: str, means: SuiteMeans, evaluations: Sequence[dict], command: str) -> None:
    """Writes a report for each suite and the report of the means over them, and prints the tables.

    Args:
        folder: of the report of the means; those of the suites are in subfolders.
        means: of the table.
        evaluations: of runs of its suites.
        command: by which the report was made.
    """
    divided = means.divide(evaluations)
    for name, members in divided.items():
        print(f"\n{name}")
        suite = means.suites[name]
        comparison.print_table(
            comparison.write_report(os.path.join(folder, name), members, title=suite["title"], command=command, suite=suite), members
        )
    mean_evaluations, notes = means.means(divided)
    baseline = means.table.get("baseline")
    table = report.write(
        folder,
        mean_evaluations,
        title=means.table["title"],
        command=command,
        paper=means.paper(divided),
        commit=", ".join(dict.fromkeys(one["commit"] for members in divided.values() for one in members)),
        baseline=baseline if any(one["row"] == baseline for one in mean_evaluations) else None,
        notes=[*means.table.get("notes", ()), *notes],
        per_image=means.per_image(evaluation.PerImage(comparison.records_in)),
    )
    print("\n".join([means.table["title"], "", report.to_text(table), *notes, ""]))
    print(f"Report:  {os.path.join(folder, 'report.html')}  (also report.md, results.json, and a folder for each suite)")
    comparison.print_summary(table)
