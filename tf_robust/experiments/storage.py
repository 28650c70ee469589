"""Workdirs in an object store, such as s3://BUCKET/PATH or gs://BUCKET/PATH, by fsspec.

Runs work in a local folder, `runs/s3/BUCKET/PATH`. Finished results are copied to the store, all but checkpoints, and those that are in the
store already are fetched first, so that suites and reports find them. The folder of a run is copied when the run ends, its evaluation
last: in the store too, a run with an evaluation is complete. What could not be copied is copied by the next command with this workdir.
"""

import contextlib
import os
import re
import uuid
from collections.abc import Iterator

from absl.flags import FlagValues

from tf_robust.experiments.command_checks import is_url
from tf_robust.utils.errors import message_of
from tf_robust.utils.files import read_json, write_json

COMMANDS = ("train", "suite", "sweep", "evaluate", "attack", "report")
_URL, _COPIED = "storage.json", "copied.json"  # {"url": ...} in the local workdir; {file: [bytes, time]} in each folder that was copied
_EVALUATION = "evaluation.json"
_LOCAL = {"checkpoints", "locks", "slurm", "lock", _URL, _COPIED}  # files and folders that are not copied
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}


def local_folder(url: str) -> str:
    """Returns the local folder of a URL."""
    return os.path.join("runs", *url.strip("/").replace("://", "/").split("/"))


@contextlib.contextmanager
def local_workdir(command: str, values: FlagValues) -> Iterator[None]:
    """Opens a context in which the flags `workdir` and `runs` have local folders in place of URLs, and finished results are copied.

    Args:
        command: its name.
        values: parsed flags, which are changed.

    Raises:
        ValueError: a command whose results are not copied, or an unknown kind of URL.
        ImportError: the package for the store is not installed.
        ConnectionError: the store does not answer or refuses to read or write; results stay in the local folder.
    """
    if is_url(values.workdir) and command not in COMMANDS:
        raise ValueError(f"Expected a local --workdir with {command}. Received: {values.workdir}. Stores take: {', '.join(COMMANDS)}")
    values.runs = [_fetched_pattern(pattern) if is_url(pattern) else pattern for pattern in values.runs]
    if not is_url(values.workdir):
        yield
        return
    url, folder = values.workdir.rstrip("/"), local_folder(values.workdir)
    _check_writable(url, folder)
    fetch(url, folder)
    os.makedirs(folder, exist_ok=True)
    write_json(os.path.join(folder, _URL), {"url": url})
    values.workdir = folder
    try:
        yield
    finally:
        outcomes = [_copy(part) for part in (*_finished(folder), folder)]
        if failures := [message for _, message in outcomes if message]:
            raise ConnectionError(
                f"Expected a store that takes the results. Received: {failures[0]}. They are in {folder}. Try: the same command, which "
                "copies what is missing"
            )
        if count := sum(count for count, _ in outcomes):
            print(f"Copied to {url}: {count} files")


def copy_finished(folder: str) -> None:
    """Copies the folder of a finished run, if its workdir has a URL. If the store refuses it, the end of the command tries again."""
    if message := _copy(folder)[1]:
        print(f"  Note: not copied yet: {message}", flush=True)


def fetch(url: str, folder: str) -> None:
    """Copies the finished runs below a URL, all that the folder does not have."""
    files, path = _file_system(url)
    with _reached(url):
        names = {os.path.relpath(name, path): name for name in files.find(path)}
    finished = sorted((os.path.dirname(name) for name in names if os.path.basename(name) == _EVALUATION), key=len, reverse=True)
    for part in finished:  # inner ones first: those of `evaluate` in a run
        own = [name for name in names if os.path.dirname(name) == part or name.startswith(f"{part}/") or not part]
        target = os.path.join(folder, part) if part else folder
        if not os.path.exists(os.path.join(target, _EVALUATION)):
            print(f"  fetched {url}/{part}", flush=True)
            for name in sorted(own, key=lambda name: os.path.basename(name) == _EVALUATION):
                os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
                with _reached(url):
                    files.get_file(names[name], os.path.join(folder, name))
            write_json(os.path.join(target, _COPIED), _stamps(target))


def _fetched_pattern(pattern):
    """The local pattern for one of URLs, below which finished runs are fetched."""
    fixed = re.split(r"[*?\[]", pattern)[0]
    url = fixed.rstrip("/") if fixed == pattern else fixed.rpartition("/")[0]
    fetch(url, local_folder(url))
    return local_folder(url) + pattern.rstrip("/")[len(url) :]


def _copy(folder):
    """Copies the files of a folder that are new or changed. Returns their number, and a message if that fails, else an empty text."""
    root = os.path.abspath(folder)
    while not os.path.exists(os.path.join(root, _URL)):
        if root == os.path.dirname(root):
            return 0, ""  # not in a workdir with a URL
        root = os.path.dirname(root)
    url, path = read_json(os.path.join(root, _URL))["url"], os.path.join(folder, _COPIED)
    stamps, copied = _stamps(folder), read_json(path) if os.path.exists(path) else {}
    changed = [name for name in stamps if copied.get(name) != stamps[name]]
    target = "/".join([url, *os.path.relpath(os.path.abspath(folder), root).split(os.sep)]).removesuffix("/.")
    try:
        files, remote = _file_system(target)
        for name in sorted(changed, key=lambda name: name == _EVALUATION):
            files.put_file(os.path.join(folder, name), f"{remote}/{name}")
    except Exception as error:  # of the network or the store, in the classes of each package
        return 0, f"{target} ({message_of(error)})"
    write_json(path, stamps)
    return len(changed), ""


def _stamps(folder):
    """{file: [bytes, time of the last change]} of a folder, without those of finished runs in it and those that stay local."""
    stamps = {}
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in _LOCAL and not os.path.exists(os.path.join(parent, name, _EVALUATION))]
        for name in set(names) - _LOCAL:
            path = os.path.join(parent, name)
            stamps[os.path.relpath(path, folder)] = [os.path.getsize(path), os.stat(path).st_mtime_ns]
    return stamps


def _finished(folder):
    """The folders of finished runs below a folder."""
    return [parent for parent, _, names in os.walk(folder) if _EVALUATION in names and parent != folder]


def _file_system(url):
    import fsspec

    try:
        return fsspec.core.url_to_fs(url)
    except ImportError as error:
        kind = url.partition("://")[0]
        extra = f"'tf_robust[{_EXTRAS[kind]}]'" if kind in _EXTRAS else "the package that the message names"
        raise ImportError(f"Expected the package for {url}. Not installed ({error}). Try: pip install {extra}") from error


def _check_writable(url, folder):
    files, path = _file_system(url)
    name = f"{path}/write_check_{uuid.uuid4().hex}"
    with _reached(url):
        files.pipe_file(name, b"")
        files.rm_file(name)


@contextlib.contextmanager
def _reached(url):
    try:
        yield
    except Exception as error:  # of the network or the store, in the classes of each package
        raise ConnectionError(
            f"Expected a store that can be read and written. Received: {url} ({message_of(error)}). Try: its settings, such as AWS_PROFILE "
            "and AWS_ENDPOINT_URL"
        ) from error
