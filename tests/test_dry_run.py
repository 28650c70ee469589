import numpy as np

import run_experiment
from tf_robust import dry_run, models


def test_a_row_is_estimated_and_nothing_is_left(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    values = run_experiment.parsed(["--data=digits", "--epochs=3", "--batch_size=100", "--method=gaussian", "--evaluations=clean",
                                    "--seeds=0,1", "--dry_run"])
    run_experiment.run(values, run_experiment.define_flags(run_experiment.flags.FlagValues()))
    said = capsys.readouterr().out
    row = said.split("\n\n")[1].splitlines()[1].split()
    assert row[0] == "gaussian" and int(row[1].replace(",", "")) == models.build("lenet", (28, 28, 1), 10).count_params()
    assert "In all 2 runs" in said and not list(tmp_path.iterdir())


def test_a_late_term_is_measured_before_and_after_it_begins(monkeypatch):
    took, now = [], [0.0]

    class Late:
        start, distribute_strategy = 30, None

    def run(run_steps, iterator, count, method):
        steps = [next(iterator) for _ in range(count)]
        took.append(steps)
        now[0] += sum(3.0 if step >= method.start else 1.0 for step in steps)
    monkeypatch.setattr(dry_run.training, "steps_function", lambda method: None)
    monkeypatch.setattr(dry_run.training, "checked_run", run)
    monkeypatch.setattr(dry_run.devices, "distributed", lambda strategy, batches, size: batches)
    monkeypatch.setattr(dry_run.time, "monotonic", lambda: now[0])
    assert dry_run._training_seconds(Late(), 100, 8, lambda step: range(step, step + 50)) == 30 * 1.0 + 70 * 3.0
    assert dry_run._training_seconds(Late(), 20, 8, lambda step: range(step, step + 50)) == 20 * 1.0  # the term never begins
    assert max(map(max, took)) < 40


def test_the_text_adds_up():
    one = {"row": "a", "parameters": 1000, "flops": 2e9, "pictures": 50.0, "memory": 2**30, "training": 3600.0, "measuring": 60.0,
           "disk": 2**30}
    text = dry_run.to_text([one, {**one, "row": "b", "flops": None, "pictures": None, "training": None}], 2)
    assert "In all 4 runs: 2.1 h, 4.00 GiB" in text
    assert text.splitlines()[1].split() == ["a", "1,000", "2", "50", "1024", "MiB", "60", "min", "60", "s", "1024", "MiB"]
    assert np.all([word in text.splitlines()[2] for word in ("b", "–", "60 s")])
