import io
import logging
import sys
import threading

import pytest
import tensorflow as tf

from tf_robust.utils import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A list whose only element is the time, in seconds."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_elsewhere_than_on_a_terminal_there_are_few_lines_and_the_last(clock):
    out = io.StringIO()
    bar = progress.Progress(100, "images", out)
    for step in range(100):
        clock[0] += 0.5
        bar.step(1, f"step {step}")
    lines = out.getvalue().splitlines()
    assert [line.split("step ")[1].split()[0] for line in lines] == ["0", "20", "40", "60", "80", "99"]
    assert lines[2] == "   41 %  step 40  2 images/s  30 s left"
    assert lines[-1] == "  100 %  step 99  2 images/s  took 50 s (first estimate 50 s)" and "\r" not in out.getvalue()


def test_the_first_estimate_is_compared_with_the_time_of_long_work(clock):
    work = progress.Estimate(10)
    clock[0] += 4.0
    assert work.comparison() == "" and work.left(2) == 16.0  # the first estimate: 20 s
    clock[0] += 4.0
    assert work.left(8) == 2.0 and work.comparison() == ""
    clock[0] += 22.0
    assert work.comparison() == "30 s (first estimate 20 s)"


def test_an_estimate_that_is_wrong_by_more_than_2_is_named(clock):
    work = progress.Estimate(10)
    clock[0] += 6.0
    assert work.left_text(2) == "24 s left"
    clock[0] += 42.0
    assert work.left_text(8) == "12 s left"  # 60 s: exactly twice the first estimate
    clock[0] += 24.0
    assert work.left_text(9) == "8 s left, of 80 s in all (first estimate 30 s)"


def test_on_a_terminal_one_line_is_rewritten(clock):
    out = Terminal()
    bar = progress.Progress(3, "images", out)
    for _ in range(3):
        clock[0] += 1.0
        bar.step(1, "fog 1")
    assert out.getvalue().count("\r") == 3 and out.getvalue().count("\n") == 1 and out.getvalue().endswith("\n")


def test_on_a_terminal_a_line_is_rewritten_at_most_ten_times_a_second(clock):
    out = Terminal()
    bar = progress.Progress(None, "images", out)
    for _ in range(100):
        clock[0] += 0.01
        bar.step(1, "fog 1")
    assert 9 <= out.getvalue().count("\r") <= 11 and "images  fog 1  100 images/s" in out.getvalue()
    assert "%" not in out.getvalue() and "\n" not in out.getvalue()


def test_batches_are_unchanged_and_shown_only_on_a_terminal(monkeypatch, capsys):
    dataset = tf.data.Dataset.range(10).batch(4)
    assert [batch.numpy().tolist() for batch in progress.batches(dataset, "clean")] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for batched in (dataset, dataset.filter(lambda _: True)):  # of known and of unknown length
        assert [batch.numpy().tolist() for batch in progress.batches(batched, "clean")] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        output = capsys.readouterr().err
        assert "clean" in output and "\n" not in output and output.split("\r")[-2:] == [" " * 100, ""]


def test_durations_have_suitable_units():
    assert [progress.duration(s) for s in (3.4, 99, 600, 5999, 7200)] == ["3 s", "99 s", "10 min", "100 min", "2.0 h"]


def test_lines_are_passed_on_at_intervals(clock):
    lines: list[str] = []
    log = progress.at_intervals(lines.append, 2.0)
    for second in range(7):
        log(f"line {second}")
        clock[0] += 1.0
    assert lines == ["line 0", "line 2", "line 4", "line 6"]
    log = progress.at_intervals(lines.append, 2.0, always=("Warning", "Waiting"))
    for line in ("first", "second", "Warning: third", "fourth"):
        log(line)
    assert lines[4:] == ["first", "Warning: third"]


def test_a_line_is_repeated_until_the_context_ends():
    lines, three = [], threading.Event()

    def log(line):
        lines.append(line)
        if len(lines) == 3:
            three.set()

    with progress.repeated(lambda: f"line {len(lines)}", log, 0.001):
        assert three.wait(10)
    count = len(lines)
    assert lines[:3] == ["line 0", "line 1", "line 2"]
    with progress.repeated(lambda: "never", log, 1000):
        pass
    assert len(lines) == count


def test_the_level_of_the_logger_silences_lines_and_notes(capsys):
    logger = logging.getLogger("tf_robust")
    try:
        for level in ("INFO", "WARNING", "ERROR"):
            logger.setLevel(level)
            progress.print_line(f"line at {level}")
            progress.print_note(f"note at {level}")
            progress.print_note(f"note at {level}")
    finally:
        logger.setLevel("INFO")
    assert capsys.readouterr().out == "line at INFO\n  Note: note at INFO\n  Note: note at WARNING\n"
