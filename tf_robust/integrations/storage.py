"""Workdirs in an object store, such as s3://BUCKET/PATH or gs://BUCKET/PATH, by fsspec.

Runs work in a local folder, `runs/s3/BUCKET/PATH`. Finished results are copied to the store, all but checkpoints, and those that are in the
store already are fetched first, so that suites and reports find them. The folder of a run is copied when the run ends, its evaluation
last: in the store too, a run with an evaluation is complete. What could not be copied is copied by the next command with this workdir.
"""

import contextlib
import fnmatch
import os
import pathlib
import re
import threading
import uuid
from collections.abc import Iterator

from tf_robust.evaluation.recording import PER_IMAGE
from tf_robust.utils.errors import message_of
from tf_robust.utils.files import is_run, read_json, write_json
from tf_robust.utils.progress import print_line, print_note

_STORE = "storage.json"  # {"url", "folder"} in the local workdir
_COPIED = "copied.json"  # {file: [bytes, time of the last change]} in each folder that was copied
_EVALUATION = "evaluation.json"
_SAVED_MODEL = "saved_model.pb"
_LOCAL = {"checkpoints", "locks", "slurm", "wandb", "lock", _STORE, _COPIED}  # files and folders that are not copied
_WRITING = re.compile(r"\.writing-\d+(-[0-9a-f]{8})?$")  # files that are not complete
_SECONDS = 20.0  # until a store answers
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}


def local_folder(url: str) -> str:
    """Returns the local folder of a URL."""
    return os.path.join("runs", *url.strip("/").replace("://", "/").split("/"))


@contextlib.contextmanager
def copied(url: str, folder: str) -> Iterator[None]:
    """Opens a context in which finished results of a local folder are copied to the URL of the workdir, with those that it has already.

    Raises ValueError for an unknown kind of URL, ImportError without the package for the store, and ConnectionError if the store does not
    answer or refuses to read or write; results stay in the local folder.
    """
    files, root = _file_system(url)
    name = f"{root}/write_check_{uuid.uuid4().hex}"
    with _reached(url):
        files.pipe_file(name, b"")
        files.rm_file(name)
    fetch(url, folder)
    os.makedirs(folder, exist_ok=True)
    write_json(os.path.join(folder, _STORE), {"url": url, "folder": os.path.abspath(folder)})
    try:
        yield
    except BaseException:
        try:
            _copy_all(url, folder)
        except ConnectionError as error:  # the first error is the one that counts
            print_line(str(error))
        raise
    _copy_all(url, folder)


def copy_finished(folder: str) -> None:
    """Copies the folder of a finished run, if its workdir has a URL. If the store refuses it, the end of the command tries again."""
    if message := _copy(folder):
        print_note(f"not copied yet: {message}", repeat=True)


def fetch(url: str, folder: str, pattern: str = "") -> int:
    """Copies finished runs below a URL: those that the folder does not have, and those that have changed in the store alone.

    `pattern`: glob pattern of the URLs of the runs; empty: all. Returns the number of finished runs in the store.
    """
    files, root = _file_system(url)
    with _reached(url):
        names = [name.removeprefix(root).strip("/") for name in files.find(root)]
    parts = [name.removesuffix(_EVALUATION).strip("/") for name in names if name.rpartition("/")[2] == _EVALUATION]
    wanted = [part for part in parts if not pattern or fnmatch.fnmatch(f"{url}/{part}".rstrip("/"), pattern)]
    for part in wanted:
        target = os.path.join(folder, *part.split("/")) if part else folder
        if not _is_outdated(target, files, "/".join(filter(None, (root, part, _EVALUATION)))):
            continue
        inner = [f"{other}/" for other in parts if other != part and other.startswith(f"{part}/" if part else "")]
        own = [name for name in names if name.startswith(f"{part}/" if part else "") and not name.startswith(tuple(inner))]
        for name in sorted(own, key=lambda name: name.rpartition("/")[2] == _EVALUATION):
            _fetch_file(files, f"{root}/{name}", os.path.join(folder, *name.split("/")))
        write_json(os.path.join(target, _COPIED), _stamps(target))
        print_line(f"  fetched {url}/{part}".rstrip("/"))
    return len(wanted)


