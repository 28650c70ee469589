import pytest

from tests.corrupted_datasets import sets
from tf_robust.corrupted_datasets import job


@pytest.fixture(scope="session")
def source():
    return sets.clean()


@pytest.fixture(scope="module", autouse=True)
def draw_sheet():
    """Sets are written without their sheets, which take longer: test_sheet.py and test_cli.py draw them. Returns the function that does."""
    draw = job.draw_sheet
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(job, "draw_sheet", lambda path, *_: open(path, "wb").close())
        yield draw


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path / "set")
