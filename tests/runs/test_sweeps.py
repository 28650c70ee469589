"""Sweeps: what they vary, the choice of the best, and points sampled by Optuna against its own study."""

import os
import subprocess
import sys
import tempfile
import time
import types

import pytest

from tests.command_line import main
from tests.small_runs import eagerly, without_charts  # noqa: F401
from tf_robust.runs.sweep import Range, axes_of, best, grid, middle, name_of
from tf_robust.training.loop import TrainingStopped
from tf_robust.utils.files import read_json

pytestmark = pytest.mark.usefixtures("eagerly")
DEFAULTS = {"fcl_k": 8, "fcl_sigma": 0.1, "views": ("clean",), "method": "fcl", "ema": False}


def test_a_grid_is_the_product_of_its_axes():
    points = grid(axes_of("fcl_k=1,2; fcl_sigma=0.1,0.5", DEFAULTS))
    assert [name_of(point) for point in points] == [f"fcl_k={k},fcl_sigma={sigma}" for k in (1, 2) for sigma in (0.1, 0.5)]
    assert name_of({"radius": "1/255"}) == "radius=1_255"


def test_ranges_are_of_integers_or_numbers():
    axes = axes_of("fcl_k=1..9;fcl_sigma=log:0.01..1;method=fcl,moco", DEFAULTS)
    assert axes == {
        "fcl_k": Range(1, 9, log=False, integer=True),
        "fcl_sigma": Range(0.01, 1.0, log=True, integer=False),
        "method": ("fcl", "moco"),
    }
    assert middle(axes) == {"fcl_k": "5", "fcl_sigma": "0.1", "method": "fcl"}
    with pytest.raises(ValueError, match="ranges of fcl_k, fcl_sigma"):
        grid(axes)


@pytest.mark.parametrize(
    "text, said",
    [
        ("fcl_q=1", "'fcl_q'. Did you mean"),
        ("views=clean,augmix", "one value"),
        *[(text, "once") for text in ("fcl_k=1,1", "fcl_k=1;fcl_k=2")],
        *[(text, "NAME=VALUE") for text in ("fcl_k", "fcl_k=")],
        (";", "Received: ';'"),
        ("fcl_k=1.5..2", "no integers"),
        ("fcl_sigma=a..2", "no numbers"),
        *[(text, "LOW < HIGH in") for text in ("fcl_sigma=2..1", "fcl_sigma=0..inf")],
        ("fcl_sigma=log:0..1", "above 0 with log"),
        *[(text, "numbers with a range") for text in ("method=a..b", "ema=0..1")],
    ],
)
def test_invalid_sweeps_raise(text, said):
    with pytest.raises(ValueError, match=said):
        axes_of(text, DEFAULTS)


def found(row, seed, clean, flips):
    return {"row": row, "seed": seed, "rows": [{"metric": "clean", "value": clean}, {"metric": "flips/mean", "value": flips}]}


def test_the_best_row_has_the_best_mean_over_seeds():
    evaluations = [found("a", 0, 0.9, 0.2), found("a", 1, 0.1, 0.2), found("b", 0, 0.6, 0.3), found("b", 1, 0.6, 0.3)]
    assert best(evaluations)[0] == ["b"] and best(evaluations, ["flips/mean"])[0] == ["a"]
    assert "Chosen of 2 by clean on validation images, means over 2 seeds: b (0.6000)" in best(evaluations)[1]
    with pytest.raises(ValueError, match="metric to choose by"):
        best(evaluations, ["un"])
    assert "Level with it: c;" in best([*evaluations, found("c", 0, 0.6, 0.2), found("c", 1, 0.6, 0.2)])[1]
    chosen, message = best([*evaluations, found("c", 1, 0.99, 0.0)])  # its seed 0 failed
    assert chosen == ["b"] and message.endswith("Not considered, as runs failed: c.")


def test_several_measures_choose_all_rows_that_no_other_surpasses():
    values = {"a": (0.9, 0.5), "b": (0.8, 0.1), "c": (0.8, 0.2), "d": (0.7, 0.1), "e": (0.9, 0.5)}
    evaluations = [found(row, 0, *measured) for row, measured in values.items()]
    assert best(evaluations, ["clean", "flips/mean"])[0] == ["a", "b", "e"]


def sweep(workdir, *arguments):
    small = ["--data=digits", "--train_examples=60", "--model=lenet", "--batch_size=20", "--subset=40", "--evaluations=clean,noise"]
    grid = "learning_rate=log:0.001..0.5;batch_size=10..30"
    main("sweep", grid, "--sweep_engine=optuna", *small, *arguments, f"--workdir={workdir}")


def trials_of(workdir):
    import optuna

    study = optuna.load_study(study_name=os.path.basename(workdir), storage=f"sqlite:///{workdir}/study.db")
    return study.get_trials()


