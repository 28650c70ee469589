"""The command line on a tiny data set: one row, a suite, resuming, measuring a SavedModel, and what it refuses."""

import json
import os
import shutil

import jsonschema
import numpy as np
import pytest
from PIL import Image

from tests.command_line import main, runs_of
from tests.conftest import ROOT
from tests.small_runs import SMALL, eagerly, omit_charts, read, sample_images, trained, without_charts, write_rows  # noqa: F401
from tf_robust.runs import run, scheduler
from tf_robust.runs import workdir as workdirs
from tf_robust.training import loop
from tf_robust.utils.locks import WorkdirLocked

pytestmark = pytest.mark.usefixtures("eagerly")
drawn = pytest.mark.drawn


@pytest.fixture
def trained_already(trained, monkeypatch):
    """Runs get the model of that one in place of training. Returns [(row, seed, method)], to which each of them is added."""
    instead_of = []

    def train(this, folder, _):
        instead_of.append((this.row, this.seed, this.config.train.method))
        shutil.copytree(f"{trained}/saved_model", f"{folder}/saved_model")
        return loop.TrainingResult(3, 1.0)

    monkeypatch.setattr(run.Run, "train", train)
    return instead_of


@pytest.fixture
def copied(trained, tmp_path):
    """A copy of it, for tests that work in it."""
    return shutil.copytree(trained, tmp_path / "copied")


@drawn
def test_a_run_writes_a_complete_workdir_and_flags_that_repeat_it(sample_images, tmp_path):
    folder = str(tmp_path / "row")
    main(sample_images, *SMALL, "--seeds=3", f"--workdir={folder}")
    expected = "flags.txt environment.json checkpoints history.json tensorboard saved_model evaluation.json figures"
    expected += " report.html report.md results.json"
    assert {*expected.split()} <= set(os.listdir(folder))
    card, found = read(f"{folder}/saved_model/card.json"), read(f"{folder}/evaluation.json")
    jsonschema.validate(found, read(os.path.join(ROOT, "tf_robust", "evaluation", "evaluation.schema.json")))
    assert card["classes"] == ["dark", "light"] and card["rows"] == found["rows"] and card["flags"]["epochs"] == "1"
    assert found["seed"] == card["seed"] == 3
    (run,) = runs_of(f"--flagfile={folder}/flags.txt")
    with open(f"{folder}/flags.txt") as file:
        recorded = dict(line.strip().removeprefix("--").split("=", 1) for line in file if line.startswith("--"))
    assert {name: run.flags[name] for name in recorded.keys() & run.flags} == {n: recorded[n] for n in recorded.keys() & run.flags}
    assert {"data", "image_size", "epochs", "batch_size", "model"} <= recorded.keys() & run.flags.keys() and run.seed == 3


def test_a_suite_completes_all_rows_and_seeds_and_skips_complete_runs(sample_images, trained_already, tmp_path, monkeypatch, capsys):
    methods = {"xe": "cross_entropy", "noisy": "gaussian"}
    rows = {row: [f"# {row}", sample_images, *SMALL, f"--method={method}"] for row, method in methods.items()}
    suite = write_rows(tmp_path / "table", rows, baseline="xe", rows=["xe"], paper={"xe": {"clean": [0.9, 0.01]}})
    command = ["suite", suite, "--seeds=0,1", f"--workdir={tmp_path}/out", "--batch_size=6"]
    main(*command)
    assert sorted(trained_already) == sorted((row, seed, method) for row, method in methods.items() for seed in (0, 1))
    results = read(tmp_path / "out" / "results.json")
    assert [(r["row"], len(r["values"]), r["paper"]) for r in results["rows"]] == [("xe", 2, [0.9, 0.01]), ("noisy", 2, None)]
    assert "--batch_size=6" in (tmp_path / "out" / "noisy" / "seed_1" / "flags.txt").read_text()  # overrides each row's
    monkeypatch.setattr(run.Run, "train", lambda *_: pytest.fail("a finished run was trained again"))
    main(*command)
    assert "already done" in capsys.readouterr().out


def test_a_single_row_of_a_table_has_its_name_and_paper_numbers_but_no_baseline(sample_images, trained_already, tmp_path):
    rows = {"xe": [], "noisy": [sample_images, *SMALL, "--method=gaussian"]}
    write_rows(tmp_path, rows, baseline="xe", paper={"noisy": {"clean": [0.8, None]}})
    main(f"--flagfile={tmp_path}/noisy.flags", f"--workdir={tmp_path}/out")
    (row,) = read(tmp_path / "out" / "results.json")["rows"]
    assert (row["row"], row["paper"], row["difference"]) == ("noisy", [0.8, None], None)


