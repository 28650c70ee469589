"""Values of flags and arguments, flags of other methods and commands, and paths that are data."""

import pathlib

import numpy as np
import pytest

from tests.command_line import main, options_of
from tf_robust import api
from tf_robust.data.names import data_of
from tf_robust.runs.config import run_config
from tf_robust.utils.hyperparameters import Parameter


@pytest.mark.parametrize(
    "line, owner",
    [
        ("train --fcl_k=5", "--method=fcl"),
        ("train --method=cutmix --fcl_k=256", "--method=fcl"),
        ("train --method=moco --views=moco_v2,moco_v2 --augmix_width=2", "--views=augmix"),
        ("evaluate model.keras --data=digits --epochs=3", "tf-robust train or tf-robust suite or tf-robust sweep"),
        ("train --require=clean>=0", "tf-robust evaluate or tf-robust attack"),
        ("suite flags/fcl/table1 --baseline=x", "tf-robust report"),
        ("train --trials=3", "tf-robust sweep"),
        ("train --formats=onnx", "tf-robust evaluate or tf-robust attack or tf-robust export"),
        ("evaluate model.keras --tracker=wandb", "tf-robust train"),
        ("export model.keras --data=digits --budget=7m", "tf-robust harden"),
        ("evaluate model.keras --data=digits --dataset_format=tfds", "tf-robust corrupt"),
    ],
)
def test_a_flag_of_another_method_or_command_is_named_with_its_owner(line, owner):
    with pytest.raises(ValueError, match=f"Unknown flag --\\w+: it belongs to .*{owner}"):
        options_of(*line.split())


def test_a_row_of_a_suite_takes_the_flags_of_its_method(tmp_path):
    for row, method in (("a", "fcl"), ("b", "cutmix")):
        (tmp_path / f"{row}.flags").write_text(f"--data=digits\n--method={method}\n")
    options = options_of("suite", str(tmp_path), "--fcl_k=7", "--cutmix_alpha=0.5")
    assert options.given == {"fcl_k": 7, "cutmix_alpha": 0.5, "suite": str(tmp_path)}
    with pytest.raises(ValueError, match="Unknown flag --gaussian_sigma: it belongs to --method=gaussian"):
        options_of("suite", str(tmp_path), "--gaussian_sigma=1")


def test_numbers_may_be_fractions():
    options = options_of("train", "--method=adversarial", "--adversarial_radius=8/255", "--certified_radii=0,1/4")
    assert options["adversarial_radius"] == 8 / 255 and options["certified_radii"] == (0.0, 0.25)
    for text in ("1/0", "8/x", "/", "1/2/3"):
        with pytest.raises(ValueError, match=f"Expected adversarial_radius as a finite number. Received: '{text}'"):
            options_of("train", "--method=adversarial", f"--adversarial_radius={text}")


@pytest.mark.parametrize(
    "kind, given, expected",
    [
        (int, "3", 3),
        (int, np.int64(3), 3),
        (float, "8/255", 8 / 255),
        (float, 2, 2.0),
        (bool, "false", False),
        (str, pathlib.Path("a/b"), "a/b"),
        (tuple[int, ...], "1,3", (1, 3)),
        (tuple[int, ...], 3, (3,)),
        (tuple[int, ...], np.array([1, 3]), (1, 3)),
        (tuple[float, ...], [0, "1/4"], (0.0, 0.25)),
        (tuple[str, ...], "", ()),
        (tuple[str, ...], "a,b", ("a", "b")),
    ],
)
def test_values_and_texts_are_parsed_alike(kind, given, expected):
    assert Parameter("name", kind, "", "").parse(given) == expected


@pytest.mark.parametrize(
    "kind, given",
    [(int, "3.5"), (int, 2**31), (int, True), (float, "inf"), (float, float("nan")), (bool, "maybe"), (tuple[int, ...], "1,x"), (str, 3)],
)
def test_values_of_another_kind_are_refused(kind, given):
    with pytest.raises(ValueError, match="Expected name as .* Received: "):
        Parameter("name", kind, "", "").parse(given)


def test_the_flags_of_a_run_repeat_it():
    given = {"data": "digits", "method": "fcl", "fcl_k": "20", "views": "clean,augmix", "augmix_width": 2, "weight_decay": 0.1}
    config = run_config(given)
    assert config.method["k"] == 20 and config.augmentations["augmix"] == {"width": 2} and config.method["weight_decay"] == 0.1
    assert config.flags.items() >= {"fcl_k": "20", "views": "clean,augmix", "augmix_width": "2", "weight_decay": "0.1"}.items()
    assert run_config(config.flags).flags == config.flags and "data_dir" not in config.flags


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A working directory with folders, one of which has the name of a known data set, and data files."""
    for name in ("pics/test/cat", "night", "digits", "dataset"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("labels.csv", "arrays.npz", "notes.txt"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "given, expected",
    [
        ("pics/test", "folder:pics/test"),
        ("pics/", "folder:pics"),
        (pathlib.Path("pics"), "folder:pics"),
        ("digits", "digits"),  # a known data set, before a folder
        ("./digits", "folder:./digits"),
        (pathlib.Path("digits"), "folder:digits"),
        ("labels.csv", "csv:labels.csv"),
        (pathlib.Path("arrays.npz"), "npz:arrays.npz"),
        ("folder:pics", "folder:pics"),
        ("csv:labels.csv", "csv:labels.csv"),
        ("cifar10", "cifar10"),
        ("nowhere", "nowhere"),
    ],
)
def test_a_path_that_exists_is_data(files, given, expected):
    assert data_of(given) == expected
    assert api._with_data_names({"data": given, "shifts": [given, "night"]}) == {"data": expected, "shifts": (expected, "folder:night")}
    if isinstance(given, str):
        assert options_of("train", f"--data={given}", f"--shifts={given},night")["shifts"] == (expected, "folder:night")
        assert options_of("corrupt", given)["data"] == expected
