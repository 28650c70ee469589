"""Runs that are called again after their flags, data, models or folders have changed, and flags that a command does not use."""

import os
import shutil
from unittest import mock

import numpy as np
import pytest

from tests.command_line import main
from tests.small_runs import CLEAN, eagerly, evaluated, read, table, without_charts, write_rows  # noqa: F401
from tf_robust import api
from tf_robust.cli import commands
from tf_robust.report import comparison
from tf_robust.report.evaluated_model import EvaluatedModel
from tf_robust.runs import run
from tf_robust.training import loop
from tf_robust.utils.files import write_json

pytestmark = pytest.mark.usefixtures("eagerly")

SMALL = ("--batch_size=20", "--epochs=1", "--evaluations=clean", "--subset=40")


@pytest.fixture
def copied(evaluated, tmp_path):
    return shutil.copytree(evaluated, str(tmp_path / "copied"))


def write_images(path, count, shift=0):
    generator = np.random.RandomState(0)
    labels = np.arange(count) % 4
    images = np.clip(60 * labels[:, None, None, None] + generator.randint(0, 20, (count, 16, 16, 1)), 0, 255).astype(np.uint8)
    np.savez(path, images=images, labels=(labels + shift) % 4)


def test_a_suite_is_refused_in_which_only_some_rows_evaluate_a_model(evaluated, tmp_path):
    write_rows(tmp_path, {"plain": ["--data=digits"], "mine": ["--data=digits", f"--saved_model={evaluated}/saved_model"]})
    with pytest.raises(ValueError, match="with saved_model: mine"):
        main("suite", str(tmp_path), f"--workdir={tmp_path}/out")
    assert not (tmp_path / "out").exists()


def test_a_suite_is_refused_whose_rows_have_images_of_other_sizes(tmp_path):
    write_rows(tmp_path, {"a": [*CLEAN, "--image_size=16", "--subset=3"], "b": [*CLEAN, "--image_size=28"]})
    with pytest.raises(ValueError, match=r"a and b, which differ in image_size \(16 and 28\).*subset \(3 and 40\)"):
        main("suite", str(tmp_path), f"--workdir={tmp_path}/out")
    assert not (tmp_path / "out").exists()


def test_a_wrong_value_in_a_row_names_its_file(tmp_path):
    write_rows(tmp_path, {"plain": ["--data=digits", "--epochs=0"]})
    with pytest.raises(ValueError, match="plain.flags: Expected epochs >= 1. Received: 0"):
        main("suite", str(tmp_path))


@pytest.mark.parametrize(
    "grid, names", [("label_fraction=0.5,1", "label_fraction"), ("image_size=16,28;nun_floor=0.1,0.2", "image_size, nun_floor")]
)
def test_axes_without_a_comparison_are_refused(grid, names):
    with pytest.raises(ValueError, match=f"Received: {names}"):
        main("sweep", grid, *CLEAN)


def test_the_record_of_a_finished_run_survives_a_failure(copied, capsys):
    shutil.rmtree(os.path.join(copied, "saved_model"))
    before = open(os.path.join(copied, "flags.txt")).read()
    with pytest.raises(ValueError, match="batch_size: 20 then, 30 now"):
        main("train", *CLEAN, "--batch_size=30", f"--workdir={copied}")
    main("train", *CLEAN, "--evaluations=clean,noise", f"--workdir={copied}")  # trained and exported again
    assert "evaluations=clean,noise" in open(os.path.join(copied, "flags.txt")).read() != before
    assert {"clean", "un"} <= {row["metric"] for row in read(copied, "evaluation.json")["rows"]}
    assert os.path.exists(os.path.join(copied, "saved_model", "card.json"))


