"""A small table of two rows, for tests of what completes its runs and where its results are."""

import pytest
import tensorflow as tf

COMMON = [
    "--data=digits",
    "--train_examples=40",
    "--model=mlp",
    "--batch_size=20",
    "--epochs=1",
    "--evaluations=clean,noise",
    "--subset=40",
]


@pytest.fixture(scope="module")
def eagerly():
    """Runs a few steps of training without graphs, which take longer to build. Exported models are graphs still."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


def write_table(folder):
    """Writes the flagfiles of two rows into a new folder `table`. Returns its path."""
    (folder / "table").mkdir()
    for row, rate in (("low", 0.01), ("high", 0.1)):
        (folder / "table" / f"{row}.flags").write_text("\n".join([*COMMON, f"--learning_rate={rate}"]) + "\n")
    return str(folder / "table")


@pytest.fixture
def table(tmp_path):
    return write_table(tmp_path)