@drawn
def test_saved_models_are_evaluated_and_runs_are_compared(sample_images, trained, trained_already, tmp_path, monkeypatch):
    shutil.copytree(trained, tmp_path / "runs" / "0")
    with monkeypatch.context() as patch:
        omit_charts(patch)
        main(sample_images, *SMALL, f"--workdir={tmp_path}/runs/1", "--seeds=1")
        main("evaluate", f"{tmp_path}/runs/1")  # on the data that its flags.txt names
    measured = ["--image_size=16", f"--workdir={tmp_path}/measured", "--evaluations=clean,calibration"]
    main("evaluate", f"{tmp_path}/runs/0/saved_model", sample_images, *measured)
    rows = {name: read(tmp_path / "runs" / name / "evaluation.json")["rows"] for name in ("0", "1", "1/measured")}
    assert read(tmp_path / "measured" / "results.json")["rows"][0]["values"] == [rows["0"][0]["value"]] and rows["1/measured"] == rows["1"]
    main("report", f"{tmp_path}/runs/*", f"--workdir={tmp_path}/compared")
    assert os.path.exists(tmp_path / "compared" / "report.html")
    other = {**read(tmp_path / "runs" / "1" / "evaluation.json"), "data": "other/data"}
    os.makedirs(tmp_path / "runs" / "2")
    (tmp_path / "runs" / "2" / "evaluation.json").write_text(json.dumps(other))
    with monkeypatch.context() as patch:
        omit_charts(patch)
        main("report", f"{tmp_path}/runs/*", f"--workdir={tmp_path}/by_data")  # a table for each data set
    assert sorted(len(read(path / "results.json")["rows"][0]["values"]) for path in (tmp_path / "by_data").iterdir()) == [1, 2]
    os.remove(tmp_path / "runs" / "0" / "measured.jsonl")
    main("report", f"{tmp_path}/measured", f"--workdir={tmp_path}/again")  # draws what was measured there
    made_with_the_model = {"samples.png", "maps.png"}
    assert {*os.listdir(tmp_path / "again" / "figures")} == {*os.listdir(tmp_path / "measured" / "figures")} - made_with_the_model


@pytest.mark.slow
def test_a_sweep_tests_the_best_point_and_skips_diverged_ones(sample_images, tmp_path, monkeypatch, capsys):
    command = ["sweep", "learning_rate=0.003,1e30", sample_images, *SMALL, "--epochs=2", "--validation_fraction=0.3"]
    command.append(f"--workdir={tmp_path}")
    main(*command, "--dry_run")
    assert not os.listdir(tmp_path) and "learning_rate=0.003" in capsys.readouterr().out
    with pytest.raises(ValueError, match="1 of 2 runs failed.\nlearning_rate=1e30"):
        main(*command)
    monkeypatch.setattr(run.Run, "train", lambda *_: pytest.fail("a finished point was trained again"))
    monkeypatch.setattr(scheduler, "run_all", lambda runs, folder_of, launcher: ([runs[0].complete(folder_of(runs[0]))], []))
    main(*command)
    assert "Chosen of 1 by clean on validation images" in capsys.readouterr().out
    tested = read(tmp_path / "test" / "seed_0" / "evaluation.json")
    assert (tested["row"], tested["split"]) == ("learning_rate=0.003", "test") and tested["rows"][0]["count"] == 24
    assert read(tmp_path / "learning_rate=0.003" / "seed_0" / "evaluation.json")["split"] == "validation"


def test_other_evaluations_do_not_train_again(sample_images, copied, monkeypatch):
    monkeypatch.setattr(run.Run, "train", lambda *_: pytest.fail("trained again"))
    main(sample_images, *SMALL, f"--workdir={copied}", "--evaluations=clean,noise")
    assert [row["metric"] for row in read(copied / "evaluation.json")["rows"]] == ["clean", "un", "nun"]


def test_a_suite_continues_after_a_failed_run_and_names_what_starts_from_it(sample_images, tmp_path):
    rows = {"after": ["--init_from_row=bad"], "bad": ["--learning_rate=1e30", "--epochs=2"], "good": ["--learning_rate=0.01"]}
    suite = write_rows(tmp_path / "table", {row: [sample_images, *SMALL, *flags] for row, flags in rows.items()})
    message = "2 of 3 runs failed.\nafter, seed 0: the row from which it starts, bad, failed\nbad, seed 0, failed: Not finite at step"
    with pytest.raises(ValueError, match=message):
        main("suite", suite, f"--workdir={tmp_path}/out")
    assert [r["row"] for r in read(tmp_path / "out" / "results.json")["rows"]] == ["good"]


def test_a_workdir_is_held_by_one_process_and_must_be_writable(tmp_path):
    with workdirs.claim(str(tmp_path), {"epochs": "2"}):
        with pytest.raises(WorkdirLocked, match="Another process is working in"), workdirs.claim(str(tmp_path), {"epochs": "2"}):
            pass
        with pytest.raises(ValueError, match="--epochs: 2 then, 3 now"), workdirs.claim(str(tmp_path), {"epochs": "3"}):
            pass  # rather than wait in vain
    with workdirs.claim(str(tmp_path), {"epochs": "2"}):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(PermissionError, match="workdir that can be written"), workdirs.claim(str(tmp_path / "file" / "inner"), {}):
        pass


