"""Trackers: what they record, of runs that are resumed, and what happens when they fail."""

import glob
import json
import os
import pathlib
import posixpath
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from unittest import mock

import pytest

from tests.command_line import main
from tests.ray_cluster import free_port
from tests.small_runs import CLEAN
from tf_robust.integrations import tracking
from tf_robust.training.loop import TrainingStopped
from tf_robust.utils.files import read_json, write_json

RUN = ["train", *CLEAN]


class Recorded:
    """A tracker that keeps what it is given, and fails at the second epoch."""

    made = []

    def __init__(self, folder, run_id, name, group, flags):
        if run_id == "deleted":
            raise OSError("no such run")
        self.run_id, self.given, self.flags, self.name, self.group = run_id or f"run {len(self.made)}", [], flags, name, group
        self.made.append(self)

    @staticmethod
    def check():
        pass

    def epoch(self, epoch, values):
        if epoch == 1 and self.flags["learning_rate"] == "0.02":
            raise OSError("no route to the server")
        self.given.append(("epoch", epoch, sorted(values)[0]))

    def results(self, values):
        self.given.append(("results", sorted(values)))

    def files(self, kind, paths):
        self.given.append((kind, [os.path.basename(path) for path in paths]))

    def end(self, ending):
        self.given.append(("end", ending))


@pytest.fixture
def recorded(monkeypatch):
    monkeypatch.setitem(tracking.TRACKERS, "wandb", Recorded)
    monkeypatch.setattr(Recorded, "made", [])
    pytest.importorskip("wandb")
    return Recorded.made


def test_epochs_results_and_files_are_recorded(recorded, tmp_path):
    main(*RUN, "--epochs=2", "--tracker=wandb", f"--workdir={tmp_path / 'row'}")
    run, report = recorded
    assert run.given == [
        ("epoch", 0, "accuracy"),
        ("epoch", 1, "accuracy"),
        ("results", ["clean"]),
        ("run", ["flags.txt", "history.json", "evaluation.json", "figures", "saved_model"]),
        ("end", "finished"),
    ]
    assert report.run_id == run.run_id == read_json(str(tmp_path / "row" / "trackers.json"))["wandb"]
    assert report.given[0] == ("report", ["report.html", "report.md", "results.json", "figures"])
    assert run.flags["epochs"] == "2" and "tracker" not in run.flags and "tracker" not in (tmp_path / "row" / "flags.txt").read_text()


def test_a_tracker_that_fails_loses_no_run(recorded, tmp_path, capsys):
    main(*RUN, "--epochs=3", "--learning_rate=0.02", "--tracker=wandb", f"--workdir={tmp_path / 'tracked'}")
    assert "tracker=wandb failed and is left out: no route to the server" in capsys.readouterr().out
    main(*RUN, "--epochs=3", "--learning_rate=0.02", f"--workdir={tmp_path / 'plain'}")
    rows = [read_json(str(tmp_path / name / "evaluation.json"))["rows"] for name in ("tracked", "plain")]
    assert rows[0] == rows[1] and recorded[0].given == [("epoch", 0, "accuracy"), ("end", "failed")]


@pytest.mark.parametrize(
    ("error", "ending"), [(RuntimeError, "failed"), (KeyboardInterrupt, "interrupted"), (TrainingStopped, "interrupted")]
)
def test_a_run_that_did_not_finish_is_recorded_as_such(recorded, tmp_path, error, ending):
    with pytest.raises(error), tracking.tracked(["wandb"], str(tmp_path), "a", "b", {}):
        raise error
    assert recorded[0].given == [("end", ending)]


def test_a_tracker_that_fails_ends_its_run_and_the_next_row_has_one_of_its_own(recorded, tmp_path):
    for row in ("a", "b"):
        (tmp_path / row).mkdir()
        with tracking.tracked(["wandb"], str(tmp_path / row), row, row, {"learning_rate": "0.02"}) as trackers:
            trackers.on_epoch_end(1, {})
    assert [(run.name, run.given) for run in recorded] == [("a", [("end", "failed")]), ("b", [("end", "failed")])]


def test_a_run_that_the_server_lost_begins_anew(recorded, tmp_path, capsys):
    write_json(str(tmp_path / "trackers.json"), {"wandb": "deleted"})
    with tracking.tracked(["wandb"], str(tmp_path), "a", "b", {}):
        pass
    assert read_json(str(tmp_path / "trackers.json")) == {"wandb": "run 0"} and "Note" not in capsys.readouterr().out


