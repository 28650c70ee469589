"""A set that was interrupted or divided among processes equals one that was written at once."""

import os

import numpy as np
import pytest

from tests.corrupted_datasets.sets import NAMES, content, quick, write
from tf_robust.corrupted_datasets.job import Generator
from tf_robust.corrupted_datasets.layouts import ArrayLayout, RecordLayout
from tf_robust.utils import environment
from tf_robust.utils.files import read_json
from tf_robust.utils.locks import WorkdirLocked, file_lock


@pytest.fixture(autouse=True)
def quick_corruptions(monkeypatch):
    quick(monkeypatch)


@pytest.fixture
def reference(source, tmp_path):
    """Returns a function layout -> files of a set that was written at once."""

    def files(layout):
        write(source, str(tmp_path / "reference"), layout)
        return content(tmp_path / "reference")

    return files


@pytest.mark.parametrize("layout", ["npy", "tfds"])
@pytest.mark.parametrize("order", [(1, 2, 3, 4), (3, 1, 4, 2)])
def test_parts_in_any_order_give_the_same_set(source, folder, reference, layout, order):
    for completed, part in enumerate(order):
        waiting = write(source, folder, layout, shard=f"{part}/4")
        assert bool(waiting) == (completed < 3)
    assert content(folder) == reference(layout)


def test_a_part_returns_the_groups_that_wait_for_others(source, folder, capsys):
    waiting = write(source, folder, shard="2/2")
    assert waiting == ["gaussian_noise.npy", "impulse_noise.npy"]
    assert "0 of 2 complete" in capsys.readouterr().out
    assert not os.path.exists(os.path.join(folder, "sheet.png"))


def test_two_processes_do_not_write_the_same_part(source, folder):
    write(source, folder, shard="1/2")
    with file_lock(os.path.join(folder, ".writing", "lock-2-of-2")):
        with pytest.raises(WorkdirLocked, match="lock-2-of-2"):
            write(source, folder, shard="2/2")


class Killed(BaseException):
    """Raised in place of a kill: no handler catches it."""


@pytest.mark.parametrize("layout", ["npy", "tfds"])
@pytest.mark.parametrize("moment", [0, 1, 7, 15, 29])
def test_a_killed_job_resumes(source, folder, reference, monkeypatch, layout, moment):
    calls, killed, generate = [], [], Generator.__call__

    def kill(self, *unit):
        calls.append(unit)
        if len(calls) == moment + 1 and not killed:
            killed.append(unit)
            group = "gaussian_noise.npy" if layout == "npy" else f"{unit[0]}_{unit[1]}"
            killed_in = os.path.join(folder, ".writing", group)
            os.makedirs(killed_in, exist_ok=True)
            with open(os.path.join(killed_in, "1-00000.npy.writing-9"), "wb") as file:
                file.write(b"file of it")
            raise Killed
        return generate(self, *unit)

    monkeypatch.setattr(Generator, "__call__", kill)
    with pytest.raises(Killed):
        write(source, folder, layout)
    before = set(calls[:-1])
    calls.clear()
    write(source, folder, layout)
    assert not before & set(calls) and len(before | set(calls)) == 30
    assert content(folder) == reference(layout)


@pytest.mark.parametrize("layout, kind", [("npy", ArrayLayout), ("tfds", RecordLayout)])
def test_a_job_killed_while_finishing_a_group_resumes(source, folder, reference, monkeypatch, layout, kind):
    finish = kind._finish

    def kill(self, group, paths):
        finish(self, group, paths)
        raise Killed  # before its units are removed

    monkeypatch.setattr(kind, "_finish", kill)
    with pytest.raises(Killed):
        write(source, folder, layout)
    monkeypatch.setattr(kind, "_finish", finish)
    write(source, folder, layout)
    assert content(folder) == reference(layout)


@pytest.mark.parametrize("layout", ["npy", "tfds"])
def test_complete_groups_are_not_written_again(source, folder, monkeypatch, capsys, layout):
    write(source, folder, layout)
    monkeypatch.setattr(Generator, "__call__", None)
    assert write(source, folder, layout) == []
    assert "(no units written)" in capsys.readouterr().out


def test_corruptions_can_be_added_later(source, folder, reference):
    write(source, folder, names=NAMES[1:])
    assert read_json(os.path.join(folder, "card.json"))["corruptions"] == ["impulse_noise"]
    write(source, folder, names=NAMES[:1])
    assert content(folder) == reference("npy")


def test_the_order_of_names_does_not_matter(source, folder, reference):
    write(source, folder, names=(NAMES[1], NAMES[0], NAMES[1]))
    assert content(folder) == reference("npy")


def test_unfinished_units_of_another_command_are_kept(source, folder, reference):
    write(source, folder, names=NAMES[:1], shard="1/2")
    write(source, folder, names=NAMES[1:])
    assert os.listdir(os.path.join(folder, ".writing", "gaussian_noise.npy"))
    write(source, folder, shard="1/1")
    assert content(folder) == reference("npy")


def test_a_folder_of_another_set_is_rejected(source, folder):
    write(source, folder, names=NAMES[:1])
    before = content(folder)
    for other, options, message in (
        (source, {"seed": 6}, "seed: 5 before, 6 now"),
        (source, {"chunk_size": 5}, "block: 4 before, 5 now"),
        (source, {"layout": "tfds"}, "layout: npy before, tfds now"),
        (source.subset(np.arange(10)), {}, "data: "),
    ):
        with pytest.raises(ValueError, match=message):
            write(other, folder, names=NAMES[:1], **options)
    assert content(folder) == before


def test_a_folder_of_other_files_is_rejected_and_not_changed(source, folder):
    os.makedirs(folder)
    with open(os.path.join(folder, "gaussian_noise.npy"), "w") as file:
        file.write("of someone else")
    with pytest.raises(ValueError, match="holds gaussian_noise.npy and no card"):
        write(source, folder)
    assert os.listdir(folder) == ["gaussian_noise.npy"]
    assert content(folder) == {"gaussian_noise.npy": b"of someone else"}


def test_other_versions_are_noted(source, folder, monkeypatch, capsys):
    write(source, folder, names=NAMES[:1])
    monkeypatch.setattr(environment, "describe", lambda: {"tensorflow": "9.9"})
    write(source, folder, names=NAMES)
    assert "pixels may differ by rounding" in capsys.readouterr().out
