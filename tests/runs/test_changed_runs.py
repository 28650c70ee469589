"""Runs that are called again after their flags, data, models or folders have changed, and flags that a command does not use."""

import json
import os
import shutil

import numpy as np
import pytest

from tests.command_line import main
from tests.small_runs import eagerly, table, without_charts  # noqa: F401
from tf_robust import api
from tf_robust.cli import commands
from tf_robust.report import comparison
from tf_robust.report.evaluated_model import EvaluatedModel
from tf_robust.runs import run
from tf_robust.training import loop

pytestmark = pytest.mark.usefixtures("eagerly")

SMALL = ("--batch_size=20", "--epochs=1", "--evaluations=clean", "--subset=40")
DIGITS = ("--data=digits", "--train_examples=60", "--model=mlp", *SMALL)


def read(*parts):
    with open(os.path.join(*parts), encoding="utf-8") as file:
        return json.load(file)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("finished") / "run")
    main("train", *DIGITS, f"--workdir={folder}")
    return folder


@pytest.fixture
def copied(finished, tmp_path):
    return shutil.copytree(finished, str(tmp_path / "copied"))


def write_images(path, count, shift=0):
    generator = np.random.RandomState(0)
    labels = np.arange(count) % 4
    images = np.clip(60 * labels[:, None, None, None] + generator.randint(0, 20, (count, 16, 16, 1)), 0, 255).astype(np.uint8)
    np.savez(path, images=images, labels=(labels + shift) % 4)


def test_a_suite_is_refused_in_which_only_some_rows_evaluate_a_model(finished, tmp_path):
    (tmp_path / "plain.flags").write_text("--data=digits")
    (tmp_path / "mine.flags").write_text(f"--data=digits\n--saved_model={finished}/saved_model")
    with pytest.raises(ValueError, match="with saved_model: mine. Try: two folders, then tf-robust report"):
        main("suite", str(tmp_path), f"--workdir={tmp_path}/out")
    assert not (tmp_path / "out").exists()


def test_a_suite_is_refused_whose_rows_have_images_of_other_sizes(tmp_path):
    for name, size in (("a", 16), ("b", 28)):
        (tmp_path / f"{name}.flags").write_text("\n".join((*DIGITS, f"--image_size={size}")))
    with pytest.raises(ValueError, match=r"Received: a and b, which differ in image_size \(16 and 28\)"):
        main("suite", str(tmp_path), f"--workdir={tmp_path}/out")
    assert not (tmp_path / "out").exists()


def test_a_wrong_value_in_a_row_names_its_file(tmp_path):
    (tmp_path / "plain.flags").write_text("--data=digits\n--epochs=0")
    with pytest.raises(ValueError, match="plain.flags: Expected epochs >= 1. Received: 0"):
        main("suite", str(tmp_path))


@pytest.mark.parametrize(
    "arguments, said",
    [
        (
            ("sweep", "label_fraction=0.5,1", *DIGITS),
            "Expected axes that leave the validation images .* Received: label_fraction. Try: a f",
        ),
        (("sweep", "image_size=16,28;nun_floor=0.1,0.2", *DIGITS), "Received: image_size, nun_floor. Try"),
    ],
)
def test_axes_without_a_comparison_are_refused(arguments, said):
    with pytest.raises(ValueError, match=said):
        main(*arguments)


def test_the_record_of_a_finished_run_survives_a_failure(copied, capsys):
    shutil.rmtree(os.path.join(copied, "saved_model"))
    before = open(os.path.join(copied, "flags.txt")).read()
    with pytest.raises(ValueError, match="batch_size: 20 then, 30 now"):
        main("train", *DIGITS, "--batch_size=30", f"--workdir={copied}")
    main("train", *DIGITS, "--evaluations=clean,noise", f"--workdir={copied}")  # trained and exported again
    assert "evaluations=clean,noise" in open(os.path.join(copied, "flags.txt")).read() != before
    assert {"clean", "un"} <= {row["metric"] for row in read(copied, "evaluation.json")["rows"]}
    assert os.path.exists(os.path.join(copied, "saved_model", "card.json"))