def test_flags_of_a_training_without_a_checkpoint_are_not_binding(tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(loop.TrainingDiverged):
        patch.setattr(run.loop, "fit", mock.Mock(side_effect=loop.TrainingDiverged))
        main("train", *CLEAN, "--learning_rate=100", f"--workdir={tmp_path}")
    main("train", *CLEAN, "--learning_rate=0.01", f"--workdir={tmp_path}")
    assert os.path.exists(tmp_path / "evaluation.json")


def test_a_moved_run_has_its_own_model_and_records(copied, capsys):
    main("train", *CLEAN, f"--workdir={copied}")
    said = capsys.readouterr().out
    assert "already done" in said and f"Model:   {copied}/saved_model" in said


def test_python_takes_the_std_from_the_images_a_run_was_trained_on(copied, capsys):
    main("evaluate", copied, "--evaluations=noise")
    measured = read(copied, "measured", "evaluation.json")
    in_python = api.evaluate(copied, evaluations="noise", subset=40)
    assert in_python.evaluation["card"] == measured["card"]
    assert in_python.values == {row["metric"]: row["value"] for row in measured["rows"]}
    every = api.evaluate(os.path.join(copied, "saved_model"), evaluations="noise", subset=40, train_examples=0)
    with pytest.raises(ValueError, match="'nun' .* differ in the training images .*train_examples"):
        api.compare(in_python, every)


def test_a_run_is_evaluated_on_all_images_of_another_file(tmp_path, capsys):
    paths = [str(tmp_path / name) for name in ("one.npz", "other.npz")]
    for path, count in zip(paths, (400, 80)):
        write_images(path, count)
    main("train", f"--data=npz:{paths[0]}", "--model=mlp", *SMALL, f"--workdir={tmp_path}/run")
    for path, split in zip(paths, ("test", "all")):
        main("evaluate", f"{tmp_path}/run", f"--data=npz:{path}", f"--workdir={tmp_path / split}")
        measured = read(tmp_path, split, "evaluation.json")
        assert measured["split"] == split and measured["card"]["data"]["num_images"] == 40
    assert "has no splits: evaluated on all of its images" in capsys.readouterr().out


def test_data_that_changed_in_training_or_after_it_are_noticed(tmp_path, monkeypatch):
    path, folder, fit = str(tmp_path / "mine.npz"), str(tmp_path / "run"), loop.fit
    arguments = ["train", f"--data=npz:{path}", "--model=mlp", "--validation_fraction=0.2", *SMALL, "--subset=0", "--epochs=3"]
    arguments.append(f"--workdir={folder}")
    write_images(path, 100)
    with monkeypatch.context() as patch, pytest.raises(loop.Interrupted):
        patch.setattr(run.loop, "fit", lambda *given, **options: fit(*given, **options, stop_after=4))
        main(*arguments)
    write_images(path, 80)
    with pytest.raises(ValueError, match="training images: 60, fingerprint .* then, 48, .* now\n"):
        main(*arguments)
    write_images(path, 100)
    main(*arguments)
    assert [epoch["epoch"] for epoch in read(folder, "history.json")] == [0, 1, 2]
    main(*arguments)
    write_images(path, 100, shift=1)
    with pytest.raises(ValueError, match="Expected the images on which .* was evaluated .* Received: others in npz:"):
        main(*arguments)


def test_an_encoder_that_was_trained_again_is_noticed(evaluated, tmp_path):
    start, folder = shutil.copytree(evaluated, str(tmp_path / "start")), str(tmp_path / "tuned")
    arguments = ("train", *CLEAN, f"--init_from={start}", f"--workdir={folder}")
    main(*arguments)
    main(*arguments)
    shutil.rmtree(start)
    main("train", *CLEAN, "--seeds=5", f"--workdir={start}")
    with pytest.raises(ValueError, match="with which .* was trained. Received: .*start, which was trained again"):
        main(*arguments)


def test_options_by_which_an_epoch_is_chosen_are_those_of_the_start(tmp_path):
    arguments = ("train", *CLEAN, "--select=corruptions/fog", "--select_images=20", f"--workdir={tmp_path}/run")
    main(*arguments, "--severities=1")
    with pytest.raises(ValueError, match="--severities: 1 then, 5 now"):
        main(*arguments, "--severities=5")


def test_trainings_without_evaluation_continue_after_one_that_failed(tmp_path, monkeypatch, capsys):
    train = run.Run.train

    def train_one(self, *arguments):
        if self.seed == 0:
            raise loop.TrainingDiverged("the loss is not finite")
        return train(self, *arguments)

    monkeypatch.setattr(run.Run, "train", train_one)
    with pytest.raises(ValueError, match="1 of 2 runs failed"):
        main("train", *CLEAN, "--evaluations=none", "--seeds=0,1", f"--workdir={tmp_path}")
    said = capsys.readouterr().out
    assert f"Model:   {tmp_path}/seed_1/saved_model" in said and "seed_0/saved_model" not in said


def test_a_report_notes_a_report_that_it_replaces(evaluated, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        main("report", f"{evaluated}", "--baseline=cross_entropy")
        assert "replaces" not in capsys.readouterr().out
    main("report", f"{evaluated}")
    assert f"replaces the report of another command (python run_experiment.py report {evaluated} --b" in capsys.readouterr().out


def test_a_run_in_training_is_not_evaluated(tmp_path):
    (tmp_path / "flags.txt").write_text("--data=digits\n")
    with pytest.raises(ValueError, match="training has not ended"):
        main("evaluate", str(tmp_path))


def test_an_interrupted_evaluation_exits_as_after_ctrl_c(evaluated, monkeypatch, capsys):
    monkeypatch.setattr(EvaluatedModel, "evaluate", mock.Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(SystemExit) as ended, commands.friendly_errors():
        main("evaluate", f"{evaluated}")
    assert ended.value.code == 130 and "Stopped. The same command continues" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("description", "said"),
    [
        ({"baselin": "low"}, "suite.json: 'baselin'. Did you mean 'baseline'"),
        ({"baseline": "lo"}, "suite.json: 'lo'. Did you mean 'low'"),
        ({"rows": ["low", "hihg"]}, "suite.json: 'hihg'. Did you mean 'high'"),
        ({"notes": "text"}, "is not of type 'array'"),
    ],
)
def test_names_in_the_description_of_a_table_are_checked(table, description, said):
    write_json(os.path.join(table, "suite.json"), description)
    with pytest.raises(ValueError, match=said):
        main("suite", table, "--dry_run")


def test_a_report_without_its_baseline_and_one_of_validation_images_say_so(evaluated, tmp_path):
    evaluation = {**read(evaluated, "evaluation.json"), "split": "validation", "measured_in": str(evaluated)}
    rows = [{**evaluation, "row": row} for row in ("one", "two")]
    comparison.write_report(str(tmp_path), rows, title="t", command="c", suite={"baseline": "plain"})
    text = (tmp_path / "report.md").read_text()
    assert "The baseline plain is missing: it has no evaluation here." in text
    assert "All values are of validation images, on which settings are chosen, not of test images." in text
