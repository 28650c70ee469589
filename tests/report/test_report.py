import re

import pytest

from tf_robust import report
from tf_robust.report import chart, charts
from tf_robust.utils.files import read_json

SETTINGS = {"title": "A <b>title</b>", "command": "python x --a='<&>'", "commit": "abc"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, three_seeds):
    folder = tmp_path_factory.mktemp("report")
    report.write(str(folder), three_seeds, paper={"xe": {"un": [0.4, 0.03]}}, notes=["<script>alert(1)</script>"], **SETTINGS)
    return folder


def test_write_leaves_no_temporary_files(folder):
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert names == [
        *(f"figures/{name}.png" for name in ("comparison", "cost", "pareto")),
        "report.html",
        "report.md",
        "report.tex",
        "results.json",
    ]


def test_results_can_be_read_back(folder):
    recorded = read_json(folder / "results.json")
    rows = recorded.pop("rows")
    assert recorded == {"command": SETTINGS["command"], "commit": "abc", "versions": {"numpy": "2.4"}, "date": "2026-11-21"}
    (entry,) = (row for row in rows if (row["row"], row["metric"]) == ("xe", "un"))
    assert (entry["min"], entry["max"], entry["paper"]) == (0.35, 0.45, [0.4, 0.03]) and len(rows) == 4


def test_html_is_escaped_and_self_contained(folder):
    text = (folder / "report.html").read_text()
    assert "A &lt;b&gt;title&lt;/b&gt;" in text and "&lt;script&gt;" in text and "&lt;&amp;&gt;" in text
    text = text.replace(chart.library(), "")
    assert "<script>alert" not in text and "<b>" not in text and "http" not in text
    assert all(source.startswith("data:") for source in re.findall(r'(?:src|href)="([^"]*)', text))
    assert 'name="viewport"' in text and "prefers-color-scheme: dark" in text


def test_html_has_summary_values_differences_and_the_time_of_training(folder, three_seeds):
    text = (folder / "report.html").read_text().replace("\xa0", " ")
    lines = report.summarize(report.aggregate(three_seeds))
    assert all(f"<dt>{label}</dt><dd>{numbers}</dd>" in text for label, numbers in lines)
    heading = 'data-heading="Uniform noise (UN)"'
    assert f'<td {heading} data-value="0.4"><span>0.400 <small>± 0.050</small> <small>paper 0.400 ± 0.030</small></span></td>' in text
    assert f'<td {heading} data-value="0.25"><span>▲ +0.250 <small>[+0.126, +0.374]</small></span></td>' in text
    assert "<strong>0.650</strong> <small>± 0.050</small>" in text and "6 runs, 3.0 minutes in all" in text


def test_html_explains_the_measures_that_it_shows(folder):
    text = (folder / "report.html").read_text()
    assert '<th scope="col" title="Accuracy on images with uniform noise' in text and "Name in files and flags: un" in text
    legend = text.split("<h2>Metrics</h2>")[1]
    assert "<dt>Uniform noise (UN) <code>un</code></dt><dd>Accuracy on images with uniform noise" in legend
    assert "<code>bal</code>" in legend and "<code>nun</code>" not in legend


def test_html_escapes_names_of_rows_and_metrics(evaluate):
    table = report.aggregate([evaluate("<i>", 0, {"<u>": 0.5}), evaluate("b", 0, {"<u>": 0.4})])
    text = report.to_html(table, "t", charts=charts.of_table(table)).replace(chart.library(), "")
    assert "<i>" not in text and "<u>" not in text and "&lt;i&gt;" in text


def test_the_report_of_one_run_has_no_comparison_and_no_bold(tmp_path, three_seeds):
    table = report.write(str(tmp_path), three_seeds[:1], **SETTINGS)
    text = (tmp_path / "report.md").read_text()
    assert table["order"] == ["xe"] and "**" not in text and "Against" not in text + (tmp_path / "report.html").read_text()


def test_runs_that_differ_and_notes_on_the_evaluations_are_named(tmp_path, three_seeds):
    report.write(str(tmp_path), [{**three_seeds[0], "data": "letters", "notes": ["without fog"]}, *three_seeds[1:]], **SETTINGS)
    for name in ("report.md", "report.html"):
        text = (tmp_path / name).read_text()
        assert "The runs differ in data: letters, digits." in text and "xe: without fog." in text


