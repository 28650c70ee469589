"""One page for a model: formats, confidence, AutoAttack, certificates and test-time adaptation, from the command line."""

import functools

import keras
import numpy as np
import pytest

from tests.command_line import main
from tests.small_runs import read, without_charts  # noqa: F401
from tf_robust import attacks, data
from tf_robust.evaluation import EvalConfig
from tf_robust.exporter import without_gradients
from tf_robust.saved_models import latency

pytest.importorskip("ai_edge_litert")

CHOSEN = ("--data=digits", "--subset=20")
FORMATS = (
    "--formats=savedmodel,tflite_int8",
    "--evaluations=clean,calibration,adversarial,attack_curves,certified",
    *("--attack=autoattack,square", "--attack_radii=linf_0.02", "--attack_queries=10", "--attack_checks=false", "--curve_attacks=plb_l2"),
    *("--smoothing_samples=50", "--smoothing_selection=10", "--certified_radii=0,0.1"),
    *("--calibrate=temperature", "--abstain_accuracy=0.3", "--conformal=0.9"),
)

LEFT_OUT = "without gradients, so left out: the evaluation attack_curves, attack=autoattack (Square in its place), "
LEFT_OUT += "the attack on the smoothed model"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A file of a small network with batch normalization, trained on a few digits."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    network = keras.Sequential(
        [keras.Input((28, 28, 1)), layers.Conv2D(4, 5, 3), layers.BatchNormalization(), layers.ReLU(), layers.Flatten(), layers.Dense(10)]
    )
    source = data.open_source("digits", "train")
    network.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    network.fit(source.images / np.float32(255), source.labels, epochs=3, verbose=0)
    path = str(tmp_path_factory.mktemp("model") / "small.keras")
    network.save(path)
    return path


@pytest.fixture(scope="module")
def page(model, tmp_path_factory):
    """The folder of the results; the page is in `page`."""
    folder = tmp_path_factory.mktemp("page")
    np.savez(folder / "dark.npz", x=np.full((20, 28, 28, 1), 30, np.uint8), y=np.zeros(20, int))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(latency, "milliseconds", lambda *arguments: (1000 * latency.measure(*arguments)[0], 1))  # without a process
        patched.setattr(latency, "SECONDS", 0.0)
        fast = functools.partialmethod(attacks.AutoAttack.__init__, steps=5, target_classes=2)
        patched.setattr(attacks.AutoAttack, "__init__", fast)
        main("evaluate", model, *CHOSEN, *FORMATS, f"--ood=npz:{folder}/dark.npz", f"--workdir={folder}")
    main("evaluate", model, *CHOSEN, "--evaluations=clean,calibration", "--adaptation=batch_norm", f"--workdir={folder}/adapted")
    folders = [str(folder / name) for name in ("formats/savedmodel", "formats/tflite_int8", "adapted")]
    main("report", *folders, "--baseline=savedmodel", f"--workdir={folder}/page")
    return folder


@pytest.mark.slow
def test_the_page_has_every_part(page):
    text = (page / "page" / "report.md").read_text("utf-8")
    headings = ("Test-time adaptation", "Attacks, member by member", "Confidence on clean and corrupted images", "Images of other classes")
    assert [heading for heading in headings if f"## {heading}" not in text] == []
    values = {(one["row"], one["metric"]): one["mean"] for one in read(page / "page" / "results.json")["rows"]}
    for row in ("savedmodel", "tflite_int8"):
        measured = "deployed/bytes calibrated/ece conformal/size ood/dark/auroc robust/square/linf_0.02 certified/l2_0.1".split()
        assert {(row, metric) for metric in measured} <= values.keys()
    assert "robust/linf_0.02" in [metric for row, metric in values if row == "savedmodel"]
    assert ("small, adapted", "adapted/clean") in values and ("small, adapted", "clean") not in values
    assert text.startswith("# ") and text.splitlines()[0].endswith("small.keras on digits")
    drawn = {file.stem for file in (page / "page" / "figures").iterdir()}
    assert {"certified", "risk_coverage", "reliability", "reliability_scaled", "reliability_severity"} <= drawn
    assert "Latency: one image, one thread" in text and "with the statistics of batches of 20 test images" in text


@pytest.mark.slow
def test_what_needs_gradients_is_left_out_of_files_without_them(page):
    int8, plain = (read(page / "formats" / name / "evaluation.json") for name in ("tflite_int8", "savedmodel"))
    assert int8["notes"][0] == LEFT_OUT and "Square alone can overstate" in int8["notes"][1]
    assert len(int8["notes"]) == 2 and plain["notes"] == [] and int8["model"] == plain["model"] == "small.keras"
    without = {row["metric"] for row in plain["rows"]} - {row["metric"] for row in int8["rows"]}
    nearest = {"ood/dark/knn/auroc", "ood/dark/knn/fpr95"} & without  # the float file has an embedding, the other has none
    assert without - nearest == {"robust/linf_0.02", "fgsm/linf_0.02", "distance/plb_l2", "smoothed/pgd/l2_0.1"}
    for report in ("page/report.md", "page/report.html", "formats/report.md"):
        assert f"tflite_int8: {LEFT_OUT}." in (page / report).read_text("utf-8")


def test_bad_choices(model, tmp_path):
    place = f"--workdir={tmp_path}/out"
    with pytest.raises(ValueError, match="adaptation=none .* batch_norm"):
        main("evaluate", model, "--data=digits", "--formats=keras", "--adaptation=batch_norm", place)
    with pytest.raises(ValueError, match="needs no gradients.* attack_curves"):
        main("evaluate", model, "--data=digits", "--formats=keras,tflite", "--evaluations=attack_curves", place)
    assert not (tmp_path / "out").exists()


def test_what_needs_gradients_is_left_out():
    kept, note = without_gradients(EvalConfig(("clean", "adversarial", "attack_curves", "certified"), attack=("autoattack", "square")))
    assert note == LEFT_OUT and kept.evaluations == ("clean", "adversarial", "certified")
    assert kept.attack == ("square",) and not kept.smoothing_attack


def test_nothing_is_left_out_where_nothing_needs_gradients():
    config = EvalConfig(("clean", "adversarial", "certified"), attack=("square",), smoothing_attack=False)
    assert without_gradients(config) == (config, "")
