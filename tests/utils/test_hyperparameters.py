"""Hyperparameters are written down once: every flag of a method has a type, a default and a help text."""

import inspect
import re
import typing

import pytest

from tf_robust import corrupted_datasets, evaluation, methods
from tf_robust.configs.train import TrainConfig
from tf_robust.data.augment import VIEWS
from tf_robust.saved_models import loading
from tf_robust.utils import hyperparameters

TARGETS = {
    **methods.METHODS,
    **VIEWS,
    "train_config": TrainConfig,
    "eval_config": evaluation.EvalConfig,
    "model_interface": loading.ModelInterface,
    "writer_config": corrupted_datasets.WriterConfig,
}


class Base:
    """A base class.

    Args:
        classifier: not a hyperparameter: it has no default.
        rate: of the base.
        depth: of the network.
    """

    def __init__(self, classifier, *, rate: float = 0.1, depth: int = 3):
        pass


class Derived(Base):
    """A class with hyperparameters.

    Args:
        sides: lengths in pixels, one for each level: the first
            is the longest. 0: none.
        norm: either "l2" (the default) or "linf".
        rate: of the derived class.

    Raises:
        ValueError: never.
    """

    def __init__(self, classifier, *, sides: tuple[int, ...] = (), norm: typing.Literal["l2", "linf"] = "l2", rate: float = 0.2, **kwargs):
        super().__init__(classifier, **kwargs)


@pytest.mark.parametrize("name", TARGETS)
def test_every_hyperparameter_is_documented_and_has_a_default(name):
    parameters = hyperparameters.parameters(TARGETS[name])
    for parameter in parameters.values():
        assert parameter.help, f"{name}: {parameter.name} has no line under Args"
        assert parameter.default is not None
        others = set(re.findall(r"(?<=\. )(\w+): ", parameter.help)) & set(parameters)
        assert not others, f"{name}: the text of {parameter.name} runs into {others}; write one argument per line"


@pytest.mark.parametrize("name", methods.METHODS)
def test_hyperparameters_of_methods_are_keyword_only(name):
    arguments = list(inspect.signature(methods.METHODS[name].__init__).parameters.values())[2:]
    assert all(a.kind in (a.KEYWORD_ONLY, a.VAR_KEYWORD) for a in arguments)


def test_parameters_come_from_signatures_and_docstrings_of_a_class_and_its_bases():
    assert list(hyperparameters.parameters(Derived).values()) == [
        hyperparameters.Parameter(
            "sides", tuple[int, ...], (), "lengths in pixels, one for each level: the first is the longest. 0: none."
        ),
        hyperparameters.Parameter("norm", str, "l2", 'either "l2" (the default) or "linf".', ("l2", "linf")),
        hyperparameters.Parameter("rate", float, 0.2, "of the derived class."),
        hyperparameters.Parameter("depth", int, 3, "of the network."),
    ]


def test_parameters_of_a_function():
    def augment(images, *, alpha: float = 1.0, undocumented: int = 2):
        """Mixes images.

        Args:
            images: [N, H, W, C].
            alpha: of the Beta distribution.
        """

    assert {name: one.help for name, one in hyperparameters.parameters(augment).items()} == {
        "alpha": "of the Beta distribution.",
        "undocumented": "",
    }
