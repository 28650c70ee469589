import io

import pytest

from tf_robust.prepared import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A list whose only element is the time, in seconds."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_a_line_says_how_far_how_fast_and_how_long(clock):
    out = io.StringIO()
    bar = progress.Progress(1000, "pictures", out)
    clock[0] += 2.0
    bar.step(100, "fog 1")
    assert out.getvalue() == "   10 %  fog 1  50 pictures/s  18 s left\n"


def test_what_is_no_terminal_gets_few_lines_and_the_last(clock):
    out = io.StringIO()
    bar = progress.Progress(100, "pictures", out)
    for step in range(100):
        clock[0] += 1.0
        bar.step(1, f"step {step}")
    lines = out.getvalue().splitlines()
    assert [line.split("step ")[1].split()[0] for line in lines] == ["0", "30", "60", "90", "99"]
    assert lines[-1] == "  100 %  step 99  1 pictures/s  took 1 min 40 s" and "\r" not in out.getvalue()


def test_a_terminal_gets_one_line_that_moves(clock):
    out = Terminal()
    bar = progress.Progress(3, "pictures", out)
    for _ in range(3):
        clock[0] += 1.0
        bar.step(1, "fog 1")
    assert out.getvalue().count("\r") == 3 and out.getvalue().count("\n") == 1 and out.getvalue().endswith("\n")


@pytest.mark.parametrize("seconds, text", [(8.2, "8 s"), (59.6, "1 min 00 s"), (7500, "2 h 05 min")])
def test_durations_are_readable(seconds, text):
    assert progress.duration(seconds) == text