@pytest.mark.slow
def test_sampled_points_are_reproducible_and_the_best_is_tested(tmp_path, capsys):
    pytest.importorskip("optuna")
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    for workdir in (first, second):
        sweep(workdir, "--trials=2", "--epochs=1", "--sweep_metric=clean")
    assert [trial.params for trial in trials_of(first)] == [trial.params for trial in trials_of(second)]
    complete = [trial for trial in trials_of(first) if trial.state.name == "COMPLETE"]
    best = max(complete, key=lambda trial: trial.value)
    name = name_of(best.user_attrs["point"])
    validation = read_json(os.path.join(first, name, "seed_0", "evaluation.json"))
    assert validation["split"] == "validation" and validation["rows"][0]["value"] == best.value
    assert read_json(os.path.join(first, "test", "seed_0", "evaluation.json"))["split"] == "test"
    assert f"images: {name}" in capsys.readouterr().out
    sweep(first, "--trials=2", "--epochs=1", "--sweep_metric=clean")  # complete: nothing is trained again
    assert len(trials_of(first)) == 2
    with pytest.raises(ValueError, match="--sweep_metric=clean. Received: --sweep_metric=un"):
        sweep(first, "--trials=2", "--epochs=1", "--sweep_metric=un")
    with pytest.raises(ValueError, match="--epochs=1 --seeds=0. Received: --epochs=2 --seeds=0,1"):
        sweep(first, "--trials=2", "--epochs=2", "--seeds=0,1", "--sweep_metric=clean")


@pytest.mark.slow
def test_the_front_of_several_measures_is_tested(tmp_path):
    pytest.importorskip("optuna")
    workdir = str(tmp_path / "front")
    sweep(workdir, "--trials=3", "--epochs=1", "--sweep_metric=clean,un")
    values = {name_of(trial.user_attrs["point"]): trial.values for trial in trials_of(workdir)}
    expected = {
        name
        for name, own in values.items()
        if not any(all(b >= a for a, b in zip(own, other)) and list(other) != list(own) for other in values.values())
    }
    report = read_json(os.path.join(workdir, "test", "results.json"))
    assert {row["row"] for row in report["rows"]} == expected


@pytest.fixture(params=["sqlite", "postgresql"])
def storage(request, tmp_path):
    """URL of a database of trials."""
    pytest.importorskip("optuna")
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/study.db"
        return
    pytest.importorskip("psycopg")
    with tempfile.TemporaryDirectory() as folder:
        server = pytest.importorskip("pgserver").get_server(folder)
        yield server.get_uri().replace("postgresql:", "postgresql+psycopg:")
        server.cleanup()


def sampled(axes, metric, run_at, *, trials, epochs=1):
    from tf_robust.runs.sampled_sweep import SampledSweep

    return SampledSweep(axes, (metric,), lambda point: [run_at(point)], lambda run: "", trials=trials, seed=3, epochs=epochs, flags={})


def test_trainings_behind_the_others_are_pruned_and_failures_are_trials(storage, monkeypatch, capsys):
    import optuna

    from tf_robust.runs.sampled_sweep import Pruning

    class FakeRun:
        def __init__(self, point):
            self.point, self.callbacks, self.config = point, (), types.SimpleNamespace(train=types.SimpleNamespace(epochs=9))

        def complete(self, folder):
            accuracy = float(self.point["x"])
            if accuracy > 0.9:
                raise ValueError("diverged")
            for epoch in range(9):
                for callback in self.callbacks:
                    assert isinstance(callback, Pruning)
                    try:
                        callback.on_epoch_end(epoch, {"val_accuracy": accuracy})
                    except TrainingStopped:  # which trackers distinguish from failures
                        stopped.append(self.point)
                        raise
            return {"rows": [{"metric": "clean", "value": accuracy}]}

    stopped = []
    axes = {"x": Range(0.0, 1.0, log=False, integer=False)}
    with pytest.raises(ValueError, match="Unknown metric"):  # after a training that was not pruned
        sampled(axes, "un", FakeRun, trials=4, epochs=9).complete(storage, "noise")
    first = optuna.load_study(study_name="noise", storage=storage).get_trials()
    assert first and not any(trial.intermediate_values for trial in first)
    monkeypatch.setattr("tf_robust.runs.sampled_sweep.read_evaluation", lambda path: {})
    points, _, notes = sampled(axes, "clean", FakeRun, trials=25, epochs=9).complete(storage, "study")
    trials = optuna.load_study(study_name="study", storage=storage).get_trials()
    failed = [trial for trial in trials if float(trial.user_attrs["point"]["x"]) > 0.9]
    pruned = [trial for trial in trials if "pruned after epoch" in trial.user_attrs.get("reason", "")]
    assert len(trials) == 25 and len(points) == 25 - len(failed) - len(pruned)
    assert failed and all(trial.user_attrs["reason"] == "failed: diverged" for trial in failed)
    assert pruned and all(len(trial.intermediate_values) < 9 for trial in pruned)
    assert stopped == [trial.user_attrs["point"] for trial in pruned]
    assert notes[0] == f"25 trials, of which {len(failed) + len(pruned)} were pruned or failed."
    assert max(float(point["x"]) for point in points) > 0.8


