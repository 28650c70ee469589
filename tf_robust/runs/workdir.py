"""Folder of one run: held by one process at a time, and tied to the flags of the run. Names of folders and of rows.

It has `flags.txt`, `environment.json`, `checkpoints/`, `history.json`, `tensorboard/`, `saved_model/`,
`evaluation.json`, `figures/`, `report.html` and `report.md`.
"""

import collections
import contextlib
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
    """Holds a folder, created if missing, for one run with given flags, {name: text}; the flags `free` may differ from its start.

    `defaults`: those of flags that are not recorded. Raises ValueError for other flags, and WorkdirLocked if another process holds it.
    """
    _check_flags(folder, flags, defaults or {}, free)  # rather than after waiting for another process
    with held(folder):
        # not recursively: subfolders may be workdirs of other runs
        clear_unfinished(folder, *(os.path.join(folder, name) for name in ("checkpoints", "saved_model", "figures")))
        versions, path = environment.describe(), os.path.join(folder, "environment.json")
        if not _check_flags(folder, flags, defaults or {}, free):
            write_json(path, versions)
            write_flags(folder, flags)
        recorded = read_json(path) if os.path.exists(path) else versions
        for key, version in versions.items():
            if recorded.get(key) != version:
                message = "%s was started with %s = %s, now it is %s: a resumed run will not be bit-identical."
                logging.warning(message, folder, key, recorded.get(key), version)
        try:
            yield
        except BaseException:
            results = (os.path.exists(os.path.join(folder, name)) for name in ("saved_model", "evaluation.json"))
            if not checkpoints.existing(os.path.join(folder, "checkpoints")) and not any(results):
                for name in ("flags.txt", tracking.RUN_IDS):  # without results the flags are not binding
                    with contextlib.suppress(FileNotFoundError):
                        os.remove(os.path.join(folder, name))
            raise


def _check_flags(folder, flags, defaults, free):
    """Whether a run was started in a folder; raises ValueError if its flags were others."""
    path = os.path.join(folder, "flags.txt")
    if not os.path.exists(path):
        return False
    before = recorded_flags(path)
    old, new = {**defaults, **before}, {**defaults, **flags}
    names = sorted(name for name in {*before, *flags} - {*free} if old.get(name) != new.get(name))
    if names:
        differing = "\n".join(f"  --{name}: {old.get(name)} then, {new.get(name)} now" for name in names)
        raise ValueError(f"{folder} was started with other flags:\n{differing}\nTry: the same flags to resume, or another --workdir.")
    return True


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
        before = {**inputs, **(read_json(path) if os.path.exists(path) else {})}
        differing = "\n".join(f"  {name}: {before[name]} then, {now} now" for name, now in inputs.items() if before[name] != now)
        if differing:
            raise ValueError(
                f"The training of {os.path.dirname(folder)} was started with other data, weights or code:\n{differing}\n"
                f"Try: those of its start to resume, or another --workdir; or delete {folder} to start again."
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
    groups: dict[str, dict[tuple, list[dict]]] = {}  # {row: {data and split: evaluations}}
    for one in evaluations:
        groups.setdefault(one["row"], {}).setdefault((one["data"], one["split"]), []).append(one)
    paths = {
        row: [{_parts(one["saved_model"]) for one in members} for members in by_data.values()]
        for row, by_data in groups.items()
        if not all(map(_are_seeds, by_data.values()))
    }
    evaluations = [
        {**one, "row": _shortest_end(_parts(one["saved_model"]), paths[one["row"]])} if one["row"] in paths else one for one in evaluations
    ]
    counts = collections.Counter((one["row"], row["metric"]) for one in evaluations for row in one["rows"])
    folders, seeds = collections.defaultdict(set), collections.defaultdict(set)
    for one in evaluations:
        folders[one["row"]].add(_folder(one))
        seeds[one["row"]].add(one["seed"])
    repeated = {row for (row, _), count in counts.items() if count > 1 and len(seeds[row]) == 1}
    return [
        {**one, "row": f"{row} ({_shortest_end(_folder(one), [folders[row]])})"} if (row := one["row"]) in repeated else one
        for one in evaluations
    ]


def _are_seeds(evaluations):
    """Whether evaluations are of one model, or of models of one training that differ in their seeds."""
    models = {(one["seed"], _parts(one["saved_model"])) for one in evaluations}
    if len({path for _, path in models}) == 1:
        return True
    if len({seed for seed, _ in models}) < len(models):
        return False
    settings = [_training_settings(one) for one in evaluations]
    common = set.intersection(*map(set, settings))
    return bool(common) and all(one[name] == settings[0][name] for one in settings for name in common)


def _training_settings(evaluation):
    """{flag: value} of the training of an evaluated model, without seeds; {} for models from elsewhere."""
    for folder in (evaluation.get("measured_in", ""), os.path.dirname(evaluation["saved_model"])):
        if os.path.exists(path := os.path.join(folder, "flags.txt")):
            excluded = {"seeds", *vars(EvalConfig())}
            return {name: re.sub(r"seed_\d+", "", value) for name, value in recorded_flags(path).items() if name not in excluded}
    return {}


def _folder(evaluation):
    return tuple(os.path.abspath(evaluation.get("measured_in", evaluation["saved_model"])).split(os.sep))


def _shortest_end(path, groups):
    """The last parts of a path, as many as distinguish the paths of each group."""
    count = 1
    while any(len({other[-count:] for other in paths}) < len(paths) for paths in groups):
        count += 1
    return "/".join(path[-count:])
