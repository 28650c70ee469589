from tf_robust.report import markdown, tables

PAPER = {"xe": {"un": [0.407, 0.03]}}


def test_markdown_has_values_paper_differences_and_notes(three_seeds):
    text = markdown.to_markdown(tables.aggregate(three_seeds, PAPER), "Table 1", "python x", ["A note."])
    assert text.startswith("# Table 1\n\nAgainst xe, fcl improves un")
    assert "| xe | **0.910 ± 0.010** | 0.400 ± 0.050 (paper 0.407 ± 0.030) |" in text
    assert "| fcl | +0.000 [-0.025, +0.025] | ▲ +0.250 [+0.126, +0.374] |" in text
    assert "```\npython x\n```" in text and text.endswith("- A note.\n")


def test_markdown_of_one_row_has_no_comparison_and_no_bold(three_seeds):
    text = markdown.to_markdown(tables.aggregate(three_seeds[:1]), "One")
    assert "**" not in text and "Against" not in text


def test_markdown_marks_missing_cells(three_seeds, evaluate):
    text = markdown.to_markdown(tables.aggregate([three_seeds[0], evaluate("a|b", 0, {"un": 0.5})]), "One")
    assert "| a\\|b | – | **0.500 [0.490, 0.510]** |" in text


def test_text_is_aligned(three_seeds):
    assert markdown.to_text(tables.aggregate(three_seeds, PAPER)).splitlines() == [
        "         bal            un",
        "xe       0.910 ± 0.010  0.400 ± 0.050",
        "  paper  –              0.407 ± 0.030",
        "fcl      0.910 ± 0.000  0.650 ± 0.050",
    ]


def test_text_has_many_measures_one_per_line(evaluate):
    lines = markdown.to_text(tables.aggregate([evaluate("xe", 0, {f"m{i}": 0.5 for i in range(8)})])).splitlines()
    assert len(lines) == 9 and lines[1] == "m0  0.500 [0.490, 0.510]"