def test_interrupted_trials_are_resumed_with_their_point(storage, monkeypatch, capsys):
    import optuna

    begun = []

    class FakeRun:
        def __init__(self, point):
            self.point, self.config = point, types.SimpleNamespace(train=types.SimpleNamespace(epochs=1))

        def complete(self, folder):
            begun.append(self.point["x"])
            if len(begun) == 2:
                raise KeyboardInterrupt
            return {"rows": [{"metric": "clean", "value": 0.5}]}

    axes = {"x": Range(0, 1000, log=False, integer=True)}
    three = sampled(axes, "clean", FakeRun, trials=3)
    monkeypatch.setattr("tf_robust.runs.sampled_sweep.read_evaluation", lambda path: {})
    with pytest.raises(KeyboardInterrupt):
        three.complete(storage, "study")
    three.complete(storage, "study")
    assert len(begun) == 4 and begun[1] == begun[2]
    headers = [line.partition("]")[0] for line in capsys.readouterr().out.splitlines() if line.startswith("[")]
    assert headers == [f"[trial {number}, of 3" for number in (1, 2, 2, 3)]
    states = [trial.state for trial in optuna.load_study(study_name="study", storage=storage).get_trials()]
    assert states.count(optuna.trial.TrialState.COMPLETE) == 3 and states.count(optuna.trial.TrialState.FAIL) == 1


_PROCESS = """
import os, sys, time
from tf_robust.runs import sampled_sweep
from tf_robust.runs.sweep import Range

storage, folder, me = sys.argv[1:]
sampled_sweep._HEARTBEAT = 1
sampled_sweep._GRACE, sampled_sweep._POLL_SECONDS = (600, 2) if me == "second" else (3, 0.1)  # one finds the killed one
sampled_sweep.read_evaluation = lambda path: path

class Run:
    def __init__(self, point):
        self.point, self.callbacks, self.eval_config = point, (), None
    def complete(self, workdir):
        with open(os.path.join(folder, self.point["x"]), "a") as file:
            file.write(me + "\\n")
        if me == "killed":
            open(folder + ".begun", "w").close()
            time.sleep(600)
        while not os.path.exists(folder + ".begun"):
            time.sleep(0.1)
        time.sleep(0.3)
        return {"rows": [{"metric": "un", "value": float(self.point["x"])}]}

axes = {"x": Range(0, 10_000, log=False, integer=True)}
folder_of = lambda run: run.point["x"]
sweep = sampled_sweep.SampledSweep(axes, ("un",), lambda point: [Run(point)], folder_of, trials=8, seed=3, epochs=1, flags={})
print(len(sweep.complete(storage, "study")[0]))
"""


@pytest.mark.slow
def test_processes_share_the_trials_including_those_of_a_killed_process(storage, tmp_path):
    folder = tmp_path / "points"
    folder.mkdir()
    processes = [
        subprocess.Popen([sys.executable, "-c", _PROCESS, storage, str(folder), name], stdout=subprocess.PIPE, text=True)
        for name in ("killed", "first", "second")
    ]
    while not (tmp_path / "points.begun").exists():
        assert processes[0].poll() is None
        time.sleep(0.1)
    processes[0].kill()
    processes[0].wait()
    assert [one.communicate(timeout=120)[0].splitlines()[-1] for one in processes[1:]] == ["8", "8"]
    begun = {path.name: path.read_text().split() for path in folder.iterdir()}
    assert len(begun) == 8 and all(len(names) == 1 for names in begun.values() if "killed" not in names)
    assert sum("killed" in names for names in begun.values()) == 1  # resumed by another with its point
    assert all(len(names) == 2 for names in begun.values() if "killed" in names)


@pytest.mark.parametrize(
    "url, error, message",
    [
        ("sqlite:////no/such/folder/study.db", ValueError, "URL of a database"),
        ("file.db", ValueError, "URL of a database"),
        ("mysql+mysqldb://nobody@localhost/none", ImportError, "MySQLdb.*Try: pip"),
        ("postgresql+psycopg://nobody@localhost:1/none", ValueError, "URL of a database. .*refused"),
    ],
)
def test_a_database_that_cannot_be_used_is_named(url, error, message):
    pytest.importorskip("optuna")
    if "psycopg" in url:
        pytest.importorskip("psycopg")
    with pytest.raises(error, match=f"--sweep_storage.*{message}"):
        sampled({"x": ("1", "2")}, "clean", None, trials=1).complete(url, "study")


@pytest.mark.parametrize("engine", ["grid", "optuna"])
@pytest.mark.parametrize("metrics, name", [("nan", "'nan'"), ("clean,corruptions/mean15", "corruptions/mean15")])
def test_a_measure_that_is_not_evaluated_is_refused_before_training(engine, metrics, name, tmp_path):
    if engine == "optuna":
        pytest.importorskip("optuna")
    arguments = ["sweep", "epochs=1,2", "--data=digits", "--evaluations=clean,noise", f"--sweep_engine={engine}", f"--workdir={tmp_path}"]
    with pytest.raises(ValueError, match=f"--sweep_metric.*{name}"):
        main(*arguments, f"--sweep_metric={metrics}")
    assert not list(tmp_path.iterdir())
