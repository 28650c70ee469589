"""Flags that have no effect are named."""

import contextlib
import pathlib

import pytest

from tests.test_cli import main
from tf_robust.experiments import completion, deployed, flags, keyword_arguments, measuring, modes
from tf_robust.experiments.commands import parse_command
from tf_robust.experiments.flags import parse_arguments
from tf_robust.experiments.run import Run
from tf_robust.experiments.runs import runs_of, warn_of_ignored_flags, warn_of_training_options, warn_of_unused_options


def runs(*arguments):
    values = parse_arguments(arguments)
    return runs_of(values, "row")


def warnings(caplog, *all_runs):
    caplog.clear()
    warn_of_ignored_flags([run for some in all_runs for run in some])
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    "given, owner",
    [
        (
            ["--fcl_k=5"],
            "--fcl_k has no effect: it belongs to --method=fcl. Received: --method=cross_entropy, --augmentations=, --views=clean",
        ),
        (["--fcl_k=256"], "--fcl_k has no effect"),  # whatever the default is
        (["--method=moco", "--views=moco_v2,moco_v2", "--augmix_width=2"], "it belongs to --augmentations=augmix or --views=augmix"),
        (["--simclr_blur=false"], "it belongs to --views=simclr. "),
    ],
)
def test_a_flag_of_another_method_or_view_is_reported_with_its_owner(given, owner, caplog):
    (message,) = warnings(caplog, runs(*given))
    assert owner in message


def test_a_validation_fraction_without_effect_is_reported(caplog):
    given = ["--validation_fraction=0.1"]
    (message,) = warnings(caplog, runs(*given, "--data=digits"))
    assert message == "--validation_fraction has no effect: digits has a validation split of its own. Received: --data=digits"
    assert not warnings(caplog, runs(*given, "--data=cifar10"))
    assert not warnings(caplog, runs(*given, "--data=digits"), runs(*given, "--data=cifar10"))


@pytest.mark.parametrize(
    "given",
    [
        ["--method=fcl", "--fcl_k=5"],
        ["--augmentations=augmix", "--augmix_width=2"],
        ["--views=augmix", "--augmix_width=2"],
        ["--epochs=3", "--weight_decay=0.1"],
    ],
)
def test_flags_with_an_effect_are_not_reported(given, caplog):
    assert not warnings(caplog, runs(*given))


def test_a_flag_for_a_table_has_an_effect_if_one_row_uses_it(caplog):
    rows = runs("--method=fcl", "--fcl_k=5", "--gaussian_weight=2"), runs("--fcl_k=5", "--gaussian_weight=2", "--seeds=0,1")
    (message,) = warnings(caplog, *rows)
    assert message.startswith("--gaussian_weight has no effect")


@pytest.mark.parametrize("command", [["train"], ["train", "--evaluations=none"], ["suite", "{}"], ["sweep", "epochs=1"]])
def test_all_training_commands_warn(command, tmp_path, caplog, monkeypatch):
    (tmp_path / "row.flags").write_text("--data=digits")
    monkeypatch.setattr(modes, "complete_and_report", lambda *_: None)
    monkeypatch.setattr(Run, "train", lambda *_: None)
    monkeypatch.setattr(completion, "run_all", lambda *_: ([], ["failed"]))
    fails = "sweep" in command or "--evaluations=none" in command
    with pytest.raises(ValueError, match="ll runs failed|1 of 1 runs") if fails else contextlib.nullcontext():
        main(*(word.format(tmp_path) for word in command), "--fcl_k=5", f"--workdir={tmp_path}/out")
    assert caplog.text.count("--fcl_k has no effect: it belongs to --method=fcl") == 1


