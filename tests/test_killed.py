"""A killed suite goes on with the same command and leaves behind what an uninterrupted one does, bit for bit."""

import json
import os
import subprocess
import sys

import pytest

WORK = os.path.join(os.path.dirname(__file__), "killed_work.py")
SCRIPT = os.path.join(os.path.dirname(__file__), "killed_suite.py")


def test_killed_at_random_moments_it_ends_with_the_same_bits_and_nothing_half_written(tmp_path):
    """Here one kill of MoCo's row; a hundred: python tests/killed_suite.py FOLDER 20 0 fcl,noisymix,moco,instdis,similarity."""
    done = subprocess.run([sys.executable, SCRIPT, str(tmp_path), "1", "1", "moco"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["killed"]["moco"] >= 1
    assert all(one == found["whole"] for one in found["gone_on"])


@pytest.mark.parametrize("kind", ["sweep", "evaluate", "corrupt"])
def test_a_killed_sweep_measurement_or_writing_ends_with_the_same_and_nothing_half_written(kind, tmp_path):
    """Here one kill; more: python tests/killed_work.py FOLDER 50 0 sweep."""
    done = subprocess.run([sys.executable, WORK, str(tmp_path), "1", "0", kind], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["killed"] >= 1 and len(found["whole"]) > 4
    assert all(one == found["whole"] for one in found["gone_on"])
