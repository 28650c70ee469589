"""`import tf_robust` is quick, and its public names are imported when they are used."""

import ast
import os
import subprocess
import sys

import pytest

import tf_robust
from tests.conftest import ROOT
from tf_robust import api

SCRIPT = """
import sys, time
began = time.perf_counter()
import tf_robust
print(time.perf_counter() - began, sorted({"tensorflow", "numpy", "keras", "absl"} & set(sys.modules)), dir(tf_robust))
"""


def printed(script):
    environment = {**os.environ, "PYTHONPATH": ROOT}
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True).stdout


def test_the_import_is_quick_and_imports_neither_tensorflow_nor_numpy():
    times = []
    for _ in range(3):
        seconds, _, rest = printed(SCRIPT).partition(" ")
        times.append(float(seconds))
        assert rest.startswith("[] ") and set(tf_robust.__all__) <= set(ast.literal_eval(rest[3:]))
    assert min(times) < 0.2


@pytest.mark.slow  # imports TensorFlow in a process of its own
def test_functions_do_not_import_what_only_charts_need():
    script = "import sys, tf_robust as tfr; tfr.evaluate, tfr.harden, tfr.report; print({'altair', 'jsonschema'} & {*sys.modules})"
    assert printed(script) == "set()\n"


@pytest.mark.parametrize("name", tf_robust.__all__)
def test_every_public_name_resolves(name):
    assert getattr(tf_robust, name) is not None and name in dir(tf_robust)


def test_functions_are_those_of_api_and_packages_are_packages():
    assert tf_robust.evaluate is api.evaluate and tf_robust.train is api.train and tf_robust.attack is api.attack
    assert tf_robust.evaluation.__name__ == "tf_robust.evaluation" and tf_robust.attacks.__name__ == "tf_robust.attacks"


def test_type_checkers_see_every_public_name():
    with open(tf_robust.__file__, encoding="utf-8") as file:
        (block,) = [node for node in ast.parse(file.read()).body if isinstance(node, ast.If)]
    imported = {alias.name for node in ast.walk(block) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported == set(tf_robust.__all__)
