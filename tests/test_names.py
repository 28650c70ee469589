"""Names and flags of the previous version: they give what they gave, with a warning that has the new name."""

import importlib
import inspect
import logging

import pytest

from tf_robust import api
from tf_robust.experiments.compatibility import RENAMED_FLAGS
from tf_robust.experiments.flags import parse_arguments

MODULES = {
    "callbacks": "training.callbacks",
    "command_line": "experiments.flags",
    "devices": "training.distribution",
    "export": "saved_models.export",
    "loading": "saved_models.loading",
    "outputs": "models.outputs",
    "philox": "ops.philox",
    "prepared": "corrupted_datasets",
    "settings": "experiments.config",
    "workdir": "experiments.workdir",
}
OBJECTS = [
    ("evaluation", "Measuring", "evaluation.EvalConfig"),
    ("methods", "FeatureContrastive", "methods.FCL"),
    ("attacks", "BisectedDescent", "attacks.MinimalPGD"),
    ("corrupted_datasets", "Writing", "corrupted_datasets.WriterConfig"),
    ("models", "around", "models.from_backbone"),
    ("models", "start", "models.load_encoder"),
    ("saved_models.loading", "Interface", "saved_models.loading.ModelInterface"),
    ("experiments.config", "Settings", "experiments.config.TrainConfig"),
]


@pytest.mark.parametrize("old, new", MODULES.items())
def test_a_moved_module_works_with_a_warning(old, new):
    with pytest.warns(DeprecationWarning, match=rf"tf_robust\.{old} is now tf_robust\.{new}\."):
        assert getattr(importlib.import_module("tf_robust"), old) is importlib.import_module(f"tf_robust.{new}")


@pytest.mark.parametrize("package, old, new", OBJECTS)
def test_a_renamed_object_works_with_a_warning(package, old, new):
    parent, _, last = new.rpartition(".")
    with pytest.warns(DeprecationWarning, match=rf"tf_robust\.{package}\.{old} is now tf_robust\.{new}\."):
        found = getattr(importlib.import_module(f"tf_robust.{package}"), old)
    assert found is getattr(importlib.import_module(f"tf_robust.{parent}"), last)


def test_every_moved_name_exists():
    for name in ("", ".evaluation", ".methods", ".attacks", ".corrupted_datasets", ".models"):
        module = importlib.import_module(f"tf_robust{name}")
        for old in inspect.getclosurevars(getattr(module, "_moved", module.__getattr__)).nonlocals["names"]:
            with pytest.warns(DeprecationWarning):
                assert getattr(module, old) is not None


def test_other_names_do_not_exist():
    with pytest.raises(AttributeError, match="module 'tf_robust' has no attribute 'trainig'"):
        importlib.import_module("tf_robust").trainig


@pytest.mark.parametrize("old, new", RENAMED_FLAGS.items())
def test_a_renamed_flag_works_with_a_warning(old, new, tmp_path, caplog):
    value = {"layout": "tfds", "curves": "pgd_l2", "corruptions_from": "x", "sweep_measure": "un"}.get(
        old, "0.5" if "block" not in old else "7"
    )
    file = tmp_path / "a.flags"
    file.write_text(f"--{old}={value}\n")
    with caplog.at_level(logging.WARNING):
        both = [parse_arguments([argument]) for argument in (f"--{old}={value}", f"--flagfile={file}")]
    expected = parse_arguments([f"--{new}={value}"])[new].value
    assert [values[new].value for values in both] == [expected] * 2 and all(values[new].present for values in both)
    assert caplog.text.count(f"--{old} is now --{new}. The old name will be removed in the next release.") == 2


def test_a_renamed_flag_is_an_argument_of_the_interface_for_notebooks():
    with pytest.warns(DeprecationWarning, match="validation_share is now validation_fraction"):
        images, _ = api.images(3, data="digits", validation_share=0.1, evaluation_split="validation")
    assert len(images) == 3
