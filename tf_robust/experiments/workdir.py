"""The folder of one run: claimed by one process, bound to its flags, never half written.

It holds `flags.txt`, `environment.json`, `checkpoints/`, `history.json`, `tensorboard/`, `saved_model/`,
`evaluation.json`, `figures/`, `report.html` and `report.md`.
"""

import contextlib
import logging
import os

from tf_robust.experiments.compatibility import current_flags
from tf_robust.utils import environment
from tf_robust.utils.files import atomic_file, clear_unfinished, read_json, write_json
from tf_robust.utils.locks import WorkdirLocked, file_lock


@contextlib.contextmanager
def claimed(folder, flags, defaults=None, free=()):
    """Holds `folder` for one run with these flags.

    Args:
        folder: made if it is missing. flags: {name: text}, what the run depends on. defaults: {name: text}, what a flag
            counts as where it is not written down. free: names that may differ.

    Raises:
        PermissionError: it cannot be written. ValueError: it was started with other flags; shows the difference.
        WorkdirLocked: another process is at it.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(file_lock(os.path.join(folder, "lock"), wait=False))
        except WorkdirLocked as error:
            raise WorkdirLocked(f"Another process is working in {folder}") from error
        except OSError as error:
            raise PermissionError(f"Expected a workdir that can be written. Received: {folder} ({error.strerror})") from error
        # not below: another run's workdir may be there
        clear_unfinished(folder, *(os.path.join(folder, name) for name in ("checkpoints", "saved_model", "figures")))
        _bind(folder, flags, defaults or {}, free)
        try:
            yield folder
        except BaseException:
            if not any(os.path.isdir(os.path.join(folder, name)) for name in ("checkpoints", "saved_model")):
                # nothing came of it: the flags do not bind
                os.remove(os.path.join(folder, "flags.txt"))
            raise


def recorded_flags(path):
    """Returns the flags of a `flags.txt` as {name: text}; those of earlier versions under their present names.

    Raises:
        ValueError: a line is not --NAME=VALUE.
    """
    return current_flags(_read_flags(path))


def recorded_arguments(path):
    """Returns the command-line arguments that repeat a `flags.txt`: its flagfile, or its flags where an earlier version wrote it.

    Raises:
        ValueError: as of `recorded_flags`.
    """
    flags = _read_flags(path)
    current = current_flags(flags)
    return [f"--flagfile={path}"] if current == flags else [f"--{name}={text}" for name, text in current.items()]


def _read_flags(path):
    try:
        with open(path, encoding="utf-8") as file:
            return dict(line.strip().removeprefix("--").split("=", 1) for line in file if line.startswith("--"))
    except ValueError as error:
        raise ValueError(
            f"Expected lines --NAME=VALUE in {path}. Received a damaged file ({error}). Try: restore it, or another --workdir"
        ) from error


def _bind(folder, flags, defaults, free):
    path, here = os.path.join(folder, "flags.txt"), environment.describe()
    if os.path.exists(path):
        before = recorded_flags(path)
        then, now = ({**defaults, **texts} for texts in (before, flags))
        differing = [
            f"  --{name}: {then.get(name)} there, {now.get(name)} now"
            for name in sorted({*before, *flags} - {*free})
            if then.get(name) != now.get(name)
        ]
        if differing:
            raise ValueError(
                f"{folder} was started with other flags:\n" + "\n".join(differing) + "\nUse the same flags to go on, or another --workdir."
            )
        then = read_json(os.path.join(folder, "environment.json"))
        for key in here:
            if then.get(key) != here[key]:
                logging.warning(
                    "%s was started with %s = %s, now it is %s: a resumed run will not be bit-identical.",
                    folder,
                    key,
                    then.get(key),
                    here[key],
                )
        return
    write_json(os.path.join(folder, "environment.json"), here)
    with atomic_file(path) as file:
        file.writelines(f"--{name}={value}\n" for name, value in sorted(flags.items()))
