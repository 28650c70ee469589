import re

import pytest

from tf_robust import report
from tf_robust.report import chart, charts
from tf_robust.utils.files import read_json

SETTINGS = {"title": "A <b>title</b>", "command": "python x --a='<&>'", "commit": "abc"}


@pytest.fixture
def folder(tmp_path, three_seeds):
    report.write(str(tmp_path), three_seeds, paper={"xe": {"un": [0.4, 0.03]}}, notes=["<script>alert(1)</script>"], **SETTINGS)
    return tmp_path


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
    assert recorded["versions"] == {"numpy": "2.4"} and recorded["date"] == "2026-11-21"
    assert len(recorded["rows"]) == 4


def test_html_is_escaped_and_self_contained(folder):
    text = (folder / "report.html").read_text()
    assert "A &lt;b&gt;title&lt;/b&gt;" in text and "&lt;script&gt;" in text and "&lt;&amp;&gt;" in text
    text = text.replace(chart.library(), "")
    assert "<script>alert" not in text and "<b>" not in text and "http" not in text
    assert all(source.startswith("data:") for source in re.findall(r'(?:src|href)="([^"]*)', text))
    assert 'name="viewport"' in text and "prefers-color-scheme: dark" in text


def test_html_has_summary_values_and_differences(folder, three_seeds):
    text = (folder / "report.html").read_text().replace("\xa0", " ")
    lines = report.summarize(report.aggregate(three_seeds))
    assert all(f"<dt>{label}</dt><dd>{numbers}</dd>" in text for label, numbers in lines)
    heading = 'data-heading="Uniform noise (UN)"'
    assert f'<td {heading} data-value="0.4"><span>0.400 <small>± 0.050</small> <small>paper 0.400 ± 0.030</small></span></td>' in text
    assert f'<td {heading} data-value="0.25"><span>▲ +0.250 <small>[+0.126, +0.374]</small></span></td>' in text
    assert "<strong>0.650</strong> <small>± 0.050</small>" in text


def test_html_explains_the_measures_that_it_shows(folder):
    text = (folder / "report.html").read_text()
    assert '<th scope="col" title="Accuracy on images with uniform noise' in text and "Name in files and flags: un" in text
    legend = text.split("<h2>Metrics</h2>")[1]
    assert "<dt>Uniform noise (UN) <code>un</code></dt><dd>Accuracy on images with uniform noise" in legend
    assert "<code>bal</code>" in legend and "<code>nun</code>" not in legend


def test_runs_are_counted(folder):
    text = (folder / "report.html").read_text()
    assert "6 runs, 3.0 minutes in all" in text


def test_html_escapes_names_of_rows_and_metrics(evaluate):
    table = report.aggregate([evaluate("<i>", 0, {"<u>": 0.5}), evaluate("b", 0, {"<u>": 0.4})])
    text = report.to_html(table, "t", charts=charts.of_table(table)).replace(chart.library(), "")
    assert "<i>" not in text and "<u>" not in text and "&lt;i&gt;" in text


def test_one_run_makes_a_report(tmp_path, three_seeds):
    table = report.write(str(tmp_path), three_seeds[:1], **SETTINGS)
    assert table["order"] == ["xe"] and "Against" not in (tmp_path / "report.html").read_text()


def test_runs_that_differ_are_named(tmp_path, three_seeds):
    three_seeds[0]["data"] = "letters"
    report.write(str(tmp_path), three_seeds, **SETTINGS)
    assert "The runs differ in data: letters, digits." in (tmp_path / "report.md").read_text()


def test_corruptions_have_a_separate_table_and_a_heat_map(tmp_path, evaluate):
    metrics = {"corruptions/mean15": 0.5, "corruptions/fog": 0.625, **{f"corruptions/fog/{s}": s / 10 for s in range(1, 6)}}
    runs = [evaluate("xe", 0, metrics), evaluate("fcl", 0, {"corruptions/mean15": 0.6})]
    report.write(str(tmp_path), runs, title="T", command="c", commit="x")
    assert "| Fog | 0.625 | – |" in (tmp_path / "report.md").read_text()
    text = (tmp_path / "report.html").read_text()
    assert ">Fog</th>" in text and '<td data-heading="xe" data-value="0.625"><span>0.625</span></td><td data-heading="fcl"' in text
    assert "Name in files and flags: corruptions/fog" in text
    assert "fog" in (tmp_path / "report.html").read_text() and (tmp_path / "figures" / "corruptions.png").exists()
