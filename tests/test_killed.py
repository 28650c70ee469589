"""A killed suite resumed by the same command leaves the same files as an uninterrupted one, bit for bit."""

import json
import os
import subprocess
import sys

import pytest

WORK = os.path.join(os.path.dirname(__file__), "killed_work.py")
SCRIPT = os.path.join(os.path.dirname(__file__), "killed_suite.py")


@pytest.mark.slow
def test_a_suite_killed_at_random_events_ends_with_the_same_files(tmp_path):
    """One kill of MoCo's row; for a hundred: python tests/killed_suite.py FOLDER 20 0 fcl,noisymix,moco,instdis,similarity."""
    process = subprocess.run([sys.executable, SCRIPT, str(tmp_path), "1", "1", "moco"], capture_output=True, text=True, timeout=600)
    assert process.returncode == 0, process.stderr
    result = json.loads(process.stdout)
    assert result["killed"]["moco"] >= 1
    assert all(files == result["uninterrupted"] for files in result["resumed"])


@pytest.mark.slow
def test_killed_work_ends_with_the_same_files(tmp_path):
    """One kill of each; for more: python tests/killed_work.py FOLDER 50 0 sweep."""
    kinds = "sweep,evaluate,corrupt"
    process = subprocess.run([sys.executable, WORK, str(tmp_path), "1", "0", kinds], capture_output=True, text=True, timeout=900)
    assert process.returncode == 0, process.stderr
    results = json.loads(process.stdout)
    assert ",".join(results) == kinds
    for kind, result in results.items():
        assert result["killed"] >= 1 and len(result["uninterrupted"]) > 4, kind
        assert all(files == result["uninterrupted"] for files in result["resumed"]), kind
