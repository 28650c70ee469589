"""The notebook, cell by cell, and what the functions of it refuse."""

import ast
import json
import os

import numpy as np
import pytest

import run_experiment
from tf_robust import api


def test_the_notebook_runs(tmp_path, monkeypatch):
    with open(os.path.join(run_experiment.HERE, "docs", "notebook.ipynb"), encoding="utf-8") as file:
        cells = ["".join(cell["source"]) for cell in json.load(file)["cells"] if cell["cell_type"] == "code"]
    monkeypatch.chdir(tmp_path)
    names, shown = {}, []
    for cell in cells:
        *lines, last = ast.parse(cell).body  # a notebook shows what the last line gives
        exec(compile(ast.Module(lines, []), "cell", "exec"), names)
        shown.append(eval(compile(ast.Expression(last.value), "cell", "eval"), names))
    values, table, chart, measured, (still_right, shape) = shown
    assert values == names["plain"].values and set(values) == {"clean", "clean/per_class", "un", "nun", "aurra", *(
        f"calibration/{name}" for name in ("rms", "ece", "brier", "nll"))}
    assert table.loc["clean", "plain"] == values["clean"] and set(table.columns) == {"noisy", "plain"}
    assert chart.name == "comparison" and chart._repr_png_().startswith(b"\x89PNG")
    assert 0 < measured["clean"] <= 1 and still_right < values["clean"] and shape == (20, 28, 28, 1)
    folder = api.train("runs/plain", method="cross_entropy", **names["common"])  # read, not trained
    assert folder.evaluation == names["plain"].evaluation


def test_what_is_not_there_is_said(tmp_path):
    with pytest.raises(ValueError, match="Received: epoch"):
        api.train(str(tmp_path), epoch=3)
    with pytest.raises(ValueError, match="Expected an attack of: fast_gradient"):
        api.attack(None, None, None, "cw")


def test_any_callable_is_measured():
    def always_0(images):
        return np.eye(10, dtype=np.float32)[np.zeros(len(images), int)]
    assert api.evaluate(always_0, data="digits", evaluations="clean")["clean"] == pytest.approx(0.1, abs=0.02)
