"""Results of training and evaluation in Python: values, tables, reports and paired comparisons."""

import functools
import html
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence

import pandas

from tf_robust import evaluation, report
from tf_robust.report.tables import Table
from tf_robust.saved_models import loading
from tf_robust.utils.errors import unknown

_COLUMNS = ["row", "metric", "value", "baseline", "difference", "low", "high", "count", "significant"]


class Result:
    """An evaluated model.

    Args:
        folder: of the records per image: the workdir of a run.
        evaluation: the content of its `evaluation.json`.
        model: the model; None: that which the run exported.
        temporary: deletes `folder` when the result is deleted.

    Examples:
        >>> result = tfr.evaluate("zoo:digits/lenet_augmix", evaluations="clean", subset=100)
        >>> result
        <Result of lenet_augmix on digits: 2 metrics>
        >>> round(result.values["clean"], 2)
        0.97
        >>> result.frame()[["metric", "low", "high"]].round(3)
                    metric    low  high
        0            clean  0.915  0.99
        1  clean/per_class    NaN   NaN
    """

    def __init__(
        self,
        folder: str,
        evaluation: dict,
        model: loading.Classifier | None = None,
        temporary: tempfile.TemporaryDirectory | None = None,
    ):
        self.folder, self.evaluation, self._model, self._temporary = folder, evaluation, model, temporary

    def __repr__(self) -> str:
        return f"<Result of {self.evaluation['row']} on {self.evaluation['data']}: {len(self.evaluation['rows'])} metrics>"

    @property
    def values(self) -> dict[str, float]:
        """The values of the metrics, by name."""
        return {row["metric"]: row["value"] for row in self.evaluation["rows"]}

    @functools.cached_property
    def model(self) -> loading.Classifier:
        """The evaluated model, differentiable: float32 [N, H, W, C] in [0, 1] -> logits [N, C]."""
        return self._model or loading.load_classifier(os.path.join(self.folder, "saved_model"))

    def frame(self) -> pandas.DataFrame:
        """Returns a table with one line per metric: its value, 95 % interval and number of images."""
        return report.to_frame([self.evaluation])

    def images(self, name: str = "clean") -> pandas.DataFrame:
        """Returns the predictions for each image of a set (clean, un, nun, corruptions/fog/3, shift/NAME), evaluated with `per_image=True`.

        Columns: position (in the data set), path (of image files), label, prediction, confidence, brier_score, negative_log_likelihood and
        correct. Raises FileNotFoundError without such results, and ValueError if the set has none.
        """
        if (found := evaluation.images_of(self.evaluation, self.folder, name)) is not None:
            return found.drop(columns="set")
        names = dict.fromkeys(("clean", *(str(evaluation.parse_metric(one).plain) for one in self.values)))
        known = [one for one in names if os.path.isdir(evaluation.per_image_folder(self.folder, one))]
        if not known:
            raise FileNotFoundError("Expected results of each image. Received: none. Try: an evaluation with per_image=True")
        raise unknown("set with results of each image", name, known)

    def report(self, path: str = "report.html") -> str:
        """Writes the report, one self-contained HTML file, and returns its path."""
        return _write_report(path, [self], self.evaluation["row"])

    def _repr_html_(self) -> str:
        return _to_html(_table([self]))


class Comparison:
    """Models compared with a baseline on the same images; `table` is that of `report.aggregate`.

    Examples:
        >>> plain = tfr.evaluate("zoo:digits/lenet_cross_entropy", evaluations="clean", subset=100)
        >>> robust = tfr.evaluate("zoo:digits/lenet_augmix", evaluations="clean", subset=100)
        >>> frame = tfr.compare(plain, robust).frame()
        >>> frame.loc[0, ["difference", "low", "high"]].astype(float).round(3).tolist(), bool(frame.loc[0, "significant"])
        ([0.01, -0.01, 0.03], False)
    """

    def __init__(self, results: Sequence[Result], baseline: str):
        self._results, self.table = results, _table(results, baseline)

    def __repr__(self) -> str:
        others = ", ".join(row for row in self.table["order"] if row != self.table["baseline"])
        return f"<Comparison of {others} with {self.table['baseline']}: {len(self.table['metrics'])} metrics>"

    def __str__(self) -> str:
        return "\n".join(report.summary_lines(self.table))

    def frame(self) -> pandas.DataFrame:
        """Returns a table with one line per metric and model: values, and the difference to the baseline.

        `low` and `high` are the ends of the 95 % interval of the difference, as in the report; `significant`: it excludes 0 (None
        without an interval). `count`: images that the models share; empty for metrics that are no means over images.
        """
        lines = []
        for (row, metric), one in self.table["differences"].items():
            value, significant = self.table["cells"][row, metric]["mean"], None if one.low is None else one.significant
            lines.append((row, metric, value, value - one.mean, one.mean, one.low, one.high, one.num_images, significant))
        return pandas.DataFrame(lines, columns=_COLUMNS)

    def report(self, path: str = "report.html") -> str:
        """Writes the report, one self-contained HTML file, and returns its path."""
        return _write_report(path, self._results, ", ".join(self.table["order"]), self.table["baseline"])

    def _repr_html_(self) -> str:
        return _to_html(self.table)