def test_flags_of_a_training_without_a_checkpoint_are_not_binding(tmp_path, monkeypatch):
    fit = loop.fit

    def diverges(*arguments, **options):
        raise loop.TrainingDiverged("the loss is not finite")

    monkeypatch.setattr(run.loop, "fit", diverges)
    with pytest.raises(loop.TrainingDiverged):
        main("train", *DIGITS, "--learning_rate=100", f"--workdir={tmp_path}")
    monkeypatch.setattr(run.loop, "fit", fit)
    main("train", *DIGITS, "--learning_rate=0.01", f"--workdir={tmp_path}")
    assert os.path.exists(tmp_path / "evaluation.json")


def test_a_moved_run_has_its_own_model_and_records(copied, capsys):
    main("train", *DIGITS, f"--workdir={copied}")
    said = capsys.readouterr().out
    assert "already done" in said and f"Model:   {copied}/saved_model" in said


def test_python_takes_the_std_from_the_images_a_run_was_trained_on(copied, capsys):
    main("evaluate", copied, "--evaluations=noise")
    measured = read(copied, "measured", "evaluation.json")
    in_python = api.evaluate(copied, evaluations="noise", subset=40)
    assert in_python.evaluation["card"] == measured["card"]
    assert in_python.values == {row["metric"]: row["value"] for row in measured["rows"]}
    every = api.evaluate(os.path.join(copied, "saved_model"), evaluations="noise", subset=40, train_examples=0)
    with pytest.raises(
        ValueError, match="'nun' to be .* differ in the training images whose standard deviations scale the noise, chosen by train_examples"
    ):
        api.compare(in_python, every)


def test_a_run_is_evaluated_on_all_images_of_another_file(copied, tmp_path, capsys):
    paths = [str(tmp_path / name) for name in ("one.npz", "other.npz")]
    for path, count in zip(paths, (400, 80)):
        write_images(path, count)
    folder = str(tmp_path / "run")
    main("train", f"--data=npz:{paths[0]}", "--model=mlp", *SMALL, f"--workdir={folder}")
    for path, split in zip(paths, ("test", "all")):
        main("evaluate", folder, f"--data=npz:{path}", f"--workdir={tmp_path / split}")
        measured = read(tmp_path, split, "evaluation.json")
        assert measured["split"] == split and measured["card"]["data"]["num_images"] == 40
    assert "has no splits: evaluated on all of its images" in capsys.readouterr().out


def test_data_that_changed_after_a_run_are_noticed(tmp_path):
    path, folder = str(tmp_path / "mine.npz"), str(tmp_path / "run")
    write_images(path, 100)
    arguments = ("train", f"--data=npz:{path}", "--model=mlp", "--validation_fraction=0.2", *SMALL, "--subset=0", f"--workdir={folder}")
    main(*arguments)
    main(*arguments)
    write_images(path, 100, shift=1)
    with pytest.raises(
        ValueError, match="Expected the images on which .* was evaluated .* Received: others in npz:.* Try: another --workdir"
    ):
        main(*arguments)


def test_data_that_changed_while_training_was_interrupted_are_noticed(tmp_path, monkeypatch):
    path, folder = str(tmp_path / "mine.npz"), str(tmp_path / "run")
    arguments = ("train", f"--data=npz:{path}", "--model=mlp", "--validation_fraction=0.2", *SMALL, "--subset=0", "--epochs=3")
    arguments += (f"--workdir={folder}",)
    fit = loop.fit
    monkeypatch.setattr(run.loop, "fit", lambda *given, **options: fit(*given, **options, stop_after=4))
    write_images(path, 100)
    with pytest.raises(loop.Interrupted):
        main(*arguments)
    monkeypatch.setattr(run.loop, "fit", fit)
    write_images(path, 80)
    with pytest.raises(ValueError, match="training images: 60, fingerprint .* then, 48, .* now\nTry: those of its start"):
        main(*arguments)
    write_images(path, 100)
    main(*arguments)
    assert [epoch["epoch"] for epoch in read(folder, "history.json")] == [0, 1, 2]


def test_an_encoder_that_was_trained_again_is_noticed(finished, tmp_path):
    start, folder = shutil.copytree(finished, str(tmp_path / "start")), str(tmp_path / "tuned")
    arguments = ("train", *DIGITS, f"--init_from={start}", f"--workdir={folder}")
    main(*arguments)
    main(*arguments)
    shutil.rmtree(start)
    main("train", *DIGITS, "--seeds=5", f"--workdir={start}")
    with pytest.raises(ValueError, match="with which .* was trained. Received: .*start, which was trained again"):
        main(*arguments)


