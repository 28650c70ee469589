from tf_robust.report import page as formats
from tf_robust.report import tables

PAPER = {"xe": {"un": [0.407, 0.03]}}


def test_markdown_has_summary_values_paper_differences_and_notes(three_seeds):
    text = formats.to_markdown(tables.aggregate(three_seeds, PAPER), "Table 1", "python x", ["A note."])
    assert text.startswith("# Table 1\n\n- Uniform noise (UN): best fcl 65.0%, +25.0 points [12.6, 37.4] vs xe, significant.\n")
    assert "| model | Clean accuracy (BAL) | Uniform noise (UN) |" in text
    assert "- Uniform noise (UN) (`un`): Accuracy on images with uniform noise" in text and "`nun`" not in text
    assert "| xe | **0.910 ± 0.010** | 0.400 ± 0.050 (paper 0.407 ± 0.030) |" in text
    assert "| fcl | +0.000 [-0.025, +0.025] | ▲ +0.250 [+0.126, +0.374] |" in text
    assert "```\npython x\n```" in text and text.endswith("- A note.\n")


def test_markdown_of_one_row_has_no_comparison_and_no_bold(three_seeds):
    text = formats.to_markdown(tables.aggregate(three_seeds[:1]), "One")
    assert "**" not in text and "Against" not in text


def test_markdown_marks_missing_cells(three_seeds, evaluate):
    text = formats.to_markdown(tables.aggregate([three_seeds[0], evaluate("a|b", 0, {"un": 0.5})]), "One")
    assert "| a\\|b | – | **0.500 [0.490, 0.510]** |" in text


def test_text_is_aligned(three_seeds):
    assert formats.to_text(tables.aggregate(three_seeds, PAPER)).splitlines() == [
        "         Clean accuracy (BAL)  Uniform noise (UN)",
        "xe       0.910 ± 0.010         0.400 ± 0.050",
        "  paper  –                     0.407 ± 0.030",
        "fcl      0.910 ± 0.000         0.650 ± 0.050",
    ]


def test_text_has_many_measures_one_per_line(evaluate):
    lines = formats.to_text(tables.aggregate([evaluate("xe", 0, {f"m{i}": 0.5 for i in range(8)})])).splitlines()
    assert len(lines) == 9 and lines[1] == "m0  0.500 [0.490, 0.510]"


def test_a_wide_text_has_the_headlines_only(evaluate):
    values = {"clean": 0.5, "calibration/rms": 0.1, "calibration/ece": 0.2, "calibration/nll": 0.3}
    text = formats.to_text(tables.aggregate([evaluate(f"row {i}", 0, values) for i in range(9)]))
    assert text.splitlines()[0].split("  ")[-1] == "RMS calibration error" and text.endswith("2 more metrics are in the report.")


def test_measures_that_are_not_headlines_follow(evaluate):
    text = formats.to_markdown(tables.aggregate([evaluate("xe", 0, {"calibration/rms": 0.1, "calibration/ece": 0.2})]), "T")
    first, second = text.split("## Further metrics")
    assert "| RMS calibration error |" in first and "(ECE) |" not in first and "| Expected calibration error (ECE) |" in second


def test_latex_has_values_and_the_paper_and_escapes_special_characters(three_seeds, evaluate):
    table = tables.aggregate([*three_seeds, evaluate("a_b & 50%", 0, {"un": 0.5})], {"xe": {"un": [0.407, 0.03]}})
    text = formats.to_latex(table, "Table 1: #1")
    assert r"xe & \textbf{0.910 $\pm$ 0.010} & 0.400 $\pm$ 0.050 \\" in text
    assert r" &  & {\footnotesize paper 0.407 $\pm$ 0.030} \\" in text
    assert r"fcl & \textbf{0.910 $\pm$ 0.000} & \textbf{0.650 $\pm$ 0.050} \\" in text
    assert r"a\_b \& 50\% & -- & 0.500 \\" in text and r"Table 1: \#1" in text and r"\begin{tabular}{lrr}" in text
    assert r" & Clean accuracy (BAL) & Uniform noise (UN) \\" in text
