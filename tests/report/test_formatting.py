import numpy as np

from tf_robust.report import formatting, tables


def test_best_cells_respect_direction_and_ties(evaluate):
    runs = [evaluate("xe", 0, {"un": 0.40001, "flips/mean": 0.1, "nun": 0.3}), evaluate("fcl", 0, {"un": 0.4, "flips/mean": 0.2})]
    assert formatting.best_cells(tables.aggregate(runs)) == {("xe", "un"), ("fcl", "un"), ("xe", "flips/mean")}


def test_values_without_interval_or_std(evaluate):
    run = evaluate("xe", 0, {"aurra": 0.4})
    run["rows"][0].update(low=None, high=None)
    (entry,) = tables.aggregate([run], {"xe": {"aurra": [0.5, None]}})["rows"]
    assert formatting.value_uncertainty(entry) == "" and formatting.mean_and_std(*entry["paper"]) == "0.500"


def test_marks_of_better_and_worse(evaluate):
    values = {"xe": (0.5, 0.2, 0.9), "fcl": (0.8, 0.1, 0.1)}
    runs = [
        evaluate(row, seed, dict(zip(("up", "flips/mean", "wide"), np.add(means, 0.001 * seed * np.sign(means[0] - 0.6)))))
        for seed in range(3)
        for row, means in values.items()
    ]
    runs += [evaluate("bad", seed, {"up": 0.3, "flips/mean": 0.4, "wide": (-5.0, 0.9, 5.0)[seed]}) for seed in range(3)]
    table = tables.aggregate(runs)
    marks = {key: formatting.marked_difference(table, entry)[0] for key, entry in tables.cells(table).items() if key[0] != "xe"}
    assert marks == {
        ("fcl", "up"): "▲",
        ("fcl", "flips/mean"): "▲",
        ("fcl", "wide"): "▼",
        ("bad", "up"): "▼",
        ("bad", "flips/mean"): "▼",
        ("bad", "wide"): "-",
    }
