"""The report in a browser without network: charts are drawn without errors, tables are sorted."""

import itertools
import re
import shutil
import subprocess

import numpy as np
import pytest

from tf_robust import report

BROWSER = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(not BROWSER, reason="no Chromium here")
MEASURES = ("clean", "corruptions/mean15", "corruptions/noise", "flips/tilt", *(f"corruptions/fog/{s}" for s in range(1, 6)))


def opened(folder, script=""):
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
        measures = {measure: value for measure, value in zip(MEASURES, random.rand(len(MEASURES))) if measure not in absent}
        runs.append(evaluate(f"row {row} <&>", seed, measures))
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
            report.training_curves({"a": {"loss": [2, 1]}}),
            report.class_histogram({"train": [5, 9]}, ["a", "b"]),
        ],
    )
    page, messages = opened(tmp_path, "document.querySelectorAll('thead button')[1].click()")
    assert not [line for line in messages if "WARN" not in line], messages
    assert page.count('<div class="chart vega-embed') == len(re.findall(r"<svg[^>]*marks", page)) >= 9
    assert len(re.findall(r'<th [^>]*aria-sort="ascending"', page)) == 1
    values = [float(value) for value in re.findall(r'<th scope="row">[^/]*</th><td data-value="([0-9.]+)"', page.split("</table>")[0])]
    assert values == sorted(values) and len(values) == count - missing
