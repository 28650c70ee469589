"""Workdirs in an object store: the results of another machine are found, and a store that refuses files loses none."""

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from unittest import mock

import fsspec
import keras
import pytest

from tests.ray_cluster import free_port
from tests.small_runs import COMMON, eagerly, omit_charts, table, without_charts, write_table  # noqa: F401
from tf_robust.cli import command_line, commands
from tf_robust.evaluation import recording, scoring
from tf_robust.integrations import storage
from tf_robust.report.evaluated_model import EvaluatedModel
from tf_robust.utils.files import read_json, write_json

pytestmark = pytest.mark.usefixtures("eagerly")

URL = "memory://bucket/table"
LOCAL = storage.local_folder(URL)
STORE = fsspec.filesystem("memory")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A function that makes a new working folder, as of another machine."""

    def change(name):
        (tmp_path / name).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / name)

    STORE.store.clear()
    change("first")
    return change


def run(*arguments):
    """Runs a command as the command line does; `main` leaves out the store."""
    command, options = command_line.read_command(arguments)
    with commands.local_options(command.name, options) as options:
        commands.COMMANDS[command.name](options, list(arguments))


class Workdir:
    """What a command left in its local folder and in the store, for tests that begin where it ended.

    Args:
        folder: a new one, in which the command is run.
        arguments: of the command.
    """

    def __init__(self, folder, arguments):
        self.folder = folder
        STORE.store.clear()
        with pytest.MonkeyPatch.context() as patched:
            omit_charts(patched)
            patched.chdir(folder)
            run(*arguments)
        self.files = {name: STORE.cat(name) for name in STORE.find("/bucket")}

    def restore(self, local=True, stored=True):
        """Copies it to the present folder and to the store; not stored: as of runs that have not ended, but for their training."""
        if local:
            shutil.copytree(self.folder / LOCAL, LOCAL)
            write_json(f"{LOCAL}/storage.json", {"url": URL, "folder": os.path.abspath(LOCAL)})
        for name, content in self.files.items() if stored else ():
            STORE.pipe_file(name, content)
        for parent, _, names in [] if stored else os.walk(LOCAL):
            for name in {"evaluation.json", "copied.json", "measured.jsonl"}.intersection(names):
                os.remove(os.path.join(parent, name))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return Workdir(tmp_path_factory.mktemp("finished"), ["train", *COMMON, f"--workdir={URL}"])


@pytest.fixture(scope="module")
def finished_table(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished_table")
    return Workdir(folder, ["suite", write_table(folder), "--seeds=0", f"--workdir={URL}"])


def test_results_are_found_by_another_machine(finished_table, table, machine, capsys):
    finished_table.restore()
    names = [name.removeprefix("/bucket/table/") for name in STORE.find("/bucket/table")]
    assert {"report.html", "low/seed_0/evaluation.json", "high/seed_0/saved_model/weights.npz", "low/seed_0/measured.jsonl"} <= set(names)
    assert not [name for name in names if "checkpoints" in name or "write_check" in name or name.endswith(("lock", "copied.json"))]
    assert LOCAL == "runs/memory/bucket/table"
    for name in names:  # byte by byte
        with open(os.path.join(LOCAL, name), "rb") as file:
            assert STORE.cat(f"/bucket/table/{name}") == file.read(), name
    before = read_json(f"{LOCAL}/low/seed_0/evaluation.json")
    machine("second")
    capsys.readouterr()
    run("suite", table, "--seeds=0", f"--workdir={URL}")
    printed = capsys.readouterr().out
    assert printed.count("already done") == 2 and printed.count("fetched") == 2
    assert read_json(f"{LOCAL}/low/seed_0/evaluation.json") == before
    machine("third")
    run("report", f"{URL}/*/seed_*", f"--workdir={URL}/report")
    rows = read_json(f"{LOCAL}/report/results.json")["rows"]
    assert {row["row"] for row in rows} == {"low", "high"} and STORE.exists("/bucket/table/report/report.html")


def test_a_store_that_refuses_files_loses_nothing(finished_table, table, machine, monkeypatch, capsys):
    finished_table.restore(stored=False)
    with monkeypatch.context() as patch, pytest.raises(SystemExit, match="store is full.*copies what is missing"):
        patch.setattr(type(STORE), "put_file", mock.Mock(side_effect=PermissionError("the disk of the store is full")))
        run("suite", table, f"--workdir={URL}")
    assert capsys.readouterr().out.count("Note: not copied yet") == 2 and not STORE.exists("/bucket/table/low/seed_0/evaluation.json")
    run("suite", table, f"--workdir={URL}")
    assert capsys.readouterr().out.count("already done") == 2 and STORE.exists("/bucket/table/low/seed_0/evaluation.json")


@pytest.mark.parametrize("changed", ["low", "high"])
def test_the_last_error_names_a_run_that_was_not_copied(changed, finished_table, machine, monkeypatch):
    finished_table.restore()
    with open(f"{LOCAL}/{changed}/seed_0/evaluation.json", "a") as file:
        file.write("\n")
    monkeypatch.setattr(type(STORE), "find", mock.Mock(side_effect=PermissionError("the store is down")))
    with pytest.raises(ConnectionError, match=rf"Received: {URL}/{changed}/seed_0 \(the store is down\). They are in {LOCAL}"):
        storage._copy_all(URL, LOCAL)


def test_a_store_that_never_answers_is_named(finished, machine, monkeypatch):
    finished.restore()
    with open(f"{LOCAL}/evaluation.json", "a") as file:
        file.write("\n")
    asked, ended = [], threading.Event()
    monkeypatch.setattr(storage, "_SECONDS", 0.2)
    monkeypatch.setattr(type(STORE), "exists", lambda self, path, **_: asked.append(path) or ended.wait(60))
    message = f"Expected a store that answers within 0 s. Received: nothing from {URL}. Try: the network"
    with pytest.raises(SystemExit, match=message):
        run("train", *COMMON, f"--workdir={URL}")
    with pytest.raises(ConnectionError, match=rf"Expected a store that accepts the results. Received: {URL} \({message}"):
        storage._copy_all(URL, LOCAL)
    assert len(asked) == 2  # not for each run
    ended.set()


def test_an_evaluation_in_the_store_marks_a_complete_run(finished, machine, monkeypatch):
    finished.restore(stored=False)
    order, put_file = [], type(STORE).put_file
    monkeypatch.setattr(type(STORE), "put_file", lambda self, source, name, **_: order.append(name) or put_file(self, source, name))
    run("train", *COMMON, f"--workdir={URL}")
    copied_first = order[: order.index("/bucket/table/evaluation.json") + 1]
    assert len(copied_first) > 8 and any("weights.npz" in name for name in copied_first)


def test_an_interrupted_fetch_is_repeated(finished, machine, monkeypatch):
    finished.restore(local=False)
    evaluation, get_file = STORE.cat("/bucket/table/evaluation.json"), type(STORE).get_file

    def interrupted(self, name, path, **_):
        get_file(self, name, path)
        if name.endswith("evaluation.json"):
            raise OSError("no route")

    machine("second")
    with monkeypatch.context() as patch, pytest.raises(SystemExit, match="no route"):
        patch.setattr(type(STORE), "get_file", interrupted)
        run("train", *COMMON, f"--workdir={URL}")
    assert not os.path.exists(f"{LOCAL}/evaluation.json")
    run("train", *COMMON, f"--workdir={URL}")
    assert STORE.cat("/bucket/table/evaluation.json") == evaluation
    assert not [name for name in STORE.find("/bucket/table") if "writing" in name]


def test_unfinished_runs_stay_local_and_the_first_error_is_shown(finished_table, table, machine, monkeypatch, capsys):
    finished_table.restore(stored=False)
    monkeypatch.setattr(EvaluatedModel, "evaluate", mock.Mock(side_effect=ValueError("no memory")))
    with pytest.raises(SystemExit, match="no memory"):
        run("suite", table, f"--workdir={URL}")
    assert os.path.exists(f"{LOCAL}/low/seed_0/saved_model/weights.npz")
    assert not [name for name in STORE.find("/bucket/table") if "seed_0" in name]


def test_newer_results_of_the_store_are_fetched_and_missing_ones_copied_again(finished, machine):
    finished.restore()
    name = "/bucket/table/evaluation.json"
    before = STORE.cat(name)
    STORE.rm("/bucket/table/saved_model/weights.npz")
    STORE.pipe_file(name, before + b"\n")
    storage.fetch(URL, LOCAL)
    with open(f"{LOCAL}/evaluation.json", "rb") as file:
        assert file.read() == before + b"\n"
    run("train", *COMMON, f"--workdir={URL}")
    assert STORE.exists("/bucket/table/saved_model/weights.npz")


def test_a_pattern_fetches_what_it_matches_alone(machine):
    for name in ("a1/seed_0", "a2/seed_0", "b/seed_0"):
        STORE.pipe_file(f"/bucket/{name}/evaluation.json", b"{}")
    storage.fetch_runs("memory://bucket/a*/seed_*")
    assert sorted(os.listdir("runs/memory/bucket")) == ["a1", "a2"]


def test_a_copy_of_a_workdir_and_files_of_others_are_no_store(finished, machine, tmp_path):
    finished.restore()
    shutil.copytree(LOCAL, "mine")
    (tmp_path / "first" / "storage.json").write_text('{"cookies": []}')
    STORE.pipe_file("/bucket/table/evaluation.json", b"kept")
    storage.copy_finished("mine")
    assert STORE.cat("/bucket/table/evaluation.json") == b"kept"


def test_a_dry_run_writes_nothing(machine):
    run("train", *COMMON, "--dry_run", f"--workdir={URL}")
    assert not os.path.exists("runs") and not STORE.find("/bucket")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["train", *COMMON, "--workdir=nowhere://bucket/a"], "fsspec knows.*nowhere://bucket/a"),
        (["train", *COMMON, "--workdir=file:///tmp/a"], "object store, .*file:///tmp/a"),
        (["train", "--data=digits", "--evaluations=none", "--workdir=memory://a/b"], "evaluations with --workdir=memory://a/b"),
        (["corrupt", "digits", "--workdir=s3://bucket/a"], "local --workdir with corrupt. .*s3://bucket/a"),
        (["report", "memory://bucket/none/*"], "memory://bucket/none/\\*, which matches none"),
        (["train", *COMMON, "--workdir=s3://"], "a path. Received: s3://"),
        (["train", *COMMON, "--workdir=s3://bucket/"], "a path. Received: s3://bucket/"),
        (["train", *COMMON, "--workdir=s3:/bucket/a"], "Received: s3:/bucket/a. Did you mean s3://bucket/a?"),
    ],
)
def test_unknown_stores_and_commands_are_refused(arguments, message, machine):
    with pytest.raises((ValueError, SystemExit), match=message):
        run(*arguments)


def test_models_of_a_store_are_evaluated(finished, machine, tmp_path):
    finished.restore()
    expected = read_json(f"{LOCAL}/evaluation.json")
    network = keras.Sequential([keras.Input([28, 28, 1]), keras.layers.Flatten(), keras.layers.Dense(10)])
    network.save(tmp_path / "model.keras")
    for folder in ("/bucket", "/bucket/other"):
        STORE.put_file(str(tmp_path / "model.keras"), f"{folder}/model.keras")
    STORE.pipe_file("/bucket/harden.json", b'{"model": "hardened.keras", "data": "digits"}')
    STORE.pipe_file("/bucket/other/model.keras.json", b'{"data": "digits"}')
    machine("second")
    run("evaluate", URL, "--evaluations=clean")  # on its own data
    found = read_json(f"{LOCAL}/measured/evaluation.json")
    assert found["rows"][0] == expected["rows"][0]
    run("evaluate", f"{URL}/saved_model", "--data=digits", "--evaluations=clean", "--workdir=of_folder")
    assert read_json("of_folder/evaluation.json")["model_digest"] == found["model_digest"]
    run("evaluate", "memory://bucket/model.keras", "--data=digits", "--evaluations=clean", "--workdir=of_file")
    assert read_json("of_file/evaluation.json")["model"] == "model.keras"
    assert read_json("runs/memory/bucket/harden.json")["model"] == "hardened.keras"  # cards are fetched too
    run("evaluate", "memory://bucket/other/model.keras", "--evaluations=clean", "--workdir=of_card")
    assert read_json("of_card/evaluation.json")["data"] == "digits"
    with pytest.raises(SystemExit, match="Not found: memory://bucket/none"):
        run("evaluate", "memory://bucket/none")
    with pytest.raises(SystemExit, match="Expected --data"):
        run("evaluate", "memory://bucket/model.keras")


def test_a_folder_of_runs_is_not_fetched_as_a_model(finished_table, machine):
    finished_table.restore(local=False)
    with pytest.raises(SystemExit, match="memory://bucket/table, which holds 2. Try: .*/high/seed_0"):
        run("evaluate", URL)
    assert not os.path.exists("runs")


def test_results_of_images_that_were_replaced_leave_the_store(finished, machine, monkeypatch):
    monkeypatch.setattr(recording, "SHARD_IMAGES", 50)
    monkeypatch.setattr(scoring, "BATCH", 50)
    finished.restore()
    for subset, files in ((120, 3), (60, 2)):
        run("evaluate", URL, "--evaluations=clean", f"--subset={subset}", "--per_image", "--workdir=memory://bucket/images")
        assert len(STORE.find("/bucket/images/per_image/clean")) == files


def test_a_store_that_cannot_be_written_is_named_before_training(machine, monkeypatch):
    monkeypatch.setattr(type(STORE), "pipe_file", mock.Mock(side_effect=PermissionError("Access Denied")))
    with pytest.raises(SystemExit, match="can be read and written. Received: .*Access Denied"):
        run("train", *COMMON, f"--workdir={URL}")
    assert not os.path.exists("runs")


S3 = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
SERVERS = {  # of an object store: {protocol: (packages, module and arguments, its address, other settings)}
    "s3": (("s3fs", "moto"), ("moto.server", "--port={port}"), "AWS_ENDPOINT_URL", S3),
    "gs": (
        ("gcsfs", "gcp_storage_emulator"),
        ("gcp_storage_emulator", "start", "--in-memory", "--port={port}"),
        "STORAGE_EMULATOR_HOST",
        {},
    ),
}


@pytest.fixture(params=SERVERS)
def bucket(request, monkeypatch):
    """The URL of a bucket of an object store on this machine."""
    packages, arguments, address, settings = SERVERS[request.param]
    for package in packages:
        pytest.importorskip(package)
    port = free_port()
    for name, value in {**settings, address: f"http://127.0.0.1:{port}"}.items():
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-m", *(text.format(port=port) for text in arguments)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(60):
            with socket.socket() as client:
                if not client.connect_ex(("127.0.0.1", port)):
                    break
            time.sleep(1)
        fsspec.filesystem(request.param, skip_instance_cache=True).mkdir("results")
        yield f"{request.param}://results"
    finally:
        process.terminate()
        process.wait()


@pytest.mark.slow
def test_a_workdir_of_an_object_store(table, machine, bucket, capsys):
    run("suite", table, f"--workdir={bucket}/a")
    machine("second")
    run("suite", table, f"--workdir={bucket}/a")
    assert capsys.readouterr().out.count("already done") == 2
    with pytest.raises(SystemExit, match="Expected a store that can be read and written. Received: .*missing/a"):
        run("suite", table, f"--workdir={bucket.replace('results', 'missing')}/a")
