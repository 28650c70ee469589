import pytest

from tests.conftest import tiny_network
from tests.hardening import start_models


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """{name: path} of SavedModels, which tests only read."""
    return start_models.save_all(tmp_path_factory.mktemp("starts"), tiny_network(start_models.SHAPE, start_models.CLASSES))
