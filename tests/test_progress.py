import sys

import tensorflow as tf

from tf_robust import progress


def test_batches_come_as_they_are_and_a_bar_only_on_a_terminal(monkeypatch, capsys):
    dataset = tf.data.Dataset.range(10).batch(4)
    assert [batch.numpy().tolist() for batch in progress.batches(dataset, "clean")] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    list(progress.batches(dataset, "clean"))
    assert "clean" in (said := capsys.readouterr().err) and "/3" in said


def test_durations_are_in_fitting_units():
    assert [progress.duration(s) for s in (3.4, 99, 600, 5999, 7200)] == ["3 s", "99 s", "10 min", "100 min", "2.0 h"]
