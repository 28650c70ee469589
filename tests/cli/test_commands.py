"""The commands of the command line: what arguments mean, and quick answers to mistakes."""

import importlib.util
import os
import shutil
import sys

import keras
import pytest

from tests.command_line import main, options_of
from tests.conftest import ROOT
from tests.small_runs import SMALL, eagerly, read, sample_images, trained, without_charts  # noqa: F401
from tf_robust.cli import build, command_line
from tf_robust.cli.command_line import read_command
from tf_robust.evaluation import scoring
from tf_robust.runs import workdir

pytestmark = pytest.mark.usefixtures("eagerly")


@pytest.mark.parametrize(
    "line, name, expected",
    [
        ("", "suite", {"suite": "flags/quickstart"}),
        ("--workdir=x --seeds=3", "suite", {"suite": "flags/quickstart", "workdir": "x", "seeds": (3,)}),
        ("--seeds=1,2", "suite", {"suite": "flags/quickstart", "seeds": (1, 2)}),
        ("--epochs=3 --seeds=3", "train", {"epochs": 3, "seeds": (3,)}),
        ("train", "train", {}),
        ("--data=digits train --epochs=2", "train", {"data": "digits", "epochs": 2}),
        ("evaluate flags --data=digits", "evaluate", {"saved_model": "flags", "data": "digits"}),
        ("--data digits evaluate flags", "evaluate", {"saved_model": "flags", "data": "digits"}),
        ("evaluate --workdir=runs/x", "evaluate", {"workdir": "runs/x"}),
        ("attack flags --data=digits", "attack", {"saved_model": "flags", "data": "digits", "evaluations": ("clean", "adversarial")}),
        ("attack flags --data=digits --evaluations=clean", "attack", {"evaluations": ("clean",)}),
        ("corrupt digits", "corrupt", {"data": "digits"}),
        ("corrupt tests/", "corrupt", {"data": "folder:tests"}),
        ("suite flags/fcl/table1 --seeds=0", "suite", {"suite": "flags/fcl/table1", "seeds": (0,)}),
        ("suite --suite=flags/fcl/table1", "suite", {"suite": "flags/fcl/table1"}),
        ("sweep epochs=1,2;batch_size=3,4", "sweep", {"sweep": "epochs=1,2;batch_size=3,4"}),
        ("report flags tests --workdir=x", "report", {"runs": ("flags", "tests"), "workdir": "x"}),
        ("report --runs=flags,tests", "report", {"runs": ("flags", "tests")}),
        ("list methods", "list", {"section": "methods"}),
        ("serve --data_service=a:1", "serve", {"data_service": ("a:1",)}),
    ],
)
def test_what_a_command_line_means(line, name, expected, monkeypatch):
    monkeypatch.chdir(ROOT)
    command, options = read_command(line.split())
    assert command.name == name and {flag: options[flag] for flag in expected} == expected
    assert "attack" in line or options.given == expected


def test_a_folder_with_a_comma_in_its_name_is_one_folder(tmp_path):
    os.makedirs(tmp_path / "a=1,b=2")
    assert read_command(["report", f"{tmp_path}/a=1,b=2"])[1]["runs"] == (f"{tmp_path}/a=1,b=2",)


def test_a_flagfile_of_the_package_is_found_from_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["train", "--flagfile=flags/fcl/table1/fcl.flags"]
    options = options_of(*arguments)
    assert options["method"] == "fcl" and build.row_of(options, arguments)[:2] == ("runs/fcl_table1/fcl", "fcl")


