"""Help and errors of the command line; most do without TensorFlow."""

import json
import os
import subprocess
import sys

from tests.conftest import ROOT
from tf_robust import __version__

SCRIPT = """
import json, os, sys
from tf_robust.cli import main as cli

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


ANSWERS = [
    ("--help", "--learning_rate=0.01"),
    ("--version", f"tf_robust {__version__}"),
    ("evaluate --help", "tf-robust evaluate MODEL"),
    ("train --help", "--learning_rate=0.01"),
    ("attack --helpfull", "--attack_queries=5000"),
    ("list metods", "Unknown value of section: 'metods'. Did you mean 'methods'"),
    ("evalute", "Unknown command 'evalute'. Did you mean 'evaluate'?"),
    ("model.keras", "Try: tf-robust evaluate model.keras --data=NAME"),
    ("evaluate model.keras", "Not found: model.keras"),
    ("data=digits", "Expected --flag=value. Try: --data=digits"),
    ("evaluate model.keras dta=digits", "Expected --flag=value after evaluate. Try: --data=digits"),
    ("train cifar10", "Try: --data=cifar10"),
    ("--evaluation=clean", "Did you mean --evaluations"),
    ("--evaluations=claen", "Unknown evaluation: 'claen'. Did you mean 'clean'?"),
    ("--data=cifar1", "Did you mean 'cifar10' or 'cifar100'"),
    ("harden model.keras --target=nois", "Unknown target: 'nois'. Did you mean 'noise'"),
    ("harden model.keras --target=shift=", "Did you mean 'shift=DATA'"),
    ("harden model.keras --target=shift=tf_robst", "Did you mean --target=shift=folder:tf_robust?"),
    ("harden model.keras --target=shift=csv:none.csv", "Expected a file for --target=shift=csv:FILE. Not found: none.csv"),
    ("harden model.keras --target=shift=folder:tests", "Expected a model: a file"),
    ("--image_fit=crap", "Did you mean 'crop'?"),
    ("--flagfile=flags/fcl/table1/fcll.flags", "Did you mean flags/fcl/table1/fcl.flags?"),
    ("suite", "Expected FOLDER. Received: none. Try: tf-robust suite flags/fcl/table1"),
    ("suite flags/fcl/tabel1", "Did you mean flags/fcl/table1?"),
    ("report", "Expected WORKDIR ..."),
    ("--suite=flags/fcl/table1", "Unknown flag --suite"),
    ("evaluate model.keras --epochs=3", "Unknown flag --epochs: it belongs to tf-robust train"),
    ("train --workdir=/proc/x", "Expected a folder for the results that can be written. Received: /proc/x"),
    ("--epoks=3", "Unknown flag --epoks. Did you mean --epochs?"),
    ("--flagfile=FOLDER/binary.flags", "'utf-8' codec"),
    ("--plugin=no_such_module list methods", "Expected --plugin=MODULE that can be imported. Received: no_such_module"),
    ("--epochs=x", "Error: Expected epochs as an integer below 2^31 = 2147483648. Received: 'x'\n"),
]


def answers(folder):
    """What the command line prints, {arguments: (stdout, stderr)}: of processes that are forked from one that has imported it."""
    lines = dict(ANSWERS)
    (folder / "binary.flags").write_bytes(b"\xff\xfe--epochs=3")
    given = {number: line.replace("FOLDER", str(folder)).split() for number, line in enumerate(lines)}
    environment = {**os.environ, "PYTHONPATH": ROOT}
    subprocess.run([sys.executable, "-c", SCRIPT, folder], input=json.dumps(given), check=True, text=True, timeout=300, env=environment)
    return {line: [(folder / f"{number}.{stream}").read_text() for stream in (1, 2)] for number, line in enumerate(lines)}


def test_tensorflow_is_not_imported_for_help_and_errors(tmp_path):
    found = answers(tmp_path)
    for argument, message in ANSWERS:
        out, error = found[argument]
        assert message in out + error and len(error.splitlines()) <= 4, (argument, out, error)
        assert "False" in error.splitlines(), argument
