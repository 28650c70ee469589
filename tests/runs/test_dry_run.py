import types

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


@pytest.fixture
def clock(monkeypatch):
    """[seconds], of a clock that calls of `run_steps` alone move; batches are not distributed."""
    now = [0.0]
    monkeypatch.setattr(dry_run.distribution, "distribute", lambda strategy, batches, size: batches)
    monkeypatch.setattr(dry_run.time, "monotonic", lambda: now[0])
    return now


def test_steps_are_timed_before_and_after_a_late_term_starts(clock, monkeypatch):
    took = []

    class Late:
        start, distribute_strategy = 30, None

    def run(iterator, count):
        took.append(next(iterator))
        clock[0] += (3.0 if took[-1] >= Late.start else 1.0) + 50.0 * (took[-1] in (0, 30))  # the first call builds the graph

    monkeypatch.setattr(dry_run.loop, "steps_function", lambda method: run)
    assert dry_run._training_seconds(Late(), 100, 8, lambda step: range(step, step + 50)) == 30 * 1.0 + 70 * 3.0
    assert took == [*range(6), *range(30, 36)]
    assert dry_run._training_seconds(Late(), 20, 8, lambda step: range(step, step + 50)) == 20 * 1.0  # the term never begins


@pytest.mark.parametrize("forward, iterations, size", [(0.01, 1, 128), (0.011, 1, 64), (0.01, 2, 64), (0.05, 1, 16), (9.0, 1, 16)])
def test_steps_that_take_long_are_timed_on_fewer_images(forward, iterations, size):
    class Method:
        distribute_strategy, loop_iterations = types.SimpleNamespace(num_replicas_in_sync=2), iterations

        def check_batch(self, size):
            if size % 16:
                raise ValueError

    assert dry_run._timed_size(Method(), 128, forward) == size  # 5 steps of 3 passes in 20 s: 1.33 s / forward images


def test_timing_respects_the_time_limit_and_returns_the_median(clock, monkeypatch):
    def timed(*seconds):
        calls = iter(seconds)

        def call():
            clock[0] += next(calls)

        return dry_run._median_seconds(call), list(calls)

    assert timed(99.0, 15.0, 16.0, 1.0) == (15.5, [1.0])
    assert timed(99.0, 30.0, 1.0) == (30.0, [1.0])
    assert timed(99.0, 1.0, 5.0, 2.0, 1.0, 9.0, 7.0) == (2.0, [7.0])


def test_progress_of_a_slow_row_is_printed_and_its_times_are_scaled(monkeypatch, capsys):
    monkeypatch.setattr(dry_run, "_forward_seconds", lambda run, classifier: 1.0)
    monkeypatch.setattr(dry_run, "_median_seconds", lambda call: 3.0)
    main("train", "--data=digits", "--batch_size=100", "--epochs=2", "--evaluations=clean", "--train_examples=200", "--dry_run")
    said = capsys.readouterr().out
    assert [line.split(": ", 1)[1] for line in said.splitlines() if line.endswith(" ...")] == [
        "building the model ...",
        "timing the forward pass ...",
        "timing steps of 10 images, a part of the batch of 100 ...",
    ]
    row = said.split("\n\n")[1].splitlines()[1].split()
    assert row[2:4] == ["3", "over"] and row[6:8] == ["2", "min"]  # 4 steps of 10 times 3 s, 100 images in 30 s
    assert "less memory, and scaled: cross_entropy 10 of 100." in said


def test_validation_images_and_those_of_other_classes_are_counted():
    def frames(*flags):
        counts = dry_run.image_counts(runs_of("--data=digits", "--evaluations=clean", *flags)[0])
        return sum(count for _, count in counts), sum(count for family, count in counts if family == "confidence")

    train, validation, test = (len(data.open_source("digits", split)) for split in ("train", "validation", "test"))
    others = len(data.open_source("synthetic_digits", "test"))
    assert frames() == (test, 0)
    assert frames("--conformal=0.9") == frames("--calibrate=vector", "--abstain_accuracy=0.8") == (test + validation, validation)
    assert frames("--ood=synthetic_digits") == (test + train + test + others, train + test + others)
    confidences = validation + train + 50 + 50
    assert frames("--ood=synthetic_digits", "--conformal=0.9", "--subset=50") == (50 + confidences, confidences)


def test_the_table_has_the_total():
    one = {"row": "a", "parameters": 1000, "images": 50.0, "timed": 20, "batch_size": 20}
    one |= {"memory": 2**30, "training": 3600.0, "evaluation": 60.0, "disk": 2**30}
    text = dry_run.to_text([one, {**one, "row": "b", "images": None, "timed": None, "training": None}], 2)
    assert "Total of 4 runs: 2.1 h, 4.00 GiB" in text
    assert text.splitlines()[1].split() == ["a", "1,000", "50", "1024", "MiB", "60", "min", "60", "s", "1024", "MiB"]
    assert all(word in text.splitlines()[2] for word in ("b", "–", "60 s"))
