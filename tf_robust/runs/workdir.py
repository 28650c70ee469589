"""Folder of one run: held by one process at a time, and tied to the flags of the run. Names of folders and of rows.

It has `flags.txt`, `environment.json`, `checkpoints/`, `history.json`, `tensorboard/`, `saved_model/`,
`evaluation.json`, `figures/`, `report.html` and `report.md`.
"""

import collections
import contextlib
import dataclasses
import logging
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from tf_robust.evaluation import EvalConfig
from tf_robust.integrations import tracking
from tf_robust.report.tables import ADAPTED
from tf_robust.training import checkpoints
from tf_robust.utils import environment, plugins
from tf_robust.utils.files import atomic_file, clear_unfinished, read_json, write_json
from tf_robust.utils.locks import held


@contextlib.contextmanager
def claim(folder: str, flags: Mapping[str, str], defaults: Mapping[str, str] | None = None, free: Collection[str] = ()) -> Iterator[None]:
    """Holds a folder, created if missing, for one run with given flags, {name: text}.

    `defaults` are those of flags that are not recorded; the flags `free` may differ. Raises ValueError with the differences if the run was
    started with other flags, and WorkdirLocked if another process holds the folder.
    """
    _check_flags(folder, flags, defaults or {}, free)  # rather than after waiting for another process
    with held(folder):
        # not recursively: subfolders may be workdirs of other runs
        clear_unfinished(folder, *(os.path.join(folder, name) for name in ("checkpoints", "saved_model", "figures")))
        _bind(folder, flags, defaults or {}, free)
        try:
            yield
        except BaseException:
            results = (os.path.exists(os.path.join(folder, name)) for name in ("saved_model", "evaluation.json"))
            if not checkpoints.existing(os.path.join(folder, "checkpoints")) and not any(results):
                for name in ("flags.txt", tracking.RUN_IDS):  # without results the flags are not binding
                    with contextlib.suppress(FileNotFoundError):
                        os.remove(os.path.join(folder, name))
            raise


def write_flags(folder: str, flags: Mapping[str, str]) -> None:
    """Writes `flags.txt`, which repeats a run as a flagfile, with the plugins that it may need."""
    flags = {**flags, "plugin": ",".join(plugins.named)} if plugins.named else flags
    with atomic_file(os.path.join(folder, "flags.txt")) as file:
        file.writelines(f"--{name}={value}\n" for name, value in sorted(flags.items()))


def bind_inputs(folder: str, inputs: Mapping[str, str]) -> None:
    """Writes the inputs of a training besides its flags, {name: text}, beside its checkpoints, in `folder`; raises ValueError if there are
    checkpoints of a training with other inputs."""
    path = os.path.join(folder, "inputs.json")
    if checkpoints.existing(folder):
        before = read_json(path) if os.path.exists(path) else {}
        differing = [
            f"  {name}: {before[name]} then, {inputs[name]} now" for name in inputs if before.get(name, inputs[name]) != inputs[name]
        ]
        if differing:
            raise ValueError(
                "\n".join([f"The training of {os.path.dirname(folder)} was started with other data, weights or code:", *differing])
                + f"\nTry: those of its start to resume, or another --workdir; or delete {folder} to start again."
            )
    write_json(path, {**inputs})


def recorded_flags(path: str) -> dict[str, str]:
    """Returns the flags of a `flags.txt` as {name: text}, and loads its plugins; raises ValueError if a line is not --NAME=VALUE."""
    try:
        with open(path, encoding="utf-8") as file:
            flags = dict(line.strip().removeprefix("--").split("=", 1) for line in file if line.startswith("--"))
    except ValueError as error:
        raise ValueError(
            f"Expected lines --NAME=VALUE in {path}. Received: a damaged file ({error}). Try: restore it, or another --workdir"
        ) from error
    plugins.load(flags.pop("plugin", "").split(","))
    return flags


