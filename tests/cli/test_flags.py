"""Values of flags and arguments, flags of other methods and commands, and paths that are data."""

import pathlib

import numpy as np
import pytest

from tests.command_line import options_of, runs_of
from tests.small_runs import write_rows
from tf_robust import api
from tf_robust.cli.build import read_rows
from tf_robust.data.kinds import data_of
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
        ("evaluate m.keras --data=digits --groups=site", "--evaluations=slices"),
        ("train --severities=1,3", "--evaluations=corruptions or --evaluations=corruptions_bar"),
        ("attack m.keras --data=digits --sequences=all", "--evaluations=perturbations"),
        ("attack m.keras --data=digits --attack=pgd --attack_queries=9", "--attack=autoattack or --attack=square"),
        ("attack m.keras --data=digits --attack=square --attack_checks", "--attack=autoattack or --attack=pgd"),
        ("evaluate m.keras --data=digits --adaptation_order=by_class", "--adaptation=batch_norm"),
        ("train --evaluations=corruptions --corrupted_dir=c --corruption_protocol=float", '--corrupted_dir=""'),
        ("train --evaluations=none --attack=pgd", "--evaluations=adversarial"),
        ("harden m.keras --data=digits --target=noise --attack_subset=9", "--evaluations=adversarial"),
        ("suite flags/quickstart --groups=site", "--evaluations=slices"),
        ("train --select=corruptions/mean15 --attack_subset=9", "--evaluations=adversarial"),
    ],
)
def test_a_flag_of_another_method_command_or_evaluation_is_named_with_its_owners(line, owner):
    with pytest.raises(ValueError, match=f"Unknown flag --\\w+: it belongs to {owner}"):
        options_of(*line.split())


@pytest.mark.parametrize(
    "line, flag",
    [
        ("train --evaluations=clean,adversarial --attack=square --attack_queries=9", "attack_queries"),
        ("train --evaluations=perturbations --shifts=mnist --calibrate=vector", "calibrate"),  # of the shifted images
        ("train --evaluations=perturbations,corruptions --corrupted_dir=c --corruption_constants=cifar", "corruption_constants"),
        ("train --evaluations=clean --select=corruptions/mean15 --severities=1,3", "severities"),  # the choice of the epoch depends on it
    ],
)
def test_a_flag_with_an_effect_is_accepted(line, flag):
    assert flag in options_of(*line.split()).given


def test_api_refuses_the_same_arguments():
    with pytest.raises(ValueError, match="Expected evaluations=slices with groups. Received: evaluations=clean"):
        api.train("unused", evaluations="clean", groups="site")
    with pytest.raises(ValueError, match="Expected attack=autoattack or attack=square with attack_queries. Received: attack=pgd"):
        api.evaluate(lambda images: images, (np.zeros((2, 4, 4, 1)), [0, 1]), evaluations="adversarial", attack="pgd", attack_queries=9)


def test_flags_that_override_those_of_a_flagfile_make_none_of_its_lines_invalid(tmp_path):
    (tmp_path / "row.flags").write_text("--data=digits\n--evaluations=clean,adversarial\n--attack_subset=7\n--attack_queries=9\n")
    options = options_of("train", f"--flagfile={tmp_path}/row.flags", "--evaluations=clean", "--attack=pgd")
    assert options["evaluations"] == ("clean",) and options["attack_subset"] == 7
    with pytest.raises(ValueError, match="Unknown flag --severities: it belongs to --evaluations=corruptions"):
        options_of("train", f"--flagfile={tmp_path}/row.flags", "--severities=1")


