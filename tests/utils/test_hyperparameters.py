"""Hyperparameters are written down once: every flag of a method has a type, a default and a help text."""

import inspect

import pytest

from tf_robust import corrupted_datasets, evaluation, methods
from tf_robust.data.augment import VIEWS
from tf_robust.experiments.config import TrainConfig
from tf_robust.saved_models import loading
from tf_robust.utils import hyperparameters

TARGETS = {**methods.METHODS, **VIEWS, "settings": TrainConfig, "measuring": evaluation.EvalConfig,
           "interface": loading.ModelInterface, "writing": corrupted_datasets.WriterConfig}


@pytest.mark.parametrize("name", TARGETS)
def test_every_hyperparameter_is_documented_and_has_a_default(name):
    for parameter in hyperparameters.parameters(TARGETS[name]).values():
        assert parameter.help, f"{name}: {parameter.name} has no line under Args"
        assert parameter.default is not None


@pytest.mark.parametrize("name", methods.METHODS)
def test_hyperparameters_of_methods_are_keyword_only(name):
    arguments = list(inspect.signature(methods.METHODS[name].__init__).parameters.values())[2:]
    assert all(a.kind in (a.KEYWORD_ONLY, a.VAR_KEYWORD) for a in arguments)


def test_arguments_come_from_the_whole_class_hierarchy():
    found = hyperparameters.parameters(methods.METHODS["fcl"])
    assert {"k", "form", "weight", "start_epoch", "weight_decay"} <= set(found)
    assert found["form"].choices == ("softmax", "margin") and found["k"].kind is int and found["k"].default == 256
    assert found["weight"].help.startswith("lambda")
