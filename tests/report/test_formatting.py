import numpy as np

from tf_robust.report import formatting, tables


def test_verdict_names_gains_and_what_is_not_clear(three_seeds):
    assert formatting.verdict(tables.aggregate(three_seeds)) == (
        "Against xe, fcl improves un by +0.250 [+0.126, +0.374]; "
        "shows no clear difference in bal (+0.000 [-0.025, +0.025]) (3 seeds, 95% intervals)."
    )


def test_verdict_names_losses(evaluate):
    runs = [
        evaluate(row, seed, {"bal": bal + 0.001 * seed, "un": un + 0.002 * seed})
        for seed in range(4)
        for row, bal, un in (("xe", 0.9, 0.4), ("fcl", 0.8, 0.6))
    ]
    text = formatting.verdict(tables.aggregate(runs))
    assert "improves un by +0.200 [+0.200, +0.200]; worsens bal by -0.100" in text and "no clear" not in text


def test_verdict_of_one_seed(three_seeds):
    text = formatting.verdict(tables.aggregate(three_seeds[:2]))
    assert text == (
        "Against xe, fcl improves un by +0.200; shows no clear difference in bal (+0.010) "
        "(one seed only: the variation over seeds is unknown; no per-image results, so the two intervals are compared)."
    )


def test_verdict_takes_the_largest_mean_gain_outside_clean(three_seeds, evaluate):
    other = [evaluate("noisy", seed, {"bal": 0.99, "un": 0.41}) for seed in range(3)]
    text = formatting.verdict(tables.aggregate([*three_seeds, *other]))
    assert text.startswith("Against xe, fcl (the largest mean gain of 2 rows) improves un")


def test_verdict_with_nothing_to_compare(three_seeds, evaluate):
    assert formatting.verdict(tables.aggregate(three_seeds[:1])) == (
        "Only xe was measured (one seed): bal 0.900 [0.890, 0.910], un 0.400 [0.390, 0.410]."
    )
    text = formatting.verdict(tables.aggregate([three_seeds[0], evaluate("fcl", 5, {"un": 0.6})]))
    assert text == "No row shares a measure and a seed with xe: there is nothing to compare."


def test_verdict_shortens_long_lists_and_marks_errors(evaluate):
    values = {f"corruptions/{number}": 0.1 for number in range(9)}
    runs = [evaluate("xe", 0, {**values, "flips/mean": 0.5}), evaluate("fcl", 0, {**dict.fromkeys(values, 0.4), "flips/mean": 0.1})]
    text = formatting.verdict(tables.aggregate(runs))
    assert "improves flips/mean (lower is better) by -0.400, corruptions/0 by +0.300" in text
    assert "and 7 more measures" in text


def test_best_cells_respect_direction_and_ties(evaluate):
    runs = [evaluate("xe", 0, {"un": 0.40001, "flips/mean": 0.1, "nun": 0.3}), evaluate("fcl", 0, {"un": 0.4, "flips/mean": 0.2})]
    assert formatting.best_cells(tables.aggregate(runs)) == {("xe", "un"), ("fcl", "un"), ("xe", "flips/mean")}


def test_values_without_interval_or_std(evaluate):
    run = evaluate("xe", 0, {"aurra": 0.4})
    run["rows"][0].update(low=None, high=None)
    (entry,) = tables.aggregate([run], {"xe": {"aurra": [0.5, None]}})["rows"]
    assert formatting.value_text(entry) == "0.400" and formatting.mean_and_std(*entry["paper"]) == "0.500"


def test_marks_of_better_and_worse(evaluate):
    values = {"xe": (0.5, 0.2, 0.9), "fcl": (0.8, 0.1, 0.1)}
    runs = [
        evaluate(row, seed, dict(zip(("up", "flips/mean", "wide"), np.add(means, (0.001 * seed, 0.001 * seed, 0)))))
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


def test_verdict_does_not_mix_counts_with_fractions(evaluate):
    runs = [
        evaluate(row, 0, {"robust/l2_0.5": robust, "checks/failed": failed})
        for row, robust, failed in (("xe", 0.1, 0), ("good", 0.5, 1), ("bad", 0.0, 0))
    ]
    assert formatting.verdict(tables.aggregate(runs)).startswith("Against xe, good (the largest mean gain of 2 rows)")
    runs = [evaluate("xe", 0, {"corruptions/mean15": 0.5, "corruptions/noise": 0.4}), evaluate("fcl", 0, {"corruptions/noise": 0.6})]
    assert formatting.verdict(tables.aggregate(runs)).startswith("Against xe, fcl improves corruptions/noise by +0.200")
