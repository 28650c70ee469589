"""What a user can mend is said in a message, through the function that `main` uses: no traceback."""

import os
import subprocess
import sys

import pytest

import run_experiment
from tests.test_run_experiment import main


def said(*arguments):
    """The message that the command line ends with."""
    with pytest.raises(SystemExit) as ended, run_experiment.in_words():
        main(*arguments)
    return str(ended.value)


@pytest.mark.parametrize("line, message", [
    ("--epoks=3", "Did you mean: epochs"), ("--epochs=x", "flag --epochs=x: invalid literal"), ("--layout=x", "value should be one of"),
    ("--flagfile=nowhere", "No such file"), ("--nonsense", "Unknown command line flag")])
def test_flagfiles_that_are_none_are_named(line, message, tmp_path):
    for name in ("row.flags", "flags.txt"):
        (tmp_path / name).write_text(line)
    for arguments in (["--mode=suite", f"--suite={tmp_path}"], [f"--flagfile={tmp_path}/row.flags"],
                      ["--mode=evaluate", f"--workdir={tmp_path}"]):
        found = said(*arguments)
        assert message in found and "Error: Expected flags as --help lists them. Received --flagfile=" in found and str(tmp_path) in found


def test_values_of_a_sweep_that_a_flag_does_not_take_are_refused():
    assert "flag --epochs=abc: invalid literal" in said("--data=digits", "--sweep=epochs=abc")


def test_a_flagfile_that_is_no_text_is_refused_before_main(tmp_path):
    (tmp_path / "row.flags").write_bytes(b"\xff\xfe--epochs=3")
    done = subprocess.run([sys.executable, os.path.join(run_experiment.HERE, "run_experiment.py"), f"--flagfile={tmp_path}/row.flags"],
                          stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and "Error: Expected flags" in done.stderr and "row.flags: 'utf-8' codec" in done.stderr
    assert "Traceback" not in done.stderr
