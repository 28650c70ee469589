"""TensorFlow's own log lines do not reach standard error unless `--verbosity` asks for them; everything else does."""

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

LINES = [
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "I0000 00:00:1795415490.894148    5823 port.cc:153] oneDNN custom operations are on.",
    "E0000 00:00:1795415495.290581    5823 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error",
]
BLOCK = f"""
import os, sys
from tf_robust.utils import quiet
with quiet.importing(sys.argv[1:]):
    os.write(2, {os.linesep.join([*LINES, "F0000 00:00:1795415495.290581    5823 cpu.cc:52] fatal", "from a library", ""]).encode()!r})
    print("from Python", file=sys.stderr)
    if "fail" in sys.argv:
        raise ValueError("in the block")
print("after", os.environ.get("TF_CPP_MIN_LOG_LEVEL"), file=sys.stderr)
"""


def run(*command, **variables):
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, env={**environment, **variables}, timeout=120, check=False
    )


def test_a_bad_flag_alone_is_on_standard_error():
    process = run(os.path.join(ROOT, "run_experiment.py"), "--epoks=3")
    assert process.returncode == 2 and process.stderr.startswith("Error: Unknown flag --epoks") and len(process.stderr.splitlines()) == 1


def test_only_log_lines_are_held_back():
    fatal = "F0000 00:00:1795415495.290581    5823 cpu.cc:52] fatal"
    assert run("-c", BLOCK).stderr.splitlines() == [fatal, "from a library", "from Python", "after 3"]


def test_an_error_inside_the_block_has_its_traceback():
    process = run("-c", BLOCK, "fail")
    assert process.returncode == 1 and "from a library\n" in process.stderr and process.stderr.endswith("ValueError: in the block\n")
    assert "Traceback" in process.stderr and LINES[1] not in process.stderr


@pytest.mark.parametrize(
    "arguments, variables",
    [(["--verbosity=1"], {}), (["list", "--verbosity", "0"], {}), (["-v=1"], {}), ([], {"TF_CPP_MIN_LOG_LEVEL": "0"})],
)
def test_log_lines_are_shown_if_asked_for(arguments, variables):
    process = run("-c", BLOCK, *arguments, **variables)
    assert process.stderr.splitlines()[:3] == LINES and process.stderr.endswith(f"after {variables.get('TF_CPP_MIN_LOG_LEVEL')}\n")


@pytest.mark.parametrize("arguments", [["--verbosity=-1"], ["--verbosity=warning"], ["--workdir=x-v=1"]])
def test_other_arguments_do_not_show_log_lines(arguments):
    assert LINES[1] not in run("-c", BLOCK, *arguments).stderr