def test_options_by_which_an_epoch_is_chosen_are_those_of_the_start(tmp_path):
    arguments = ("train", *DIGITS, "--select=corruptions/fog", "--select_images=20", f"--workdir={tmp_path}/run")
    main(*arguments, "--severities=1")
    with pytest.raises(ValueError, match="--severities: 1 then, 5 now"):
        main(*arguments, "--severities=5")


def test_a_sweep_with_failed_points_exits_with_an_error(tmp_path, capsys):
    arguments = ("sweep", "learning_rate=0.01", *DIGITS, f"--workdir={tmp_path}")
    main(*arguments)
    with pytest.raises(ValueError, match="1 of 2 runs failed.\n.*started with other flags"):
        main("sweep", "learning_rate=0.01,0.1", *DIGITS, "--batch_size=10", f"--workdir={tmp_path}")


def test_a_row_without_its_package_does_not_end_a_suite(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / f"{name}.flags").write_text("\n".join(DIGITS))
    train = run.Run.train

    def train_b(self, *arguments):
        if self.row == "a":
            raise ImportError("Expected the package keras_hub")
        return train(self, *arguments)

    monkeypatch.setattr(run.Run, "train", train_b)
    with pytest.raises(ValueError, match="1 of 2 runs failed.\na, seed 0, failed: Expected the package keras_hub"):
        main("suite", str(tmp_path), f"--workdir={tmp_path}/out")
    assert os.path.exists(tmp_path / "out" / "b" / "seed_0" / "evaluation.json")


def test_trainings_without_evaluation_continue_after_one_that_failed(tmp_path, monkeypatch, capsys):
    train = run.Run.train

    def train_one(self, *arguments):
        if self.seed == 0:
            raise loop.TrainingDiverged("the loss is not finite")
        return train(self, *arguments)

    monkeypatch.setattr(run.Run, "train", train_one)
    with pytest.raises(ValueError, match="1 of 2 runs failed"):
        main("train", *DIGITS[:-2], "--evaluations=none", "--seeds=0,1", f"--workdir={tmp_path}")
    said = capsys.readouterr().out
    assert f"Model:   {tmp_path}/seed_1/saved_model" in said and "seed_0/saved_model" not in said


def test_a_report_notes_a_report_that_it_replaces(finished, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        main("report", finished, "--baseline=cross_entropy")
        assert "replaces" not in capsys.readouterr().out
    main("report", finished)
    assert (
        f"replaces the report of another command (python run_experiment.py report {finished} --baseline=cross_entropy)"
        in capsys.readouterr().out
    )


def test_a_run_in_training_is_not_evaluated(tmp_path):
    (tmp_path / "flags.txt").write_text("--data=digits\n")
    with pytest.raises(ValueError, match="whose training has not ended. Try: the command of the run again"):
        main("evaluate", str(tmp_path))


def test_an_interrupted_evaluation_exits_as_after_ctrl_c(finished, monkeypatch, capsys):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(EvaluatedModel, "evaluate", interrupt)
    with pytest.raises(SystemExit) as ended, commands.friendly_errors():
        main("evaluate", finished)
    assert ended.value.code == 130 and "Stopped. The same command continues" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("description", "said"),
    [
        ({"baselin": "low"}, "Unknown key in .*suite.json: 'baselin'. Did you mean 'baseline'?"),
        ({"baseline": "lo"}, "Unknown .baseline. in .*suite.json: 'lo'. Did you mean 'low'?"),
        ({"rows": ["low", "hihg"]}, "Unknown row in .rows. of .*suite.json: 'hihg'. Did you mean 'high'?"),
        ({"notes": "text"}, "is not of type 'array'.*Try: docs/reference/training.md describes"),
    ],
)
def test_names_in_the_description_of_a_table_are_checked(table, description, said):
    with open(os.path.join(table, "suite.json"), "w", encoding="utf-8") as file:
        json.dump(description, file)
    with pytest.raises(ValueError, match=said):
        main("suite", table, "--dry_run")


def test_a_report_without_its_baseline_and_one_of_validation_images_say_so(finished, tmp_path):
    evaluation = {**read(finished, "evaluation.json"), "split": "validation", "measured_in": finished}
    rows = [{**evaluation, "row": row} for row in ("one", "two")]
    comparison.write_report(str(tmp_path), rows, title="t", command="c", suite={"baseline": "plain"})
    text = (tmp_path / "report.md").read_text()
    assert "The baseline plain is missing: it has no evaluation here." in text
    assert "All values are of validation images, on which settings are chosen, not of test images." in text