def compare(*results: Result, baseline: str | None = None, **named: Result) -> Comparison:
    """Compares models that were evaluated on the same images, image by image.

    Args:
        *results: the first is the baseline. Equal names are numbered; several seeds of a row, beside other rows, are averaged.
        baseline: name of another baseline.
        **named: further results, by the name to show them with.

    Raises:
        ValueError: fewer than two results, an unknown baseline, or results on different images or with different settings.

    Examples:
        >>> plain = tfr.evaluate("zoo:digits/lenet_cross_entropy", evaluations="clean", subset=100)
        >>> robust = tfr.evaluate("zoo:digits/lenet_augmix", evaluations="clean", subset=100)
        >>> print(tfr.compare(plain=plain, robust=robust))
        Clean accuracy: robust 97.0%, +1.0 points [-1.0, 3.0] vs plain, not significant.
        Measured on: 100 images, 1 seed; 95% intervals: paired over the images.
    """
    for result in (*results, *named.values()):
        if not isinstance(result, Result):
            raise ValueError(f"Expected results of tfr.train or tfr.evaluate. Received: {result!r}. Try: tfr.evaluate of it")
    chosen = [*results, *(_changed(result, row=name) for name, result in named.items())]
    if len(chosen) < 2:
        raise ValueError(f"Expected at least two results to compare. Received: {len(chosen)}")
    one_row = len({result.evaluation["row"] for result in chosen}) == 1
    keys = [(result.evaluation["row"], None if one_row else result.evaluation["seed"]) for result in chosen]
    for number, (result, key) in enumerate(zip(chosen, keys)):
        if key in keys[:number]:
            chosen[number] = _changed(result, row=f"{key[0]} ({keys[: number + 1].count(key)})")
    if len({result.evaluation["row"] for result in chosen}) == len(chosen):  # pairs have one seed
        chosen = [_changed(result, seed=chosen[0].evaluation["seed"]) for result in chosen]
    return Comparison(chosen, baseline or chosen[0].evaluation["row"])


def _changed(result, **fields):
    """The result with another name or seed in tables; it shares the folder, which lives as long as either."""
    return Result(result.folder, {**result.evaluation, **fields}, result._model, result._temporary)


def _evaluations(results):
    return [{**result.evaluation, "measured_in": result.folder} for result in results]


def _table(results: Iterable[Result], baseline: str | None = None) -> Table:
    return report.aggregate(_evaluations(results), baseline=baseline, per_image=evaluation.PerImage())


def _write_report(path, results, title, baseline=None):
    from tf_robust.report import comparison  # imports altair, which takes more than half a second

    with tempfile.TemporaryDirectory() as folder:
        comparison.write_report(folder, _evaluations(results), title=title, command="tf_robust in Python", suite={"baseline": baseline})
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        shutil.copyfile(os.path.join(folder, "report.html"), path)
    return path


def _to_html(table):
    """Returns the summary and the headline metrics of a table, for notebooks."""
    cells = {key: entry["mean"] for key, entry in table["cells"].items()}
    frame = pandas.DataFrame({row: {name: cells.get((row, name)) for name in table["headlines"]} for row in table["order"]})
    lines = "".join(f"<p>{html.escape(line)}</p>" for line in report.summary_lines(table))
    return lines + frame.to_html(float_format="{:.4f}".format)
