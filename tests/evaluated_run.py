"""The workdir of a finished run, for tests that damage copies of it."""

import pytest

from tests.command_line import main
from tests.small_runs import omit_charts

SMALL = ["--data=digits", "--model=mlp", "--train_examples=60", "--subset=60", "--epochs=1", "--batch_size=12", "--evaluations=clean"]


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """The workdir of a finished run."""
    folder = tmp_path_factory.mktemp("evaluated") / "run"
    with pytest.MonkeyPatch.context() as patched:
        omit_charts(patched)
        main(*SMALL, f"--workdir={folder}")
    return folder
