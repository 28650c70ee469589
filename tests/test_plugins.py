"""`--plugin=MODULE`: a user's own method and corruption from the command line."""

import json
import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

MODULE = '''
import tensorflow as tf

from tf_robust import methods


class HalfCrossEntropy(methods.CrossEntropy):
    """Cross-entropy times a factor.

    Args:
        factor: of the cross-entropy.
    """

    def __init__(self, classifier, *, factor: float = 0.5, **kwargs):
        super().__init__(classifier, **kwargs)
        self.factor = factor

    def loss_terms(self, batch, training):
        terms, logits = super().loss_terms(batch, training)
        return {name: self.factor * term for name, term in terms.items()}, logits


methods.METHODS["half_cross_entropy"] = HalfCrossEntropy
'''


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """A function that runs a command line with the plugin, in a folder that has it."""
    folder = tmp_path_factory.mktemp("plugin")
    (folder / "my_methods.py").write_text(MODULE)

    def run(*arguments):
        program = [sys.executable, os.path.join(ROOT, "run_experiment.py"), *arguments]
        return subprocess.run(program, cwd=folder, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ROOT}, check=False)

    run.folder = folder
    return run


def test_a_method_of_a_plugin_is_trained_with_its_flags(command):
    """Takes seconds: a process of its own imports TensorFlow."""
    small = ["--data=digits", "--model=mlp", "--train_examples=40", "--batch_size=20", "--epochs=1", "--subset=40", "--evaluations=clean"]
    arguments = ["--plugin=my_methods", "train", "--method=half_cross_entropy", "--half_cross_entropy_factor=0.25", *small, "--workdir=run"]
    done = command(*arguments)
    assert done.returncode == 0, done.stderr
    assert "--half_cross_entropy_factor=0.25\n" in (command.folder / "run" / "flags.txt").read_text()
    assert json.loads((command.folder / "run" / "evaluation.json").read_text())["method"] == "half_cross_entropy"


def test_a_plugin_that_is_missing_is_named(command):
    done = command("--plugin=no_such_module", "list", "methods")
    assert done.returncode == 2 and "Expected --plugin=MODULE that can be imported. Received: no_such_module" in done.stderr
