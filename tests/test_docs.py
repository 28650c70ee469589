"""Every Python snippet of the documents runs, in order."""

import ast
import glob
import importlib.util
import json
import os
import re
import shlex
import sys

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.conftest import ROOT
from tests.small_runs import omit_charts
from tf_robust import api, attacks, corruptions, methods
from tf_robust.cli import checks, command_line
from tf_robust.data import kinds
from tf_robust.evaluation.metric_table import METRICS
from tf_robust.runs import run as run_module
from tf_robust.saved_models import formats

DOCS = os.path.join(ROOT, "docs")
specification = importlib.util.spec_from_file_location("words", os.path.join(DOCS, "words.py"))
words = importlib.util.module_from_spec(specification)
specification.loader.exec_module(words)
PAGES = sorted([*glob.glob(os.path.join(DOCS, "**", "*.md"), recursive=True), *glob.glob(os.path.join(ROOT, "*.md"))])


def relative(page):
    return os.path.relpath(page, ROOT).removeprefix("docs/")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def run(name):
    """The names that a page's snippets leave behind."""
    names = {}
    for snippet in re.findall(r"```python\n(.*?)```", read(os.path.join(DOCS, name)), re.DOTALL):
        exec(snippet.replace("epochs=20", "epochs=2"), names)
    return names


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, module in (("METHODS", methods), ("ATTACKS", attacks), ("DATA_KINDS", kinds), ("FORMATS", formats)):
        monkeypatch.setattr(module, name, dict(getattr(module, name)))
    metrics = dict(METRICS)
    yield
    METRICS.clear()
    METRICS.update(metrics)


def blank(folder, *_):
    """An empty image in place of a figure."""
    os.makedirs(folder, exist_ok=True)
    Image.new("RGB", (9, 9)).save(os.path.join(folder, "blank.png"))
    return os.path.join(folder, "blank.png")


@pytest.fixture(autouse=True)
def little(request, monkeypatch):
    """Runs of few images, without graphs and charts; two of the 19 corruptions, three of AugMix's operations."""
    if request.node.name in ("test_harden", "test_the_notebook_runs"):
        yield
        return
    train, images = api.train, api.images

    def with_few_images(folder, **arguments):
        with monkeypatch.context() as patch:
            omit_charts(patch)
            patch.setattr(run_module, "draw_utility", blank)
            return train(folder, **{"train_examples": 64, "subset": 50, "batch_size": 32, **arguments})

    monkeypatch.setattr(api, "train", with_few_images)
    few = {200: 21}  # of train_in_your_script.md
    monkeypatch.setattr(api, "images", lambda count, **arguments: images(few.get(count, count), **arguments))
    monkeypatch.setattr(corruptions, "CORRUPTIONS", {name: corruptions.CORRUPTIONS[name] for name in ("fog", "contrast")})
    monkeypatch.setattr(sys.modules["tf_robust.data.augmix"], "NINE", ("autocontrast", "equalize", "posterize"))
    monkeypatch.setattr(sys.modules["tf_robust.data.augmix"], "LONGEST", 1)
    if "drawn" not in request.keywords:
        omit_charts(monkeypatch)
    tf.config.run_functions_eagerly(True)  # a few steps take less time than their graph
    yield
    tf.config.run_functions_eagerly(False)


@pytest.mark.slow  # trains and exports
def test_requests_to_a_server_match_the_exported_signatures():
    names = run("guide/deploy.md")
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


def test_an_evaluation_with_results_per_image():
    names = run("guide/evaluate_a_model.md")
    assert 0 <= names["result"].values["corruptions/fog"] <= 1
    assert names["fog"].correct.mean() == names["result"].values["corruptions/fog/3"]


@pytest.mark.slow
def test_harden(tmp_path):
    names = run("guide/harden_a_model.md")
    assert (tmp_path / "harden.html").exists() and (tmp_path / "robust.keras").exists()
    assert 0.5 < names["hardened"].values["clean"][0] <= 1


@pytest.mark.slow  # checks the contract of each kind of extension; plug-ins of the command line: test_plugins.py
def test_extend():
    names = run("reference/extend.md")
    (epoch,) = json.loads(read("runs/penalty/history.json"))
    assert names["result"].evaluation["method"] == "confidence_penalty"
    assert epoch["total"] == pytest.approx(epoch["cross_entropy"] + epoch["penalty"]) and epoch["penalty"] < 0
    np.testing.assert_allclose(names["worse"][0, 0, 0], [0.8, 0.5, 0.2], rtol=1e-6)
    assert names["rows"][0].count == 30
    assert [len(part) for part in names["parts"]] == [18, 6, 6]


@pytest.mark.slow  # builds the graph of NoisyMix and of a dataset of its views
def test_a_method_in_a_keras_script(tmp_path):
    names = run("guide/train_in_your_script.md")
    assert (tmp_path / "report.html").exists()
    images = names["images"][:3]
    np.testing.assert_allclose(names["robust"](images), names["classifier"](images), rtol=1e-6)
    assert {"loss", "val_loss", "accuracy", "stability"} <= set(names["history"].history) and os.path.exists("best.keras")


