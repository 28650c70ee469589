"""The report in a browser without network: charts are drawn without errors, tables are sorted."""

import itertools
import re
import shutil
import subprocess

import numpy as np
import pytest

from tf_robust import report
from tf_robust.report import charts

BROWSER = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(not BROWSER, reason="no Chromium here")
MEASURES = ("clean", "corruptions/mean15", "corruptions/noise", "flips/tilt", *(f"corruptions/fog/{s}" for s in range(1, 6)))


def opened(folder, script="", *options):
    """Returns the page after its scripts ran, and its console messages."""
    page, profile = folder / "report.html", folder / "profile"
    before, _, after = page.read_text().rpartition("</body>")
    page.write_text(f"{before}<script>{script}</script></body>{after}")
    process = subprocess.run(
        [
            BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            *options,
            f"--user-data-dir={profile}",
            "--dump-dom",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--virtual-time-budget=30000",
            "--enable-logging=stderr",
            f"file://{page}",
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return process.stdout, re.findall(r"CONSOLE.*", process.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("count, missing", [(1, 0), (40, 1)])
def test_every_chart_is_drawn_and_tables_are_sorted(count, missing, evaluate, tmp_path):
    random = np.random.RandomState(0)
    runs = []
    for row, seed in itertools.product(range(count), range(2)):
        absent = MEASURES[:missing] if row == count - 1 else ()
        metrics = {metric: value for metric, value in zip(MEASURES, random.rand(len(MEASURES))) if metric not in absent}
        runs.append(evaluate(f"row {row} <&>", seed, metrics))
    models = {"row 0 <&>": (random.rand(300), random.rand(300) > 0.5)}
    report.write(
        str(tmp_path),
        runs,
        title="T",
        command="c",
        commit="x",
        paper={"row 0 <&>": {"clean": [0.5, None]}},
        figures=[
            report.reliability_diagram(models),
            report.response_rate_curves(models),
            report.attack_curves({"row 0 <&>": {"pgd_l2": random.rand(30)}}),
            charts.training_curves({"a": {"loss": [2, 1]}}),
            charts.class_histogram({"train": [5, 9]}, ["a", "b"]),
        ],
    )
    page, messages = opened(tmp_path, "document.querySelectorAll('thead button')[1].click()")
    assert not [line for line in messages if "WARN" not in line], messages
    assert page.count('<div class="chart vega-embed') == len(re.findall(r"<svg[^>]*marks", page)) >= 9
    assert len(re.findall(r'<th [^>]*aria-sort="ascending"', page)) == 1
    first_column = r'<th scope="row">[^/]*</th><td data-heading="[^"]*" data-value="([0-9.]+)"'
    values = [float(value) for value in re.findall(first_column, page.split("</table>")[0])]
    assert values == sorted(values) and len(values) == count - missing


@pytest.mark.slow
def test_nothing_is_wider_than_a_narrow_page(evaluate, tmp_path):
    random = np.random.RandomState(0)
    rows = ("xe", "a_method_with_a_long_name", "a_third")
    runs = [evaluate(row, 0, dict(zip(MEASURES, random.rand(len(MEASURES))))) for row in rows]
    report.write(str(tmp_path), runs, title="T", command=f"python {'x' * 200}", commit="x")
    narrow = tmp_path / "narrow"
    narrow.mkdir()
    (narrow / "report.html").write_text(
        '<body><iframe src="../report.html" style="width:400px;height:5000px;border:0"></iframe><script>'
        "addEventListener('load', () => setTimeout(() => {"
        "const page = document.querySelector('iframe').contentDocument;"
        "const boxes = [page.documentElement, ...page.querySelectorAll('.scroll')];"
        "document.body.dataset.widths = boxes.map((box) => box.scrollWidth - box.clientWidth).join(' ');"
        "}, 9000));</script></body>"
    )
    page, _ = opened(narrow, "", "--allow-file-access-from-files")
    (widths,) = re.findall(r'data-widths="([^"]*)"', page)
    assert len(widths.split()) >= 8 and {int(width) for width in widths.split()} == {0}