def _bind(folder, flags, defaults, free):
    """Checks the flags and versions of an earlier start, or writes those of the first."""
    versions = environment.describe()
    if not _check_flags(folder, flags, defaults, free):
        write_json(os.path.join(folder, "environment.json"), versions)
        return write_flags(folder, flags)
    environment_file = os.path.join(folder, "environment.json")
    recorded = read_json(environment_file) if os.path.exists(environment_file) else versions
    for key, version in versions.items():
        if recorded.get(key) != version:
            message = "%s was started with %s = %s, now it is %s: a resumed run will not be bit-identical."
            logging.warning(message, folder, key, recorded.get(key), version)


def _check_flags(folder, flags, defaults, free):
    """Whether a run was started in a folder; raises ValueError if its flags were others."""
    path = os.path.join(folder, "flags.txt")
    if not os.path.exists(path):
        return False
    before = recorded_flags(path)
    old, new = ({**defaults, **texts} for texts in (before, flags))
    differing = [
        f"  --{name}: {old.get(name)} then, {new.get(name)} now"
        for name in sorted({*before, *flags} - {*free})
        if old.get(name) != new.get(name)
    ]
    if differing:
        raise ValueError(
            f"{folder} was started with other flags:\n" + "\n".join(differing) + "\nTry: the same flags to resume, or another --workdir."
        )
    return True


def folder_name(data: str) -> str:
    """Returns the name of a data set or model without characters that a folder name cannot have."""
    return data.replace(":", "_").replace("/", "_")


def row_name(model: str) -> str:
    """Returns the row of a model: the name of its file or folder; for the export of a run that of its workdir, without `seed_N`."""
    return _parts(model)[-1].removesuffix(".keras").replace(":", "-") or "model"


def _parts(model):
    """The parts of a model's path that name it: without `saved_model` and `seed_N`."""
    parts = [part for part in os.path.abspath(model).split(os.sep) if part != "saved_model" and not re.fullmatch(r"seed_\d+", part)]
    return tuple(parts) if any(parts) else ("model",)


def with_distinct_rows(evaluations: Sequence[dict]) -> list[dict]:
    """Returns evaluations in which different models of one row name have as much of their paths in their names as they differ in, those
    with test-time adaptation are named so where others are without, and several evaluations of one model have the names of their folders.

    Models of several folders are seeds of one row if their seeds differ and their training has the same settings otherwise.
    """
    adapted = ["adaptation" in one.get("card", {}) for one in evaluations]
    if not all(adapted):
        evaluations = [{**one, "row": one["row"] + ADAPTED} if own else one for own, one in zip(adapted, evaluations)]
    groups: dict[tuple, list[dict]] = {}
    for one in evaluations:
        groups.setdefault((one["row"], one["data"], one["split"]), []).append(one)
    colliding = {row for (row, *_), members in groups.items() if not _are_seeds(members)}
    named = []
    for one in evaluations:
        if one["row"] in colliding:
            paths = [{_parts(member["saved_model"]) for member in of_row} for (row, *_), of_row in groups.items() if row == one["row"]]
            one = {**one, "row": _shortest_end(_parts(one["saved_model"]), paths)}
        named.append(one)
    return _named_by_folder(named)


def _are_seeds(evaluations):
    """Whether evaluations are of one model, or of models of one training that differ in their seeds."""
    models = {(one["seed"], _parts(one["saved_model"])) for one in evaluations}
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
    named = []
    for one in evaluations:
        if (row := one["row"]) in repeated:
            one = {**one, "row": f"{row} ({_shortest_end(_folder(one), [folders[row]])})"}
        named.append(one)
    return named


def _folder(evaluation):
    return tuple(os.path.abspath(evaluation.get("measured_in", evaluation["saved_model"])).split(os.sep))


def _shortest_end(path, groups):
    """The last parts of a path, as many as tell the paths of each group apart."""
    count = 1
    while any(len({other[-count:] for other in paths}) < len(paths) for paths in groups):
        count += 1
    return "/".join(path[-count:])
