import numpy as np

from tf_robust import report
from tf_robust.report.changes import change_sentences, changes
from tf_robust.report.formatting import interval

MEASURES = {"clean": 0.8, "corruptions/mean15": 0.5, "un": 0.4, "calibration/rms": 0.1}


def _table(values):
    """The table of two rows, of which the second has these values; each image counts alike."""
    rows = {"start": MEASURES, "hardened": values}
    evaluations = [
        {"row": row, "seed": 0, "rows": [{"measure": name, "value": value, "count": 1000} for name, value in of_row.items()]}
        for row, of_row in rows.items()
    ]

    def per_image(evaluation, measure):
        value = next(row["value"] for row in evaluation["rows"] if row["measure"] == measure)
        return ("same images", np.arange(1000) < value * 1000) if measure != "calibration/rms" else None

    return report.aggregate(evaluations, baseline="start", per_image=per_image)


def test_what_got_worse_comes_first():
    grid = changes(_table({"clean": 0.75, "corruptions/mean15": 0.6, "un": 0.401, "calibration/rms": 0.1}))
    assert [label.measure for label in grid.rows][:3] == ["clean", "corruptions/mean15", "un"]
    verdicts = [cells[-1].text for cells in grid.rows.values()]
    assert verdicts[:3] == ["worse", "better", "not separated"]
    assert [cell.text for cell in grid.rows[next(iter(grid.rows))]][:3] == ["0.800", "0.750", "-0.050"]
    low, high = 0.05 - 1.96 * np.sqrt(0.05 * 0.95 / 1000), 0.05 + 1.96 * np.sqrt(0.05 * 0.95 / 1000)
    assert next(iter(grid.rows.values()))[3].text == f"[{-high:+.3f}, {-low:+.3f}]"


def test_sentences():
    worse, better, unseparated, unknown = change_sentences(
        _table({"clean": 0.75, "corruptions/mean15": 0.6, "un": 0.401, "calibration/rms": 0.15})
    )
    assert worse.startswith("Worse: Clean accuracy 0.800 to 0.750, -0.050 [-0.0") and better.startswith(
        "Better: Mean over 15 corruptions 0.500 to 0.600, +0.100 [+0.0"
    )
    assert "Uniform noise" not in better and unknown == "Without an interval: RMS calibration error 0.100 to 0.150, +0.050 (worse)."
    assert unseparated.startswith("No separated difference: Uniform noise (UN) 0.400 to 0.401, +0.001 [-0.0")
    assert change_sentences(_table(dict(MEASURES)))[0] == "Worse: no measure, as far as these images can tell."


def test_an_end_near_zero_shows_its_sign():
    assert interval(-0.033, -0.0004, "+") == "[-0.0330, -0.0004]" and interval(-0.00002, 0.5) == "[-0.00002, 0.50000]"
    assert interval(0.0, 0.25) == "[0.000, 0.250]" and interval(None, None) == ""