def test_corruptions_have_a_separate_table_and_a_heat_map(tmp_path, evaluate):
    metrics = {"corruptions/mean15": 0.5, "corruptions/fog": 0.625, **{f"corruptions/fog/{s}": s / 10 for s in range(1, 6)}}
    runs = [evaluate("xe", 0, metrics), evaluate("fcl", 0, {"corruptions/mean15": 0.6})]
    report.write(str(tmp_path), runs, title="T", command="c", commit="x")
    assert "| Fog | 0.625 [0.615, 0.635] | – |" in (tmp_path / "report.md").read_text()
    text = (tmp_path / "report.html").read_text()
    assert '<td data-heading="xe" data-value="0.625"><span>0.625 <small>[0.615,\xa00.635]</small></span></td>' in text
    assert ">Fog</th>" in text and "Name in files and flags: corruptions/fog" in text
    assert (tmp_path / "figures" / "corruptions.png").exists()


# --- Markdown, text and LaTeX

PAPER = {"xe": {"un": [0.407, 0.03]}}


def test_markdown_has_summary_values_paper_differences_and_notes(three_seeds):
    text = report.to_markdown(report.aggregate(three_seeds, PAPER), "Table 1", "python x", ["A note."])
    assert text.startswith("# Table 1\n\n- Uniform noise (UN): best fcl 65.0%, +25.0 points [12.6, 37.4] vs xe, significant.\n")
    assert "| model | Clean accuracy (BAL) | Uniform noise (UN) |" in text
    assert "- Uniform noise (UN) (`un`): Accuracy on images with uniform noise" in text and "`nun`" not in text
    assert "| xe | **0.910 ± 0.010** | 0.400 ± 0.050 (paper 0.407 ± 0.030) |" in text
    assert "| fcl | +0.000 [-0.025, +0.025] | ▲ +0.250 [+0.126, +0.374] |" in text
    assert "```\npython x\n```" in text and text.endswith("- A note.\n")


def test_markdown_marks_missing_cells(three_seeds, evaluate):
    text = report.to_markdown(report.aggregate([three_seeds[0], evaluate("a|b", 0, {"un": 0.5})]), "One")
    assert "| a\\|b | – | **0.500 [0.490, 0.510]** |" in text


def test_text_is_aligned(three_seeds):
    assert report.to_text(report.aggregate(three_seeds, PAPER)).splitlines() == [
        "         Clean accuracy (BAL)  Uniform noise (UN)",
        "xe       0.910 ± 0.010         0.400 ± 0.050",
        "  paper  –                     0.407 ± 0.030",
        "fcl      0.910 ± 0.000         0.650 ± 0.050",
    ]


def test_text_has_many_measures_one_per_line(evaluate):
    lines = report.to_text(report.aggregate([evaluate("xe", 0, {f"m{i}": 0.5 for i in range(8)})])).splitlines()
    assert len(lines) == 9 and lines[1] == "m0  0.500 [0.490, 0.510]"


def test_a_wide_text_has_the_headlines_only(evaluate):
    values = {"clean": 0.5, "calibration/rms": 0.1, "calibration/ece": 0.2, "calibration/nll": 0.3}
    text = report.to_text(report.aggregate([evaluate(f"row {i}", 0, values) for i in range(9)]))
    assert text.splitlines()[0].split("  ")[-1] == "RMS calibration error" and text.endswith("2 more metrics are in the report.")


def test_measures_that_are_not_headlines_follow(evaluate):
    text = report.to_markdown(report.aggregate([evaluate("xe", 0, {"calibration/rms": 0.1, "calibration/ece": 0.2})]), "T")
    first, second = text.split("## Further metrics")
    assert "| RMS calibration error |" in first and "(ECE) |" not in first and "| Expected calibration error (ECE) |" in second


def test_latex_has_values_and_the_paper_and_escapes_special_characters(three_seeds, evaluate):
    table = report.aggregate([*three_seeds, evaluate("a_b & 50%", 0, {"un": 0.5})], {"xe": {"un": [0.407, 0.03]}})
    text = report.to_latex(table, "Table 1: #1")
    assert r"xe & \textbf{0.910 $\pm$ 0.010} & 0.400 $\pm$ 0.050 \\" in text
    assert r"paper & -- & 0.407 $\pm$ 0.030 \\" in text
    assert r"fcl & \textbf{0.910 $\pm$ 0.000} & \textbf{0.650 $\pm$ 0.050} \\" in text
    assert r"a\_b \& 50\% & -- & 0.500 \\" in text and r"Table 1: \#1" in text and r"\begin{tabular}{lrr}" in text
    assert r" & Clean accuracy (BAL) & Uniform noise (UN) \\" in text