@pytest.mark.parametrize("name", ["guide/attack_a_model.md", "reference/corruptions.md"])
def test_snippets_of_attacks_and_corruptions(name):
    names = run(name)
    changed = names["attacked" if "attack" in name else "worse"]
    assert changed.shape == names["images"].shape and np.abs(changed - names["images"]).max() > 0.01


@pytest.mark.drawn
def test_training_in_python():
    names = run("guide/command_line.md")
    assert {"bal", "un", "nun"} <= {*names["result"].values} and names["result"].values.keys() == names["plain"].values.keys()


@pytest.mark.slow
def test_the_notebook_runs():
    cells = json.loads(read(os.path.join(DOCS, "notebook.ipynb")))["cells"]
    cells = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    names, shown = {}, []
    for cell in cells:
        *lines, last = ast.parse(cell).body  # a notebook shows what the last line gives
        exec(compile(ast.Module(lines, []), "cell", "exec"), names)
        shown.append(eval(compile(ast.Expression(last.value), "cell", "eval"), names))
    values, table, chart, measured, (still_right, shape) = shown
    calibration = {f"calibration/{name}" for name in ("rms", "ece", "brier", "nll")}
    assert values == names["plain"].values and set(values) == {"clean", "clean/per_class", "un", "nun", "aurra", *calibration}
    assert table.loc["clean", "plain"] == values["clean"] and set(table.columns) == {"noisy", "plain"}
    assert chart.name == "comparison" and chart.to_dict()["description"]
    assert 0 < measured["clean"] <= 1 and still_right < values["clean"] and shape == (20, 28, 28, 1)
    folder = api.train("runs/plain", method="cross_entropy", **names["common"])  # read, not trained
    assert folder.evaluation == names["plain"].evaluation


def spans(page):
    return re.findall(r"`tf-robust ([^`]*)`", re.sub(r"^```.*?^```", "", read(page), flags=re.DOTALL | re.MULTILINE).replace("\n", " "))


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_commands_in_sentences_can_be_parsed(page, monkeypatch):
    """Those in code blocks run in test_docs_commands.py."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(checks, "check_data", lambda options: None)  # files of the user
    for span in spans(page):
        span = re.sub(r"(?<=[\s=])model\.\w+", "zoo:digits/lenet_augmix", span)  # a model that exists
        words = shlex.split(re.sub(r"'runs/[^']*'", "results/urrl/small.json", span))
        words = [word for word in words if word not in ("COMMAND", "--help")]
        if len(words) < 2 or re.search(r"\b(MODEL|NAME|SUFFIX)\b", span):
            continue  # the name of a command alone, or placeholders
        command_line.read_command(words)


@pytest.mark.slow  # seven trainings, ten evaluations
@pytest.mark.parametrize("name", ["advice.md", "reference/attacks.md", "reference/evaluations.md", "reference/zoo.md"])
def test_snippets_run(name):
    assert run(name)


def test_commands_for_several_machines_can_be_parsed():
    """Those of other pages run in test_docs_commands.py."""
    blocks = "".join(re.findall(r"^```sh\n(.*?)^```", read(os.path.join(DOCS, "reference", "scale.md")), re.DOTALL | re.MULTILINE))
    parsed = [command_line.read_command(shlex.split(line)) for line in re.findall(r"tf-robust (.*)", blocks)]
    assert {(command.name, options.get("strategy")) for command, options in parsed} >= {("train", "multi_worker"), ("serve", None)}


def anchors(text):
    """The anchors of a page: of its headings, as on GitHub and in MkDocs, and its own."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    named = re.findall(r'<a id="([\w-]+)">', text)
    return {*named, *(re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings)}


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_lead_to_files_and_headings(page):
    generated = re.compile(r".*\b(api|commands)/[\w.]+\.md$")  # made when the site is built, which checks them
    for target, anchor in re.findall(r"\]\(([\w./-]*)(?:#([\w-]+))?\)", read(page)):
        path = os.path.join(os.path.dirname(page), target) if target else page
        assert os.path.exists(path) or generated.match(target), f"{page}: {target}"
        assert not anchor or anchor in anchors(read(path)), f"{page}: {target}#{anchor}"


def test_every_page_is_in_the_navigation_once():
    navigation = re.findall(r"(?:-|:) ([\w/]+\.md)$", read(os.path.join(ROOT, "mkdocs.yml")), re.MULTILINE)
    assert len(set(navigation)) == len(navigation)
    assert {relative(page) for page in PAGES} <= {*navigation, "README.md"}


def test_pages_keep_their_limits_of_words_and_the_vocabulary():
    report, met = words.check(words.pages())
    assert met, "\n".join(report)
