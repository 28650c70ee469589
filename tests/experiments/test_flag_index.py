"""The recorded index of flags is that of the signatures; help and errors do without TensorFlow."""

import os
import subprocess
import sys

import pytest

from tf_robust import __version__, cli
from tf_robust.experiments import flag_index

SCRIPT = """
import sys
from tf_robust import cli
sys.argv = ["tf-robust", *sys.argv[1:]]
try:
    cli.main()
finally:
    print("tensorflow" in sys.modules, file=sys.stderr)
"""


def run(*arguments):
    environment = {**os.environ, "PYTHONPATH": cli.ROOT}
    return subprocess.run([sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, timeout=60, env=environment)


def test_the_index_is_that_of_the_signatures():
    assert flag_index.generate() == flag_index._recorded(), "run: python -m tf_robust.experiments.flag_index"


def test_recorded_parameters_equal_those_of_the_signatures(monkeypatch):
    signatures = flag_index.signature_parameters()
    for module in ("tf_robust.methods", "tf_robust.experiments.config"):
        monkeypatch.delitem(sys.modules, module)
    recorded = flag_index.flag_parameters()
    assert recorded.keys() == signatures.keys()
    for name, parameter in signatures.items():
        assert (recorded[name].kind, recorded[name].choices) == (parameter.kind, parameter.choices)
        assert (recorded[name].default, recorded[name].help) == (parameter.default, parameter.help)


@pytest.mark.parametrize(
    "argument, message",
    [
        ("--help", "--learning_rate=0.01"),
        ("--version", f"tf_robust {__version__}"),
        ("--list", "noisymix"),
        ("--epoks=3", "Did you mean: epochs"),
        ("--epochs=x", "invalid literal"),
    ],
)
def test_tensorflow_is_not_imported_for_help_and_errors(argument, message):
    done = run(argument)
    assert message in done.stdout + done.stderr
    assert done.stderr.splitlines()[-1] == "False" or "False" in done.stderr.splitlines()