def fetch_runs(pattern: str) -> str:
    """Returns the local pattern for one of URLs; finished runs that match it are fetched. Raises FileNotFoundError if none matches."""
    fixed, pattern = re.split(r"[*?\[]", pattern)[0], pattern.rstrip("/")
    url = pattern if fixed.rstrip("/") == pattern else fixed.rpartition("/")[0]
    if not fetch(url, local_folder(url), pattern):
        raise FileNotFoundError(f"Expected finished runs, with an evaluation.json. Received: {pattern}, which matches none")
    return local_folder(url) + pattern[len(url) :]


def fetch_model(url: str) -> str:
    """Returns the local path of a run, a SavedModel or a model file of a store, whose files are fetched.

    Raises FileNotFoundError if there is none, and ValueError for several runs.
    """
    url = url.rstrip("/")
    files, root = _file_system(url)
    with _reached(url):
        names = files.find(root)
    if f"{root}/{_EVALUATION}" in names:
        fetch(url, local_folder(url), url)
        return local_folder(url)
    runs = [name.removesuffix(f"/{_EVALUATION}").removeprefix(root) for name in names if name.endswith(f"/{_EVALUATION}")]
    if runs:
        raise ValueError(f"Expected the URL of one run. Received: {url}, which holds {len(runs)}. Try: {url}{runs[0]}")
    if not (names == [root] or f"{root}/{_SAVED_MODEL}" in names):
        raise FileNotFoundError(f"Expected a model: a finished run, a SavedModel or a file of a model. Not found: {url}")
    local = local_folder(url)
    paths = {name: os.path.join(local, *filter(None, name.removeprefix(root).split("/"))) for name in names}
    cards = {f"{root}.json": f"{local}.json", f"{root.rpartition('/')[0]}/harden.json": os.path.join(os.path.dirname(local), "harden.json")}
    with _reached(url):  # the cards say on which images the model was trained
        paths |= {name: path for name, path in cards.items() if files.exists(name)}
    for name, path in paths.items():
        _fetch_file(files, name, path)
    return local


def _is_outdated(folder, files, name):
    """Whether the evaluation in a folder is missing, or unchanged since it was copied and not the one in the store."""
    path = os.path.join(folder, _EVALUATION)
    if not os.path.exists(path):
        return True
    if _copied(folder).get(_EVALUATION) != _stamps(folder).get(_EVALUATION):
        return False
    with open(path, "rb") as file, _reached(name):
        return file.read() != files.cat_file(name)