@pytest.mark.parametrize(
    "flag, message",
    [
        ("--model=lenett", "Did you mean 'lenet'"),
        ("--method=flc", "Did you mean 'fcl'"),
        ("--optimizer=sdg", "Did you mean 'sgd'"),
        ("--augmentations=crop_flop", "Did you mean 'crop_flip'"),
        ("--views=clean,clean", "Expected one view for the method CrossEntropy"),
        ("--batch_size=0", "Expected batch_size >= 1. Received: 0"),
        ("--batch_size=100000", "Expected batch_size in 1.."),
        ("--data=folder:/nowhere", "Not found: /nowhere"),
        ("--train_examples=99999", "at most 10050"),
        ("evaluate nowhere", "saved_model.pb"),
        ("suite nowhere", "folder of .flags"),
        ("sweep epochs=abc --data=digits", "Expected epochs as an integer"),
        ("evaluate zoo:digits/lenet_augmix --evaluations=corruptions --corruptions=fogg", "Did you mean 'fog'"),
        ("--seeds=0,0", "each once"),
        ("--evaluations=", "Received: none"),
        ("--views=clean --evaluations=clean,none", "Expected evaluations with train"),
        ("--schedule=steps", "decay_epochs > 0"),
        ("--optimizer=sgd --momentum=1", "momentum in"),
        ("--data=tiny_no_such:9.9", "Unknown data set"),
        ("--evaluations=utility --data=digits", "Expected corner digits"),
        ("--stylized_dir=/nowhere", "Expected stylized images in /nowhere"),
        ("--method=noisymix --views=clean,clean --noisymix_stages=0,3", "stages in 0..2, which lenet has"),
        ("--views=augmix --augmix_severity=0", "severity in"),
        ("--method=finetune --finetune_head_width=8 --init_from=x --init_head", "init_head or finetune_head_width"),
        ("--views=augmix --augmix_alpha=0", "alpha > 0"),
        ("--method=augmax --views=clean", "Expected the views clean"),
    ],
)
def test_invalid_flags_raise_before_training(flag, message, tmp_path, monkeypatch):
    monkeypatch.setattr("tf_robust.training.divergence.named", lambda *_, **__: pytest.fail("training began"))
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        main(*flag.split(), f"--workdir={tmp_path}/w")


@pytest.mark.slow
def test_rows_start_from_another_row_of_their_suite(sample_images, tmp_path, capsys):
    rows = {
        "a_probe": ["--init_from_row=start", "--method=linear_probe", "--linear_probe_solver=lbfgs"],
        "b_similar": ["--init_from_row=a_probe", "--init_head", "--method=similarity", "--label_fraction=0.5"],
        "start": ["--method=simclr", "--views=simclr,simclr"],
    }
    flags = {row: [sample_images, *SMALL, *further] for row, further in rows.items()}
    suite = write_rows(tmp_path / "table", flags, baseline="a_probe", shown_as={"b_similar": "shown"})
    main("suite", suite, f"--workdir={tmp_path}/out", "--seeds=3")
    start, probe, similar = (
        [array for _, array in sorted(np.load(f"{tmp_path}/out/{row}/seed_3/saved_model/weights.npz").items())]
        for row in ("start", "a_probe", "b_similar")
    )
    assert [(a == b).all() for a, b in zip(start, probe)] == [True] * (len(start) - 2) + [False] * 2  # the logits are its own
    assert max(np.abs(a - b).max() for a, b in zip(similar, probe)) < 0.1
    board = tmp_path / "out" / "start" / "seed_3" / "tensorboard"
    assert "sprite" in (board / "projector_config.pbtxt").read_text()
    assert len(np.loadtxt(board / "embeddings" / "vectors.tsv")) == 24
    sheet, classes = Image.open(board / "embeddings" / "images.png"), (board / "embeddings" / "classes.tsv").read_text().split()
    assert sorted(classes) == ["dark"] * 12 + ["light"] * 12 and sheet.size == (160, 160)
    for number, name in enumerate(classes):
        row, column = divmod(number, 5)
        assert (sheet.getpixel((32 * column + 16, 32 * row + 16))[0] > 128) == (name == "light")
    metrics = {(r["row"], r["metric"]) for r in read(tmp_path / "out" / "results.json")["rows"]}
    assert metrics == {("start", "clean"), ("a_probe", "clean"), ("shown", "label_fraction_0.5/clean")}
    with pytest.raises(ValueError, match="Expected tf-robust suite or --init_from=DIR"):
        main(f"--flagfile={suite}/a_probe.flags", f"--workdir={tmp_path}/alone")
    start = ["--init_from_row=", f"--init_from={tmp_path}/out/start/seed_3", "--seeds=3"]
    main(f"--flagfile={suite}/a_probe.flags", *start, f"--workdir={tmp_path}/alone")
    assert read(tmp_path / "alone" / "results.json")["rows"][0]["values"] == read(tmp_path / "out" / "results.json")["rows"][0]["values"]
    for predecessor, message in (("b_similar", "in a cycle"), ("b_similer", "Did you mean 'b_similar'")):
        write_rows(tmp_path / "table", {"start": [sample_images, *SMALL, f"--init_from_row={predecessor}"]})
        with pytest.raises(ValueError, match=message):
            main("suite", suite, f"--workdir={tmp_path}/wrong")
