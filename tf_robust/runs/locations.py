"""Folders and row names of runs."""

import collections
import dataclasses
import os
import re
from collections.abc import Sequence

from tf_robust.evaluation import EvalConfig
from tf_robust.report.tables import ADAPTED
from tf_robust.runs.run import Run
from tf_robust.runs.workdir import recorded_flags


def folder_name(data: str) -> str:
    """Returns the name of a data set or model without characters that a folder name cannot have."""
    return data.replace(":", "_").replace("/", "_")


def seed_folder(workdir: str, run: Run, count: int) -> str:
    """Returns the folder of one of `count` runs: with several seeds a subfolder of the workdir."""
    return os.path.join(workdir, f"seed_{run.seed}") if count > 1 else workdir


def row_name(model: str) -> str:
    """Returns the row of a model: the name of its file or folder; for the export of a run that of its workdir, without `seed_N`."""
    return _parts(model)[-1].removesuffix(".keras").replace(":", "-") or "model"


def _parts(model):
    """The parts of a model's path that name it: without `saved_model` and `seed_N`."""
    parts = [part for part in os.path.abspath(model).split(os.sep) if part != "saved_model" and not re.fullmatch(r"seed_\d+", part)]
    return parts if any(parts) else ["model"]


def with_distinct_rows(evaluations: Sequence[dict]) -> list[dict]:
    """Returns evaluations in which different models of one row name have as much of their paths in their names as they differ in, those
    with test-time adaptation are named so where others are without, and several evaluations of one model have the names of their folders.

    Models of several folders are seeds of one row if their seeds differ and their training has the same settings otherwise.

    Args:
        evaluations: as in `evaluation.json`.
    """
    adapted = ["adaptation" in one.get("card", {}) for one in evaluations]
    if not all(adapted):
        evaluations = [{**one, "row": one["row"] + ADAPTED} if own else one for own, one in zip(adapted, evaluations)]
    groups: dict[tuple, list[dict]] = {}
    for one in evaluations:
        groups.setdefault((one["row"], one["data"], one["split"]), []).append(one)
    colliding = {row for (row, *_), members in groups.items() if not _are_seeds(members)}
    named = [{**one, "row": _distinct_name(one, groups)} if one["row"] in colliding else one for one in evaluations]
    return _named_by_folder(named)


def _are_seeds(evaluations):
    """Whether evaluations are of one model, or of models of one training that differ in their seeds."""
    models = {(one["seed"], tuple(_parts(one["saved_model"]))) for one in evaluations}
    if len({path for _, path in models}) == 1:
        return True
    if len({seed for seed, _ in models}) < len(models):
        return False
    settings = [_training_settings(one) for one in evaluations]
    common = set.intersection(*(set(flags) for flags in settings))
    return bool(common) and len({tuple(flags[name] for name in sorted(common)) for flags in settings}) == 1


def _training_settings(evaluation):
    """{flag: value} of the training of an evaluated model, without seeds; {} for models from elsewhere."""
    folders = evaluation.get("measured_in", ""), os.path.dirname(evaluation["saved_model"])
    path = next((path for folder in folders if os.path.exists(path := os.path.join(folder, "flags.txt"))), None)
    if path is None:
        return {}
    measuring = {field.name for field in dataclasses.fields(EvalConfig)}
    flags = recorded_flags(path)
    return {name: re.sub(r"seed_\d+", "", value) for name, value in flags.items() if name not in {"seeds", *measuring}}


def _named_by_folder(evaluations):
    """The same, with the names of their folders where a row was evaluated several times, with one seed."""
    measured = collections.Counter((one["row"], row["metric"]) for one in evaluations for row in one["rows"])
    repeated = {
        row for (row, _), count in measured.items() if count > 1 and len({one["seed"] for one in evaluations if one["row"] == row}) == 1
    }
    folders = {row: {_folder(one) for one in evaluations if one["row"] == row} for row in repeated}
    return [
        {**one, "row": f"{one['row']} ({_shortest_end(_folder(one), folders[one['row']])})"} if one["row"] in repeated else one
        for one in evaluations
    ]


def _folder(evaluation):
    return tuple(os.path.abspath(evaluation.get("measured_in", evaluation["saved_model"])).split(os.sep))


def _shortest_end(path, paths):
    """The last parts of a path, as many as tell it apart from the others of some paths."""
    for count in range(1, len(path)):
        if len({other[-count:] for other in paths}) == len(paths):
            break
    return "/".join(path[-count:])


def _distinct_name(evaluation, groups):
    """The last parts of the path of a model, as many as tell all models of its row apart."""
    count = 1
    for (row, *_), members in groups.items():
        paths = {tuple(_parts(one["saved_model"])) for one in members} if row == evaluation["row"] else set()
        while len({path[-count:] for path in paths}) < len(paths):
            count += 1
    return "/".join(_parts(evaluation["saved_model"])[-count:])
