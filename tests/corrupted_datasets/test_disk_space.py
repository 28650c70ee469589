import errno
import os
import shutil

import pytest
import tensorflow as tf

from tests.corrupted_datasets.sets import content, quick, write
from tf_robust.corrupted_datasets import job


@pytest.fixture(autouse=True)
def quick_corruptions(monkeypatch):
    quick(monkeypatch)


def test_arrays_that_do_not_fit_are_rejected_before_writing(source, folder, monkeypatch):
    usage = shutil.disk_usage("/")
    needed = 3 * 5 * 11 * 9 * 7 * 3  # two corruptions in chunks, and one of them once more as a file
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=needed - 1))
    with pytest.raises(OSError, match="Expected 31.2 kB of free disk space for the remaining chunks. Received: 31") as full:
        write(source, folder)
    assert full.value.errno == errno.ENOSPC
    assert set(content(folder)) == {"card.json", ".writing/lock", ".writing/lock-1-of-1"}
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=needed))
    assert write(source, folder) == []
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=0))
    assert write(source, folder) == []


def full(after):
    """Returns a replacement for os.fsync that fails with a full disk after `after` calls."""
    calls = []

    def fsync(_):
        calls.append(1)
        if len(calls) > after:
            raise OSError(errno.ENOSPC, "No space left on device")

    return fsync


@pytest.mark.parametrize("layout, needed", [("npy", "27 kB"), ("tfds", "16.6 kB")])
def test_units_written_before_the_disk_is_full_stay_valid(source, folder, tmp_path, monkeypatch, layout, needed):
    # arrays: the card, labels and images of three chunks, three more; records: the card, twice three, metadata
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", full(after=10))
    with pytest.raises(OSError, match=f"The disk is full. 6 of 30 chunks .* {needed}") as caught:
        write(source, folder, layout)
    monkeypatch.setattr(os, "fsync", fsync)
    assert caught.value.errno == errno.ENOSPC and caught.value.filename == folder
    assert not [path for path in content(folder) if "writing-" in path]
    write(source, folder, layout)
    write(source, str(tmp_path / "other"), layout)
    assert content(folder) == content(tmp_path / "other")


@pytest.mark.parametrize(
    "found, error, message",
    [
        ("file; No space left on device", OSError, "The disk is full. 0 of 30 chunks .* about 20.8 kB"),
        ("OOM when allocating tensor", tf.errors.ResourceExhaustedError, "OOM"),
    ],
)
def test_a_full_disk_is_told_from_exhausted_memory(source, folder, monkeypatch, found, error, message):
    def refuse(*_):
        raise tf.errors.ResourceExhaustedError(None, None, found)

    monkeypatch.setattr(tf.io, "TFRecordWriter", refuse)
    with pytest.raises(error, match=message):
        write(source, folder, "tfds")


@pytest.mark.parametrize(
    "count, text", [(0, "0 bytes"), (999, "999 bytes"), (1000, "1 kB"), (153_600_000, "154 MB"), (2.9e9, "2.9 GB"), (7e15, "7e+03 TB")]
)
def test_bytes_are_readable(count, text):
    assert job._bytes(count) == text
