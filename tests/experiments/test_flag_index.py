"""The recorded index of flags is that of the signatures; help and errors do without TensorFlow."""

import json
import os
import subprocess
import sys

import pytest

from tf_robust import __version__, cli
from tf_robust.experiments import flag_index

SCRIPT = """
import json, os, sys
from tf_robust import cli

for name, arguments in json.load(sys.stdin).items():
    if child := os.fork():
        os.waitpid(child, 0)
        continue
    for stream in (1, 2):
        os.dup2(os.open(f"{sys.argv[1]}/{name}.{stream}", os.O_WRONLY | os.O_CREAT), stream)
    sys.argv = ["tf-robust", *arguments]
    try:
        cli.main()
    finally:
        print("tensorflow" in sys.modules, file=sys.stderr)
    break
"""


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


ANSWERS = [
    ("--help", "--learning_rate=0.01"),
    ("--version", f"tf_robust {__version__}"),
    ("--list", "noisymix"),
    ("list", "noisymix"),
    ("evaluate --help", "tf-robust evaluate MODEL"),
    ("list metods", "Unknown section: 'metods'. Did you mean 'methods'"),
    ("evalute", "Unknown command 'evalute'. Did you mean 'evaluate'?"),
    ("tfds", "Expected one of: train, evaluate"),
    ("model.keras", "Try: tf-robust evaluate model.keras --data=NAME"),
    ("evaluate model.keras", "Not found: model.keras"),
    ("data=digits", "Expected --flag=value. Try: --data=digits"),
    ("evaluate model.keras dta=digits", "Expected --flag=value after evaluate. Try: --data=digits"),
    ("train foo", "Try: tf-robust train --help"),
    ("train fcl", "Try: --method=fcl"),
    ("train cifar10", "Try: --data=cifar10"),
    ("evaluate --evaluations=none model.keras", "Expected evaluations with evaluate. Received: --evaluations=none."),
    ("--evaluation=clean", "Did you mean --evaluations"),
    ("--evaluations=claen", "Unknown value of --evaluations: 'claen'. Did you mean 'clean'?"),
    ("--method=fcll", "Did you mean 'fcl'? Try: tf-robust list methods"),
    ("--data=cifar1", "Did you mean 'cifar10' or 'cifar100'"),
    ("harden model.keras --target=nois", "Unknown value of --target: 'nois'. Did you mean 'noise'?"),
    ("harden model.keras --target=shift=", "Did you mean 'shift=DATA'?"),
    ("harden model.keras --target=shift=tf_robst", "Did you mean --target=shift=folder:tf_robust?"),
    ("harden model.keras --target=shift=csv:none.csv", "Expected a file for --target=shift=csv:FILE. Not found: none.csv"),
    ("harden model.keras --target=shift=cifar1", "Did you mean 'cifar10' or 'cifar100'"),
    ("harden model.keras --target=shift=folder:tests", "Expected a model: a file"),
    ("--image_fit=crap", "Did you mean 'crop'?"),
    ("--seed=1 --seeds=2", "Received: both"),
    ("--flagfile=flags/fcl/table1/fcll.flags", "Did you mean flags/fcl/table1/fcl.flags?"),
    ("suite", "Expected FOLDER. Received: none. Try: tf-robust suite flags/fcl/table1"),
    ("suite flags/fcl/tabel1", "Did you mean flags/fcl/table1?"),
    ("report", "Expected WORKDIR ..."),
    ("--suite=flags/fcl/table1", "Try: tf-robust suite flags/fcl/table1"),
    ("train --workdir=/proc/x", "Expected a folder for the results that can be written. Received: /proc/x"),
    ("--epoks=3", "Unknown flag --epoks. Did you mean --epochs?"),
    ("--epochs=x", "Error: Expected an integer. Received: --epochs=x\n"),
]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What the command line prints, {arguments: (stdout, stderr)}: of processes that are forked from one that has imported it."""
    folder, lines = tmp_path_factory.mktemp("answers"), [line for line, _ in ANSWERS]
    given, environment = {number: line.split() for number, line in enumerate(lines)}, {**os.environ, "PYTHONPATH": cli.ROOT}
    subprocess.run([sys.executable, "-c", SCRIPT, folder], input=json.dumps(given), check=True, text=True, timeout=60, env=environment)
    return {line: [(folder / f"{number}.{stream}").read_text() for stream in (1, 2)] for number, line in enumerate(lines)}


@pytest.mark.parametrize("argument, message", ANSWERS)
def test_tensorflow_is_not_imported_for_help_and_errors(argument, message, answers):
    out, error = answers[argument]
    assert message in out + error and len(error.splitlines()) <= 4
    assert "False" in error.splitlines()