def test_a_row_of_a_suite_takes_the_flags_of_its_method_and_its_evaluations(tmp_path):
    methods = {"a": ["--method=fcl", "--evaluations=clean,adversarial"], "b": ["--method=cutmix", "--evaluations=corruptions"]}
    write_rows(tmp_path, {row: ["--data=digits", *flags] for row, flags in methods.items()})
    given = {"attack_subset": 7, "severities": (1,), "fcl_k": 7, "cutmix_alpha": 0.5}
    options = options_of("suite", str(tmp_path), "--attack_subset=7", "--severities=1", "--fcl_k=7", "--cutmix_alpha=0.5")
    assert options.given == {**given, "suite": str(tmp_path)}
    rows = read_rows({row: str(tmp_path / f"{row}.flags") for row in "ab"}, given)
    assert rows["a"].given.keys() & given.keys() == {"attack_subset", "fcl_k"}
    assert rows["b"].given.keys() & given.keys() == {"severities", "cutmix_alpha"}
    for flag, owner in (("--nun_floor=0.2", "--evaluations=noise"), ("--gaussian_sigma=1", "--method=gaussian")):
        with pytest.raises(ValueError, match=f"it belongs to {owner}"):
            options_of("suite", str(tmp_path), flag)


def test_a_recorded_run_names_the_evaluations_of_its_model(tmp_path):
    (tmp_path / "flags.txt").write_text("--data=digits\n--evaluations=clean,adversarial\n--attack_queries=9\n--attack_subset=7\n")
    assert options_of("evaluate", str(tmp_path), "--attack_subset=8").given == {"attack_subset": 8, "saved_model": str(tmp_path)}
    assert options_of("attack", str(tmp_path), "--attack_subset=8")["evaluations"] == ("clean", "adversarial")
    with pytest.raises(ValueError, match="Unknown flag --attack_subset: it belongs to --evaluations=adversarial"):
        options_of("evaluate", str(tmp_path), "--evaluations=clean", "--attack_subset=8")


def test_a_run_records_the_flags_that_have_an_effect():
    flags = run_config({"evaluations": "clean", "attack_queries": 9, "severities": "1"}).flags
    assert not {"attack_queries", "severities", "attack"} & flags.keys() and flags["calibrate"] == "none"
    chosen = run_config({"evaluations": "clean", "severities": "1,2", "select": "corruptions/fog"}).flags
    assert chosen["severities"] == "1,2" and "corrupted_dir" not in chosen and "attack" not in chosen


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
        (tuple[float, ...], "0,1/4", (0.0, 0.25)),
        (tuple[str, ...], "", ()),
        (tuple[str, ...], "a,b", ("a", "b")),
    ],
)
def test_values_and_texts_are_parsed_alike(kind, given, expected):
    assert Parameter("name", kind, "", "").parse(given) == expected


@pytest.mark.parametrize(
    "kind, given",
    [
        *[(int, "3.5"), (int, 2**31), (int, True), (bool, "maybe"), (tuple[int, ...], "1,x"), (str, 3)],
        *[(float, number) for number in ("inf", float("nan"), "1/0", "8/x", "/", "1/2/3")],
    ],
)
def test_values_of_another_kind_are_refused(kind, given):
    with pytest.raises(ValueError, match="Expected name as .* Received: "):
        Parameter("name", kind, "", "").parse(given)


def test_the_flags_of_a_run_repeat_it():
    given = {"data": "digits", "method": "fcl", "fcl_k": "20", "views": "clean,augmix", "augmix_width": 2, "weight_decay": 0.1}
    config = run_config(given)
    assert config.method["k"] == 20 and config.augmentations["augmix"] == {"width": 2} and config.train.weight_decay == 0.1
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


@pytest.mark.parametrize(
    "flags, views",
    [
        ("", ("clean",)),
        ("--method=noisymix", ("clean", "augmix", "augmix")),
        ("--method=noisymix --noisymix_jsd_weight=0", ("clean",)),
        ("--method=nfm", ("clean",)),
        ("--method=augmix --views=clean,augmix_chain", ("clean", "augmix_chain")),
        ("--method=simclr", ("simclr", "simclr")),
    ],
)
def test_the_views_are_those_of_the_method_unless_they_are_given(flags, views):
    (run,) = runs_of(*flags.split())
    assert run.config.views == views and run.flags["views"] == ",".join(views)
    assert ("augmix_severity" in run.flags) == ("augmix" in views)
