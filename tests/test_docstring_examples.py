"""Every public function and class has an `Examples:` section in its docstring, whose doctest runs."""

import doctest
import importlib
import inspect
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_robust

MODULES = (
    "tf_robust.api",
    "tf_robust.attacks",
    "tf_robust.attribution",
    "tf_robust.conversion.converted",
    "tf_robust.corruptions",
    "tf_robust.data",
    "tf_robust.data.augmix",
    "tf_robust.data.kinds",
    "tf_robust.evaluation",
    "tf_robust.evaluation.metric_table",
    "tf_robust.layers",
    "tf_robust.losses",
    "tf_robust.methods",
    "tf_robust.metrics",
    "tf_robust.models",
    "tf_robust.report",
    "tf_robust.runs.results",
    "tf_robust.saved_models.formats",
    "tf_robust.saved_models.loading",
    "tf_robust.saved_models.signatures",
    "tf_robust.saved_models.zoo",
    "tf_robust.testing",
)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# a doctest has these names; TensorFlow's autograph needs the module's name of the functions that an example defines
NAMES = {"np": np, "tf": tf, "keras": keras, "tfr": tf_robust, "__name__": "__main__"}


def public(module):
    """Returns {name: function or class} of a module or package: of its `__all__`, else of its own modules."""
    names = getattr(module, "__all__", vars(module))
    found = {name: getattr(module, name) for name in names if not name.startswith("_")}
    objects = {name: one for name, one in found.items() if inspect.isfunction(one) or inspect.isclass(one)}
    if hasattr(module, "__all__"):
        return objects
    return {name: one for name, one in objects.items() if f"{one.__module__}.".startswith(f"{module.__name__}.")}


DOCUMENTED = {f"{module}.{name}": documented for module in MODULES for name, documented in public(importlib.import_module(module)).items()}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def one_step_without_graph(request):
    """Runs the methods without graphs: their examples train for a step, whose graph takes longer to build. Nothing else depends on it."""
    tf.config.run_functions_eagerly("tf_robust.methods." in request.node.name)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_examples_of_a_public_name_run(name):
    _, heading, examples = inspect.cleandoc(DOCUMENTED[name].__doc__ or "").partition("\nExamples:\n")
    assert heading and ">>> " in examples, f"Expected a section Examples: with >>> in the docstring of {name}"
    assert not re.search(r"^\S", examples, re.MULTILINE), f"Expected Examples: as the last section of the docstring of {name}"
    (test,) = doctest.DocTestFinder(recurse=False).find(DOCUMENTED[name], name, globs=dict(NAMES))
    failures = []
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=failures.append)
    assert not failures, "".join(failures)
