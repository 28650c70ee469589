"""Folder of one run: held by one process at a time, and tied to the flags of the run.

It has `flags.txt`, `environment.json`, `checkpoints/`, `history.json`, `tensorboard/`, `saved_model/`,
`evaluation.json`, `figures/`, `report.html` and `report.md`.
"""

import contextlib
import logging
import os
from collections.abc import Collection, Iterator, Mapping

from tf_robust.integrations import tracking
from tf_robust.training import checkpoints
from tf_robust.utils import environment
from tf_robust.utils.files import atomic_file, clear_unfinished, read_json, write_json
from tf_robust.utils.locks import held


@contextlib.contextmanager
def claim(folder: str, flags: Mapping[str, str], defaults: Mapping[str, str] | None = None, free: Collection[str] = ()) -> Iterator[str]:
    """Holds a folder for one run with given flags.

    Args:
        folder: created if missing.
        flags: {name: text} on which the run depends.
        defaults: {name: text} of flags that are not recorded.
        free: names of flags that may differ.

    Raises:
        PermissionError: the folder is not writable.
        ValueError: the run was started with other flags; the message has the differences.
        WorkdirLocked: another process holds the folder.
    """
    _check_flags(folder, flags, defaults or {}, free)  # rather than after waiting for another process
    with held(folder):
        # not recursively: subfolders may be workdirs of other runs
        clear_unfinished(folder, *(os.path.join(folder, name) for name in ("checkpoints", "saved_model", "figures")))
        _bind(folder, flags, defaults or {}, free)
        try:
            yield folder
        except BaseException:
            results = (os.path.exists(os.path.join(folder, name)) for name in ("saved_model", "evaluation.json"))
            if not checkpoints.existing(os.path.join(folder, "checkpoints")) and not any(results):
                for name in ("flags.txt", tracking.RUN_IDS):  # without results the flags are not binding
                    with contextlib.suppress(FileNotFoundError):
                        os.remove(os.path.join(folder, name))
            raise


def write_flags(folder: str, flags: Mapping[str, str]) -> None:
    """Writes `flags.txt`, which repeats a run as a flagfile."""
    with atomic_file(os.path.join(folder, "flags.txt")) as file:
        file.writelines(f"--{name}={value}\n" for name, value in sorted(flags.items()))


def bind_inputs(folder: str, inputs: Mapping[str, str]) -> None:
    """Writes what a training depends on besides its flags beside its checkpoints, and checks it when the training resumes.

    Args:
        folder: of the checkpoints.
        inputs: {name: text}.

    Raises:
        ValueError: there are checkpoints of a training with other inputs; the message has the differences.
    """
    path = os.path.join(folder, "inputs.json")
    if checkpoints.existing(folder):
        before = read_json(path) if os.path.exists(path) else {}
        differing = [
            f"  {name}: {before[name]} then, {inputs[name]} now" for name in inputs if before.get(name, inputs[name]) != inputs[name]
        ]
        if differing:
            raise ValueError(
                "\n".join([f"The training of {os.path.dirname(folder)} was started with other data or weights:", *differing])
                + f"\nTry: those of its start to resume, or another --workdir; or delete {folder} to start again."
            )
    write_json(path, {**inputs})


def recorded_flags(path: str) -> dict[str, str]:
    """Returns the flags of a `flags.txt` as {name: text}.

    Raises:
        ValueError: a line is not --NAME=VALUE.
    """
    try:
        with open(path, encoding="utf-8") as file:
            return dict(line.strip().removeprefix("--").split("=", 1) for line in file if line.startswith("--"))
    except ValueError as error:
        raise ValueError(
            f"Expected lines --NAME=VALUE in {path}. Received: a damaged file ({error}). Try: restore it, or another --workdir"
        ) from error


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
            logging.warning(
                "%s was started with %s = %s, now it is %s: a resumed run will not be bit-identical.",
                folder,
                key,
                recorded.get(key),
                version,
            )


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