def test_a_server_that_does_not_answer_is_an_error_before_training_and_a_note_later(recorded, monkeypatch, tmp_path, capsys):
    refuse = mock.Mock(side_effect=OSError("not logged in"))
    monkeypatch.setattr(Recorded, "check", refuse)
    with pytest.raises(ConnectionError, match="tracker=wandb .* Received: not logged in. .*WANDB_MODE"):
        tracking.check(["wandb"])
    monkeypatch.setitem(tracking.TRACKERS, "wandb", refuse)
    with tracking.tracked(["wandb"], str(tmp_path), "a", "b", {}):
        pass
    assert capsys.readouterr().out.count("tracker=wandb failed and is left out: not logged in") == 1


def test_unknown_trackers_are_refused(tmp_path):
    with pytest.raises(ValueError, match="Unknown tracker: 'wandbb'. Did you mean 'wandb'"):
        main(*RUN, "--tracker=wandbb", f"--workdir={tmp_path}")


@pytest.mark.slow
def test_weights_and_biases_offline_has_parameters_curves_and_results(monkeypatch, tmp_path):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    main(*RUN, "--epochs=2", "--tracker=wandb", f"--workdir={tmp_path / 'row'}")
    paths = glob.glob(str(tmp_path / "row" / "wandb" / "offline-run-*" / "*.wandb"))
    content = b"".join(pathlib.Path(path).read_bytes() for path in paths)
    assert all(word in content for word in (b"val_accuracy", b"learning_rate", b"clean", b"saved_model", b"cross_entropy, seed 0"))


@pytest.fixture
def server(tmp_path, monkeypatch):
    """The address of an MLflow server on this machine."""
    pytest.importorskip("mlflow")
    address = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "mlflow", "server", "--host=127.0.0.1", f"--port={address.rpartition(':')[2]}", "--workers=1"]
    stores = [f"--backend-store-uri=sqlite:///{tmp_path}/mlflow.db", f"--artifacts-destination={tmp_path}/artifacts"]
    process = subprocess.Popen([*command, *stores], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    try:
        for _ in range(120):
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5)
                break
            except (urllib.error.URLError, OSError):
                time.sleep(1)
        yield address
    finally:
        os.killpg(process.pid, 15)
        process.wait()


@pytest.mark.slow
def test_an_mlflow_server_has_parameters_curves_results_and_files(server, tmp_path):
    import mlflow

    mlflow.set_tracking_uri(server)
    main(*RUN, "--epochs=2", "--tracker=mlflow", f"--workdir={tmp_path / 'row'}")
    client, run_id = mlflow.MlflowClient(), read_json(str(tmp_path / "row" / "trackers.json"))["mlflow"]
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED" and run.data.params["epochs"] == "2" and len(run.data.params) > 30
    history = json.loads((tmp_path / "row" / "history.json").read_text())
    assert [metric.value for metric in client.get_metric_history(run_id, "val_accuracy")] == [epoch["val_accuracy"] for epoch in history]
    (clean,) = (row["value"] for row in read_json(str(tmp_path / "row" / "evaluation.json"))["rows"] if row["metric"] == "clean")
    assert run.data.metrics["clean"] == clean
    names = {file.path for file in client.list_artifacts(run_id)}
    assert names >= {"evaluation.json", "report.html", "figures", "saved_model"}
    with tracking.tracked(["mlflow"], str(tmp_path / "row"), "a", "b", {"epochs": "another"}) as trackers:  # resumed
        trackers.results([{"metric": "class/crane, bird", "value": 0.5}, {"metric": "none", "value": None}])
    assert (
        client.get_run(run_id).data.metrics[tracking.accepted_name("class/crane, bird")] == 0.5
        and client.get_run(run_id).info.status == "FINISHED"
    )
    with pytest.raises(KeyboardInterrupt), tracking.tracked(["mlflow"], str(tmp_path / "row"), "a", "b", {}):
        raise KeyboardInterrupt
    assert client.get_run(run_id).info.status == "KILLED"
    stored = client.download_artifacts(run_id, "report.html", str(tmp_path))
    assert pathlib.Path(stored).read_bytes() == (tmp_path / "row" / "report.html").read_bytes()


def test_mlflows_names_are_kept_or_told_apart():
    kept = ["clean", "robust/linf_8/255", "class/花", "class/鳥", "class/crane bird", "class/a_b", "class/été.1", "x" * 250]
    assert [tracking.accepted_name(name) for name in kept] == kept
    refused = ["class/a,b", "class/a;b", "class//", "class/..", "class/.", "x" * 251, "x" * 252]
    names = [tracking.accepted_name(name) for name in refused]
    assert len({*kept, *names}) == len(kept) + len(refused)
    for name in names:  # as mlflow.utils.validation does
        assert re.fullmatch(r"[/\w.\- :]*", name) and posixpath.normpath(name) == name and len(name) <= 250
