import pytest

from tests.corrupted_datasets import sets


@pytest.fixture(scope="session")
def source():
    return sets.clean()


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path / "set")
