"""A small table of two rows, for tests of what completes its runs and where its results are."""

import pytest

COMMON = [
    "--data=digits",
    "--train_examples=40",
    "--model=lenet",
    "--batch_size=20",
    "--epochs=1",
    "--evaluations=clean,noise",
    "--subset=40",
]


@pytest.fixture
def table(tmp_path):
    folder = tmp_path / "table"
    folder.mkdir()
    for row, rate in (("low", 0.01), ("high", 0.1)):
        (folder / f"{row}.flags").write_text("\n".join([*COMMON, f"--learning_rate={rate}"]) + "\n")
    return str(folder)
