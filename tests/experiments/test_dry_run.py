import itertools
import types

import numpy as np
import pytest

from tests.command_line import main, runs_of
from tf_robust import data, models
from tf_robust.runs import dry_run


def test_a_row_is_estimated_without_files(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main(*"train --data=digits --epochs=3 --batch_size=100 --method=gaussian --evaluations=clean --seeds=0,1 --dry_run".split())
    said = capsys.readouterr().out
    row = said.split("\n\n")[1].splitlines()[1].split()
    assert row[0] == "gaussian" and int(row[1].replace(",", "")) == models.build("lenet", (28, 28, 1), 10).count_params()
    assert "Total of 2 runs" in said and not list(tmp_path.iterdir())


def test_steps_are_measured_before_and_after_a_late_term_starts(monkeypatch):
    took, now = [], [0.0]

    class Late:
        start, distribute_strategy = 30, None

    def run(run_steps, iterator, count, method):
        steps = [next(iterator) for _ in range(count)]
        took.append(steps)
        now[0] += sum(3.0 if step >= method.start else 1.0 for step in steps)

    monkeypatch.setattr(dry_run.loop, "steps_function", lambda method: None)
    monkeypatch.setattr(dry_run.loop, "checked_run", run)
    monkeypatch.setattr(dry_run.distribution, "distribute", lambda strategy, batches, size: batches)
    monkeypatch.setattr(dry_run.time, "monotonic", lambda: now[0])
    assert dry_run._training_seconds(Late(), 100, 8, lambda step: range(step, step + 50)) == 30 * 1.0 + 70 * 3.0
    assert dry_run._training_seconds(Late(), 20, 8, lambda step: range(step, step + 50)) == 20 * 1.0  # the term never begins
    assert max(map(max, took)) < 40


@pytest.mark.parametrize("seconds_an_image, size", [(0.02, 128), (0.05, 16)])
def test_large_steps_are_measured_on_fewer_images_if_they_are_slow(seconds_an_image, size, monkeypatch):
    sizes, now = [], [0.0]

    class Method:
        start, distribute_strategy = 0, types.SimpleNamespace(num_replicas_in_sync=2)

        def check_batch(self, size):
            if size % 16:
                raise ValueError

    def run(run_steps, iterator, count, method):
        for _ in range(count):
            sizes.append(next(iterator))
            now[0] += seconds_an_image * sizes[-1]

    def batches_from(step, size):
        return itertools.repeat(size)

    monkeypatch.setattr(dry_run.loop, "steps_function", lambda method: None)
    monkeypatch.setattr(dry_run.loop, "checked_run", run)
    monkeypatch.setattr(dry_run.distribution, "distribute", lambda strategy, batches, size: batches)
    monkeypatch.setattr(dry_run.time, "monotonic", lambda: now[0])
    assert dry_run._measured_size(Method(), 3e12, 128, batches_from) == size and set(sizes) == {16}
    seconds = dry_run._training_seconds(Method(), 1000, size, lambda step: batches_from(step, size)) * 128 / size
    assert seconds == pytest.approx(1000 * 128 * seconds_an_image) and now[0] < 2 * dry_run.SECONDS


def test_measuring_steps_respects_the_time_limit(monkeypatch):
    counts, now = [], [0.0]

    def run(run_steps, iterator, count, method):
        counts.append(count)
        now[0] += 15.0 * count

    monkeypatch.setattr(dry_run.loop, "steps_function", lambda method: None)
    monkeypatch.setattr(dry_run.loop, "checked_run", run)
    monkeypatch.setattr(dry_run.distribution, "distribute", lambda strategy, batches, size: batches)
    monkeypatch.setattr(dry_run.time, "monotonic", lambda: now[0])
    method = types.SimpleNamespace(start=0, distribute_strategy=None)
    assert dry_run._training_seconds(method, 10, 8, lambda step: []) == 150.0 and counts == [1, dry_run.STEPS]


def test_progress_of_a_large_step_is_printed(monkeypatch, capsys):
    monkeypatch.setattr(dry_run, "_LARGE", 1e6)
    monkeypatch.setattr(dry_run, "_SMALL", 1e6)
    monkeypatch.setattr(dry_run, "SECONDS", 0.0)
    main("train", "--data=digits", "--batch_size=100", "--evaluations=clean", "--train_examples=200", "--dry_run")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ", 1)[1] for line in lines if line.endswith(" ...")] == [
        "building the model ...",
        "building the graph of a step ...",
        "trying a step on fewer images ...",
        "measuring steps of 10 images, a part of the batch of 100 ...",
        "measuring the forward pass ...",
    ]


def test_validation_images_and_those_of_other_classes_are_counted():
    def frames(*flags):
        return dry_run.count_frames(runs_of("--data=digits", "--evaluations=clean", *flags)[0])

    train, validation, test = (len(data.open_source("digits", split)) for split in ("train", "validation", "test"))
    others = len(data.open_source("synthetic_digits", "test"))
    assert frames() == (test, 0)
    assert frames("--conformal=0.9") == frames("--calibrate=vector", "--abstain_accuracy=0.8") == (test + validation, 0)
    assert frames("--ood=synthetic_digits") == (test + train + test + others, 0)
    assert frames("--ood=synthetic_digits", "--conformal=0.9", "--subset=50") == (50 + validation + train + 50 + 50, 0)


def test_the_table_has_the_total():
    one = {
        "row": "a",
        "parameters": 1000,
        "flops": 2e9,
        "images": 50.0,
        "memory": 2**30,
        "training": 3600.0,
        "measuring": 60.0,
        "disk": 2**30,
    }
    text = dry_run.to_text([one, {**one, "row": "b", "flops": None, "images": None, "training": None}], 2)
    assert "Total of 4 runs: 2.1 h, 4.00 GiB" in text
    assert text.splitlines()[1].split() == ["a", "1,000", "2", "50", "1024", "MiB", "60", "min", "60", "s", "1024", "MiB"]
    assert np.all([word in text.splitlines()[2] for word in ("b", "–", "60 s")])