def _fetch_file(files, name, path):
    """Downloads a file under another name first: what is interrupted is not taken for complete."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    part = f"{path}.writing-{os.getpid()}"
    with _reached(name):
        files.get_file(name, part)
    os.replace(part, path)


def _copy_all(url, folder):
    """Copies what is finished in a workdir. Raises ConnectionError if the store refuses something."""
    parts = [parent for parent, _, names in os.walk(folder) if _EVALUATION in names and parent != folder]
    if not is_run(folder) or os.path.exists(os.path.join(folder, _EVALUATION)):  # else an unfinished run
        parts.append(folder)
    try:
        _file_system(url)
        messages = {part: _copy(part) for part in parts}
    except ConnectionError as error:  # it does not answer: once, not for each run
        messages = dict.fromkeys(parts, f"{url} ({error})")
    failures = [message for part, message in messages.items() if message and _copied(part) != _stamps(part)]
    if failures:
        raise ConnectionError(
            f"Expected a store that accepts the results. Received: {failures[0]}. They are in {folder}. Try: the same command, which "
            "copies what is missing"
        )
    print_line(f"Results are in {url}")


def _copy(folder):
    """Copies the files of a folder that the store lacks or that are changed. Returns a message if that fails, else an empty text."""
    url, root = _store_of(folder)
    if not url:
        return ""
    target = "/".join([url, *os.path.relpath(os.path.abspath(folder), root).split(os.sep)]).removesuffix("/.")
    try:
        files, remote = _file_system(target)
        stored = {name.removeprefix(remote).strip("/") for name in files.find(remote)}
        stamps, copied = _stamps(folder), _copied(folder)
        changed = [name for name in stamps if copied.get(name) != stamps[name] or name not in stored]
        for name in sorted(changed, key=lambda name: name == _EVALUATION):
            files.put_file(os.path.join(folder, *name.split("/")), f"{remote}/{name}")
        for name in stored & copied.keys() - stamps.keys():
            if name.startswith(f"{PER_IMAGE}/"):  # of an earlier evaluation: the files of a set are read together
                files.rm_file(f"{remote}/{name}")
        write_json(os.path.join(folder, _COPIED), stamps)
    except Exception as error:  # of the network or the store, in the classes of each package
        return f"{target} ({message_of(error)})"
    return ""


def _store_of(folder):
    """(URL, local workdir) of the workdir that a folder is in; empty texts if it is in none with a URL."""
    for root in (path := pathlib.Path(os.path.abspath(folder)), *path.parents):
        if (root / _STORE).exists() and (found := read_json(root / _STORE)).get("folder") == str(root):
            return found["url"], str(root)
    return "", ""


def _copied(folder):
    path = os.path.join(folder, _COPIED)
    return read_json(path) if os.path.exists(path) else {}


def _stamps(folder):
    """{file: [bytes, time of the last change]} of a folder, without those of runs in it and those that stay local."""
    stamps = {}
    for parent, folders, names in os.walk(folder):
        names, inner = ([name for name in part if name not in _LOCAL and not _WRITING.search(name)] for part in (names, folders))
        paths = {name: os.path.join(parent, name) for name in (*names, *inner)}
        folders[:] = [name for name in inner if not is_run(paths[name]) and not os.path.exists(os.path.join(paths[name], _EVALUATION))]
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # of another process, which has removed it
                state = os.stat(paths[name])
                stamps[os.path.relpath(paths[name], folder).replace(os.sep, "/")] = [state.st_size, state.st_mtime_ns]
    return stamps


def _file_system(url):
    import fsspec

    kind = url.partition("://")[0]
    if kind in ("file", "local"):
        raise ValueError(f"Expected an object store, such as s3://BUCKET/PATH. Received: {url}. Try: the path without {kind}://")
    try:
        files, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        extra = f"'tf_robust[{_EXTRAS[kind]}]'" if kind in _EXTRAS else "the package that the message names"
        raise ImportError(f"Expected the package for {url}. Not installed ({error}). Try: pip install {extra}") from error
    except ValueError as error:
        raise ValueError(f"Expected a store that fsspec knows, such as s3://BUCKET/PATH. Received: {url} ({error})") from error

    def ask():
        with contextlib.suppress(Exception):  # the request that follows raises it
            files.exists(path)

    request = threading.Thread(target=ask, daemon=True)  # the packages try for minutes
    request.start()
    request.join(_SECONDS)
    if request.is_alive():
        raise ConnectionError(
            f"Expected a store that answers within {_SECONDS:.0f} s. Received: nothing from {url}. Try: the network, and the settings of "
            "the store, such as AWS_ENDPOINT_URL"
        )
    return files, path


@contextlib.contextmanager
def _reached(url):
    try:
        yield
    except Exception as error:  # of the network or the store, in the classes of each package
        raise ConnectionError(
            f"Expected a store that can be read and written. Received: {url} ({message_of(error)}). Try: an existing "
            "bucket, and the settings of the store, such as AWS_PROFILE and AWS_ENDPOINT_URL"
        ) from error