@pytest.mark.parametrize("given, messages", [
    ("--smoothing_sigma=0.5",
     ["smoothing_sigma has no effect: it belongs to the evaluation certified. Received: --evaluations=clean,noise"]),
    ("--smoothing_sigma=0.5 --evaluations=certified", []),
    ("--severities=1,2 --attack_subset=5 --evaluations=certified",
     ["severities has no effect: it belongs to the evaluations corruptions, corruptions_bar. Received: --evaluations=certified"]),
    ("--attack_queries=9 --attack=pgd --evaluations=adversarial",
     ["attack_queries has no effect: it belongs to --attack=autoattack or --attack=square. Received: --attack=pgd"]),
    ("--attack_checks=false --attack=square --evaluations=adversarial",
     ["attack_checks has no effect: it belongs to --attack=autoattack or --attack=pgd. Received: --attack=square"]),
    ("--adaptation_order=by_class", ["adaptation_order has no effect: it belongs to --adaptation=batch_norm. Received: --adaptation=none"]),
    ("--adaptation_order=by_class --adaptation=batch_norm", []),
    ("--corrupted_dir=c --corruption_constants=cifar --evaluations=corruptions",
     ["corruption_constants has no effect: corrupted images are read. Received: --corrupted_dir=c"]),
    ("--corrupted_dir=c --corruption_constants=cifar --evaluations=corruptions,perturbations", []),
    ("--subset=5 --calibrate=temperature --epochs=3", []),
    ("--calibrate=vector --conformal=0.8 --evaluations=noise,attack_curves",
     [f"{name} has no effect: it belongs to the evaluations clean, corruptions, calibration, slices. "
      "Received: --evaluations=noise,attack_curves" for name in ("calibrate", "conformal")]),
    ("--abstain_accuracy=0.8 --evaluations=noise --shifts=folder:night", []),
])  # fmt: skip
def test_options_of_an_evaluation_without_effect_are_reported(given, messages, caplog):
    values = parse_arguments(given.split())
    warn_of_unused_options(values, [runs_of(values, "row")[0].eval_config])
    assert [record.getMessage() for record in caplog.records] == [f"--{message}" for message in messages]


@pytest.mark.parametrize("given, names", [
    ("--method=fcl --fcl_k=9 --data=digits --epochs=3 --weight_decay=0.1", "--epochs, --fcl_k, --method, --weight_decay"),
    ("--data=digits --seed=2 --subset=5 --train_examples=9 --label_fraction=0.5 --validation_fraction=0.5 --attack=pgd", ""),
    ("--data=digits --corruptions=fog --chunk_size=5 --budget=7m --evaluations=corruptions", "--budget, --chunk_size"),
])  # fmt: skip
def test_options_of_training_are_reported_where_nothing_is_trained(given, names, caplog):
    warn_of_training_options(parse_arguments(given.split()), "an evaluation")
    assert caplog.messages == ([f"No effect on an evaluation: {names}"] if names else [])


@pytest.mark.parametrize("formats", [(), ("--formats=keras",)])
def test_the_command_evaluate_warns(formats, tmp_path, caplog, monkeypatch):
    for module in (measuring, deployed):
        monkeypatch.setattr(module, "report", lambda *_: None)
    monkeypatch.setattr(deployed.latency, "milliseconds", lambda *_: (1.0, 5))
    flags = ("--subset=20", "--evaluations=clean", "--severities=1", "--epochs=3", f"--workdir={tmp_path}/out")
    main("evaluate", "zoo:digits/lenet_augmix", *flags, *formats)
    assert caplog.text.count("No effect on an evaluation: --epochs") == 1
    assert caplog.text.count("--severities has no effect: it belongs to the evaluations corruptions, corruptions_bar. Received: ") == 1


def test_numbers_may_be_fractions():
    values = parse_arguments(["--adversarial_radius=8/255", "--certified_radii=0,1/4"])
    assert values.adversarial_radius == 8 / 255 and values.certified_radii == (0.0, 0.25)
    for text in ("1/0", "8/x", "/", "1/2/3"):
        with pytest.raises(ValueError, match=f"Expected a number. Received: --adversarial_radius={text}"):
            parse_arguments([f"--adversarial_radius={text}"])


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
    assert flags.data_of(given) == expected
    (renamed,) = keyword_arguments.renamed({"data": given}).values()
    assert renamed == expected
    assert keyword_arguments.renamed({"shifts": [given, "night"]}) == {"shifts": (expected, "folder:night")}
    if isinstance(given, str):
        assert parse_arguments([f"--data={given}", f"--ood={given},night"]).data == expected
        assert parse_command(["corrupt", given])[1].data == expected
        assert parse_arguments([f"--shifts={given},night"]).shifts == (expected, "folder:night")


def test_names_of_data_in_memory_are_no_paths(files):
    assert keyword_arguments.renamed({"shifts": {"night": ()}, "label_map": files / "map"}) == {
        "shifts": {"night": ()},
        "label_map": str(files / "map"),
    }
    run, _ = keyword_arguments.run_of({"data": "dataset", "shifts": ("night",)})  # as `api.evaluate` names them
    assert run.data_config.data == "dataset" and run.eval_config.shifts == ("night",)
