"""Suites: a folder of flagfiles describes a table, with one row per file. Reads tables."""

import glob
import os
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from tf_robust.report.evaluated_model import EvaluatedModel
from tf_robust.runs.run import Run
from tf_robust.utils.errors import RunFailed, message_of, unknown
from tf_robust.utils.files import read_json, write_json

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
        which this table, which has no flagfiles, averages: {metric of the mean: metric of that suite}}.

    Raises:
        FileNotFoundError: there are no flagfiles.
        ValueError: `suite.json` is invalid.
    """
    path = folder.rstrip("/") if os.path.isdir(folder) else os.path.join(home, folder.rstrip("/"))
    rows = sorted(os.path.basename(file).removesuffix(".flags") for file in glob.glob(os.path.join(path, "*.flags")))
    suite_file = os.path.join(path, "suite.json")
    description = _read_description(suite_file) if folder and os.path.exists(suite_file) else {}
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
    first = [row for row in table["rows"] if row in rows]
    return path, [*first, *(row for row in rows if row not in first)], table


def _read_description(path):
    """The content of a `suite.json`."""
    content = read_json(path, advice="Try: docs/run.md lists its keys")
    if names := content.keys() - _SCHEMA["properties"].keys():
        raise unknown(f"key in {path}", min(names), _SCHEMA["properties"])
    return read_json(path, _SCHEMA, advice="Try: docs/run.md describes the values of its keys")


def check_images_match(runs: Sequence[Run]) -> None:
    """Checks that runs of one table evaluate on the same images.

    Raises:
        ValueError: two runs have the same evaluation on different images.
    """
    first: dict[str, tuple[Run, dict]] = {}
    for run in runs:
        for evaluation in run.config.evaluation.evaluations:
            images = {name: getattr(run.config.data, name) for name in ("data", "image_size", "image_fit")}
            images |= {name: getattr(run.config.evaluation, name) for name in ("evaluation_split", "subset")}
            if evaluation in ("adversarial", "attack_curves", "certified"):
                images["attack_subset"] = run.config.evaluation.attack_subset
            other, before = first.setdefault(evaluation, (run, images))
            differing = [f"{name} ({before[name]} and {images[name]})" for name in images if before[name] != images[name]]
            if differing:
                raise ValueError(
                    f"Expected rows with the same images. Received: {other.row} and {run.row}, which differ "
                    f"in {', '.join(differing)} and both have the evaluation {evaluation!r}. Try: the same value for all "
                    f"rows on the command line, or separate folders"
                )


def evaluate_models(models: Mapping[str, Callable[[], EvaluatedModel]], workdir: str) -> tuple[list[dict], list[str]]:
    """Evaluates the models of a suite, and continues after models that are missing or unsuitable.

    Args:
        models: {row: function that returns its model}.
        workdir: gets a folder per row.

    Returns:
        The evaluations, and messages about the rows that failed.

    Raises:
        ValueError: all rows failed.
    """
    evaluations: list[dict] = []
    failures: list[str] = []
    for row, load in models.items():
        folder = os.path.join(workdir, row)
        try:
            model = load()
            print(f"{row}: {folder}", flush=True)
            evaluations.append({**model.evaluate(folder).content, "measured_in": folder})
            write_json(os.path.join(folder, "evaluation.json"), evaluations[-1])
        except (ValueError, OSError, tf.errors.OpError) as error:
            failures.append(f"{row} failed: {message_of(error)}")
            print(f"  FAILED: {message_of(error)}", flush=True)
    if not evaluations:
        raise RunFailed("\n".join(["All rows failed.", *failures]))
    return evaluations, failures
