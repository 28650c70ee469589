"""Every Python snippet of the documents runs, in order."""

import json
import os
import re
import shlex

import numpy as np
import pytest
import tensorflow as tf

from tf_robust import cli, corruptions, methods
from tf_robust.experiments import modes

DOCS = os.path.join(cli.ROOT, "docs")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def run(name):
    """The names that a page's snippets leave behind."""
    names = {}
    for snippet in re.findall(r"```python\n(.*?)```", read(os.path.join(DOCS, name)), re.DOTALL):
        exec(snippet, names)
    return names


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(methods, "METHODS", dict(methods.METHODS))


def test_requests_to_a_server_match_the_exported_signatures():
    names = run("deploy.md")
    signatures = names["model"].signatures
    for text in (names["request"], names["small_request"]):
        request = json.loads(text)
        signature = signatures[request["signature_name"]]
        ((name, spec),) = signature.structured_input_signature[1].items()
        instances = [names["base64"].b64decode(one["b64"]) if isinstance(one, dict) else one for one in request["instances"]]
        given = tf.constant(instances, spec.dtype)
        assert spec.is_compatible_with(given)
        probabilities = signature(**{name: given})["probabilities"]
        np.testing.assert_allclose(probabilities, names["probabilities"], atol=1e-5)


def test_measure_your_model(monkeypatch):
    monkeypatch.setattr(corruptions, "CORRUPTIONS", {name: corruptions.CORRUPTIONS[name] for name in ("fog", "contrast")})  # of 19
    names = run("measure_your_model.md")
    assert 0 <= names["values"]["corruptions/fog"] <= 1 and names["attacked"].shape == names["images"].shape


def test_extend():
    names = run("extend.md")
    assert names["result"].evaluation["method"] == "label_smoothing" and names["result"].values["clean"] > 0.15
    np.testing.assert_allclose(names["worse"][0, 0, 0], [0.8, 0.5, 0.2], rtol=1e-6)
    assert names["rows"][0].count == 30


def test_commands_for_several_machines_can_be_parsed():
    """Those of other pages run in test_docs_commands.py."""
    lines = re.findall(r"python run_experiment\.py([^\n`]*(?:\n +--[^\n`]*)*)", read(os.path.join(DOCS, "devices.md")))
    parsed = [modes.parse_arguments(shlex.split(line)) for line in lines]
    assert {(values.mode, values.strategy) for values in parsed} >= {("run", "multi_worker"), ("serve", "auto")}