@pytest.mark.parametrize(
    "line, message",
    [
        ("evaluate a b", "Expected one MODEL. Received: a b"),
        ("evaluate flags --saved_model=tests", "Expected MODEL once. Received: flags and --saved_model=tests"),
        ("evaluate flags", "Expected --data, the images to evaluate flags on"),
        ("evaluate", "Expected a model. Received: none"),
        ("evaluate {}/seeds", "which holds 2. Try: tf-robust evaluate .*/seeds/seed_0"),
        ("attack flags --data=digits --evaluations=none", "Expected evaluations with attack. Received: --evaluations=none"),
        ("train --evaluations=none,clean", "Received: --evaluations=none,clean"),
        ("suite flags/fcl/table1 --evaluations=none", "Expected evaluations with suite"),
        ("train --saved_model=m.keras", "Unknown flag --saved_model"),
        ("{}/model.keras", "Try: tf-robust evaluate .*/model.keras --data=NAME"),
        ("{}/seeds/seed_0", "Try: tf-robust evaluate .*/seeds/seed_0$"),
        ("flags/fcl/table1", "Try: tf-robust suite flags/fcl/table1"),
        ("flags/fcl/table1/fcl.flags", "Try: tf-robust train --flagfile=flags/fcl/table1/fcl.flags"),
        ("train flags/fcl/table1/fcl.flags", "Try: --flagfile=flags/fcl/table1/fcl.flags"),
        ("train {}", "Try: --data=folder:"),
        ("report {}/seed", "which matches none. Did you mean '.*/seeds'"),
        ("evaluate zoo:digits/lenet_augmix --dry_run", "Unknown flag --dry_run"),
        ("sweep", "Expected GRID"),
        ("tfds", "Expected one of: train, evaluate"),
        ("train foo", "Try: tf-robust train --help"),
        ("train fcl", "Try: --method=fcl"),
        ("train lenet", "Try: --model=lenet"),
        ("list method", "Unknown value of section: 'method'. Did you mean 'methods'"),
    ],
)
def test_arguments_that_make_no_sense_are_answered_with_what_to_type(line, message, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    (tmp_path / "model.keras").write_text("")
    for seed in (0, 1):
        os.makedirs(tmp_path / "seeds" / f"seed_{seed}")
        (tmp_path / "seeds" / f"seed_{seed}" / "flags.txt").write_text("--data=digits\n")
    with pytest.raises((ValueError, FileNotFoundError), match=message) as raised:
        read_command(line.format(tmp_path).split())
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize(
    "line, module, advice",
    [
        ("corrupt digits --engine=beam", "apache_beam", r"pip install 'tf_robust\[beam\]'"),
        ("train --model=resnet50_v2", "keras_cv", "pip install keras-cv"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(line, module, advice, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == module else find_spec(name, *rest))
    with pytest.raises(ValueError, match=f"Expected the package {module} .* Not installed. Try: {advice}"):
        read_command(line.split())


def test_an_evaluation_of_a_run_goes_on_from_its_records(trained, tmp_path, monkeypatch):  # noqa: F811
    shutil.copytree(trained, tmp_path / "run")
    scored, score_set = [], scoring.score_set
    monkeypatch.setattr(scoring, "score_set", lambda predict, one: scored.append(one.name) or score_set(predict, one))
    main("evaluate", f"{tmp_path}/run", "--evaluations=clean,noise")
    assert scored == ["un", "nun"]
    of_run, further = (read(tmp_path / "run" / folder / "evaluation.json")["rows"] for folder in ("", "measured"))
    assert of_run == further[:1]


def test_foreign_models_have_the_names_of_their_files(sample_images, trained, tmp_path, monkeypatch, capsys):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    os.makedirs("theirs")
    for path in ("theirs/a.keras", "theirs/b.keras"):
        keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Flatten(), keras.layers.Dense(2)]).save(path)
        main("evaluate", path, sample_images, "--evaluations=clean")
    folders = sorted(os.listdir(tmp_path / "runs" / "evaluation"))
    assert [folder.rpartition("-")[2] for folder in folders] == ["a", "b"]
    found = read(tmp_path / "runs" / "evaluation" / folders[0] / "evaluation.json")
    assert (found["row"], found["method"], found["model"]) == ("a", "", "a.keras")
    shutil.copytree(os.path.join(trained, "saved_model"), tmp_path / "copy")
    main("evaluate", "copy", sample_images, "--image_size=16", "--evaluations=clean", f"--workdir={tmp_path}/copied")
    found = read(tmp_path / "copied" / "evaluation.json")
    assert (found["row"], found["method"], found["model"]) == ("copy", "cross_entropy", "lenet")  # as its card says
    with pytest.raises(ValueError, match="'c'. Known: a, b"):
        main("report", "runs/evaluation/*", "--baseline=c")
    shutil.copytree("runs/evaluation", "records")
    os.rename("theirs/a.keras", "theirs/removed.keras")
    capsys.readouterr()
    main("report", "records/*", "--baseline=b", f"--workdir={tmp_path}/compared")
    compared = read(tmp_path / "compared" / "results.json")["rows"]
    assert {row["row"]: row["difference"]["baseline"] for row in compared if row["difference"]} == {"a": "b"}
    said = capsys.readouterr().out
    assert "theirs/b.keras  (b, seed" in said and "theirs/a.keras  (" not in said  # names the models that exist
    held_out = ("--evaluation_split=validation", "--validation_fraction=0.3")
    main("evaluate", "theirs/b.keras", sample_images, *held_out, "--evaluations=clean", "--workdir=runs/evaluation/b")
    main("report", "runs/evaluation/*", f"--workdir={tmp_path}/both")
    said = capsys.readouterr().out
    assert ", test: a, b" in said and ", validation: b" in said and "each model with --evaluation_split=test" in said


@pytest.mark.parametrize(
    "path, row",
    [
        ("runs/fcl/saved_model", "fcl"),
        ("runs/fcl/seed_3/saved_model", "fcl"),
        ("theirs/model.keras", "model"),
        ("theirs/export/", "export"),
        ("/saved_model", "model"),
        ("theirs/seed_0.keras", "seed_0"),
    ],
)
def test_the_row_of_a_model(path, row):
    assert workdir.row_name(path) == row


def test_the_program_is_named_as_it_was_called(monkeypatch):
    for argv0, expected in (
        ("/somewhere/bin/tf-robust", "tf-robust list"),
        ("/x/tf_robust/__main__.py", "python -m tf_robust list"),
        ("run_experiment.py", "python run_experiment.py list"),
        ("/x/pytest/__main__.py", "python run_experiment.py list"),
    ):
        monkeypatch.setattr(sys, "argv", [argv0])
        assert command_line.command("list") == expected
