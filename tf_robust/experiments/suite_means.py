"""The mean over the data sets of several suites, row by row: the column Average of URRL's Table 2.

The `suite.json` of such a table names the suites and, for each of its own measures, which measure of each suite enters.
"""

import os

import numpy as np

from tf_robust import evaluation
from tf_robust.experiments import flags, suites


class SuiteMeans:
    """A table that averages over suites.

    Args:
        folder: of the table, which has no flagfiles. table: its `suite.json`, with "suites": {suite: {measure of the mean: measure of the
            suite}}. home: the folder that has `flags/`.

    Attributes:
        suites: {name: its table, as `suites.table_of` gives}. data: {name: the --data of its flagfiles}.
    """

    def __init__(self, folder, table, home):
        self.table, self.suites, self.data, self._rows = table, {}, {}, {}
        for name in table["suites"]:
            here, rows, self.suites[name] = suites.table_of(os.path.join(os.path.dirname(folder), name), home)
            self._rows[name] = rows
            self.data[name] = flags.parsed([f"--flagfile={os.path.join(here, rows[0])}.flags"]).data

    def divide(self, evaluations):
        """{suite: its evaluations, in the order of its rows}.

        An evaluation belongs to the suite whose flagfiles name its data; of a folder the last part of the path counts.

        Raises:
            ValueError: data of no suite.
        """
        names, found = {_last(data): name for name, data in self.data.items()}, {}
        for one in evaluations:
            if _last(one["data"]) not in names:
                raise ValueError(
                    f"Expected runs on the data of these suites: {', '.join(self.data.values())}. Received: {one['data']} "
                    f"in {one['saved_model']}"
                )
            found.setdefault(names[_last(one["data"])], []).append(one)
        for name, members in found.items():
            rows = self._rows[name]
            members.sort(key=lambda one: (rows.index(one["row"]) if one["row"] in rows else len(rows), one["seed"]))
        return {name: found[name] for name in self.suites if name in found}

    def means(self, divided):
        """Evaluations whose values are means over the suites, for every row and seed that was measured in all suites at hand.

        Args:
            divided: as `divide` gives.

        Returns:
            (evaluations, each with "parts": {suite: evaluation}; sentences about what is missing)

        Raises:
            ValueError: no row was measured in all of them.
        """
        cells, found, notes = {}, [], []
        for name, members in divided.items():
            for one in members:
                cells.setdefault((one["row"], one["seed"]), {})[name] = one
        for (row, seed), parts in cells.items():
            if len(parts) < len(divided):
                missing = ", ".join(name for name in divided if name not in parts)
                notes.append(f"{row}, seed {seed}, is left out: it was not measured in {missing}.")
                continue
            rows = [mean for measure in self._measures() if (mean := self._mean(measure, parts))]
            first = next(iter(parts.values()))
            found.append(
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
        found = [one for one in found if one["rows"]]
        if not found:
            raise ValueError(f"Expected a row that was measured in all of {', '.join(divided)}. Received none")
        if len(divided) < len(self.suites):
            missing = ", ".join(name for name in self.suites if name not in divided)
            notes.append(
                f"The mean is over {len(divided)} of {len(self.suites)} data sets, and so are the paper's numbers beside it. "
                f"Missing: {missing}."
            )
        order = self.table["rows"]
        return sorted(found, key=lambda one: (order.index(one["row"]) if one["row"] in order else len(order), one["seed"])), notes

    def paper(self, divided):
        """{row: {measure: [mean, None]}}: what the paper prints as the mean or, of fewer suites, the mean of what it prints of these."""
        if len(divided) == len(self.suites):
            return self.table.get("paper", {})
        found = {}
        for row in self.table["rows"]:
            for measure in self._measures():
                printed = [self.suites[name]["paper"].get(row, {}).get(self.table["suites"][name].get(measure)) for name in divided]
                if all(printed):
                    found.setdefault(row, {})[measure] = [float(np.mean([value for value, _ in printed])), None]
        return found

    def per_image(self, reader):
        """`per_image` of `report.aggregate` for the means: values whose mean is the mean over suites, and whose standard error is that of
        the mean of independent suites. reader: an `evaluation.PerImage`."""

        def read(one, measure):
            told = [(part, self._measure(name, measure, part)) for name, part in one["parts"].items()]
            results = [reader(part, own) if own else None for part, own in told]
            if any(result is None for result in results):
                return None
            values = [values.astype(np.float64) for _, values in results]
            count, mean = sum(map(len, values)), np.mean([part.mean() for part in values])
            scaled = [mean + (part - part.mean()) * count / (len(values) * len(part)) for part in values]
            return evaluation.record_key([digest for digest, _ in results]), np.concatenate(scaled)

        return read

    def _measures(self):
        return list(dict.fromkeys(measure for chosen in self.table["suites"].values() for measure in chosen))

    def _measure(self, name, measure, part):
        """The measure of a suite's evaluation that enters, or None; `clean` where classes are equally many and `clean/per_class` is it."""
        own, taken = self.table["suites"][name].get(measure), {row["measure"] for row in part["rows"]}
        return next((found for found in (own, own and own.removesuffix("/per_class")) if found in taken), None)

    def _mean(self, measure, parts):
        """A row of the mean's evaluation; None where a suite lacks the measure. The suites' images are independent."""
        found = []
        for name, part in parts.items():
            own = self._measure(name, measure, part)
            found += [row for row in part["rows"] if row["measure"] == own]
        if len(found) < len(parts):
            return None
        value, half = float(np.mean([row["value"] for row in found])), None
        if all(row["low"] is not None and row["high"] is not None for row in found):
            half = float(np.sqrt(sum(((row["high"] - row["low"]) / 2) ** 2 for row in found)) / len(found))
        return {
            "measure": measure,
            "value": value,
            "count": sum(row["count"] for row in found),
            "low": None if half is None else value - half,
            "high": None if half is None else value + half,
        }


def _last(data):
    return os.path.basename(data.removeprefix("folder:").rstrip("/")) if data.startswith("folder:") else data
