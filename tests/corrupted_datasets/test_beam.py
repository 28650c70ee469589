"""The Beam pipeline, on Beam's local runner; needs the extra `[beam]`."""

import errno
import functools
import os

import pytest

from tests.corrupted_datasets.sets import NAMES, clean, content, quick, write
from tf_robust import corrupted_datasets

pytest.importorskip("apache_beam")


def pipeline(folder, layout="tfds", names=NAMES, beam_options=()):
    options = corrupted_datasets.WriterConfig(
        dataset_format=layout, corruptions=names, chunk_size=4, engine="beam", beam_options=beam_options
    )
    return corrupted_datasets.write(functools.partial(clean), folder, options, corrupted_datasets.CorruptionConfig(seed=5))


def test_a_pipeline_writes_the_set_of_the_local_engine(source, tmp_path):
    by_beam, local = str(tmp_path / "beam"), str(tmp_path / "local")
    assert pipeline(by_beam, names=NAMES[:1]) == []
    write(source, local, "tfds", NAMES[:1])
    assert content(by_beam) == content(local)


def test_a_pipeline_writes_arrays_too(source, tmp_path, monkeypatch):
    quick(monkeypatch)
    by_beam, local = str(tmp_path / "beam"), str(tmp_path / "local")
    assert pipeline(by_beam, "npy") == []
    write(source, local)
    assert content(by_beam) == content(local)


def test_a_failed_pipeline_gives_its_reason_and_resumes(source, tmp_path, monkeypatch):
    quick(monkeypatch)
    folder, fsync = str(tmp_path / "set"), os.fsync

    def full(file):
        if os.path.exists(os.path.join(folder, ".writing", "gaussian_noise_4")):
            raise OSError(errno.ENOSPC, "No space left on device")
        return fsync(file)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="Beam pipeline failed. Completed chunks stay valid.*The disk is full"):
        pipeline(folder)
    monkeypatch.setattr(os, "fsync", fsync)
    assert pipeline(folder) == []
    write(source, str(tmp_path / "local"), "tfds")
    assert content(folder) == content(tmp_path / "local")


def test_a_pipeline_resumes_a_set_of_the_local_engine(source, tmp_path, monkeypatch):
    quick(monkeypatch)
    folder = str(tmp_path / "set")
    write(source, folder, "tfds", shard="1/2")
    before = {path: os.stat(os.path.join(folder, path)).st_mtime_ns for path in content(folder) if "tfrecord" in path}
    assert pipeline(folder) == []
    write(source, str(tmp_path / "local"), "tfds")
    assert content(folder) == content(tmp_path / "local")
    for path, time in before.items():
        final = path.replace(".writing/", "").replace(os.path.basename(path), f"1.0.0/{os.path.basename(path)}")
        assert os.stat(os.path.join(folder, final)).st_mtime_ns == time


@pytest.mark.slow
def test_processes_of_the_local_runner_write_the_same_set(source, tmp_path):
    by_beam, local = str(tmp_path / "beam"), str(tmp_path / "local")
    processes = ("--direct_num_workers=2", "--direct_running_mode=multi_processing")
    assert pipeline(by_beam, names=NAMES[:1], beam_options=processes) == []
    write(source, local, "tfds", NAMES[:1])
    assert content(by_beam) == content(local)
