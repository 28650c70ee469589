"""--select on validation images, through a run and its export."""

import dataclasses

import numpy as np
import pytest

from tests.small_runs import read, run_of
from tf_robust import evaluation, models
from tf_robust.configs.train import TrainConfig
from tf_robust.evaluation.metric_table import find_metric
from tf_robust.models import weights
from tf_robust.runs import config as run_config
from tf_robust.runs.config import selection_of
from tf_robust.saved_models import loading
from tf_robust.training import loop

QUICK = evaluation.EvalConfig(severities=(3,), attack_radii=("linf_8/255",), attack=("pgd",))


@pytest.mark.parametrize("name", ["clean", "un", "corruptions/contrast", "calibration/nll", "fgsm/linf_8/255"])
def test_the_measure_is_that_of_the_evaluation(name, network, source):
    config = TrainConfig(select=name, select_images=30)
    chosen, model = selection_of(config, QUICK, source(30), source()), network()
    value = chosen.score(model)
    options = dataclasses.replace(QUICK, evaluations=find_metric(name).metric.evaluations, attack_checks=False)
    metrics = evaluation.evaluate(
        lambda images: model(images, training=False)["logits"], source(30), source(), options, lambda _: None
    ).metrics
    expected = {str(metric): metric.value for metric in metrics}
    assert value == pytest.approx(expected[name], abs=1e-6)
    assert chosen.sign == (-1.0 if name == "calibration/nll" else 1.0)


def test_other_evaluations_of_the_run_do_not_matter(network, source):
    """The surrogate and the radii are of the evaluation adversarial, which the selection is without."""
    options = {"surrogate": "another model", "attack_radii": ("l2_0.5",), "curve_attacks": ("pgd_linf",)}
    config = dataclasses.replace(QUICK, evaluations=("adversarial", "attack_curves"), **options)
    assert selection_of(TrainConfig(select="un"), config, source(30), source()).name == "un"
    assert selection_of(TrainConfig(select="distance/pgd_linf"), config, source(30), source()).name == "distance/pgd_linf"


def test_a_run_exports_the_weights_of_the_epoch_it_selected(tmp_path, monkeypatch):
    kept = {}

    def metric(wanted, *_):
        values = iter([0.2, 0.9, 0.4, 0.3])

        def next_value(network):
            kept[len(kept) + 1] = [v.numpy() for v in network.variables]
            return next(values)

        return next_value

    monkeypatch.setattr(run_config, "_score_of", metric)
    run = run_of("cross_entropy", select="un", ema=0.5, class_weights="balanced", sampling="balanced", early_stopping=2)
    result = run.train(str(tmp_path))
    assert result.selected_epoch == 2 and result.steps == 4
    assert read(tmp_path / "saved_model" / "card.json")["training"]["selected_epoch"] == 2
    assert [epoch["val_un"] for epoch in read(tmp_path / "history.json")] == [0.2, 0.9, 0.4, 0.3]
    with np.load(tmp_path / "saved_model" / weights.FILE) as file:
        exported = [file[name] for name in sorted(file.files)]
    for a, b in zip(exported, kept[2], strict=True):
        np.testing.assert_array_equal(a, b)
    shape = run.data().source("train").image_shape
    network = models.build("lenet", shape, 10)
    for variable, value in zip(network.variables, kept[2]):
        variable.assign(value)
    images = np.random.RandomState(0).rand(4, *shape).astype(np.float32)
    np.testing.assert_allclose(
        loading.load_classifier(str(tmp_path / "saved_model"))(images), network(images, training=False)["logits"], atol=1e-5
    )
    assert run.train(str(tmp_path)) == loop.TrainingResult(**result.record())  # already trained


def test_bad_selections_are_refused_before_training(network, source):
    def select(validation=source(30), **options):
        return selection_of(TrainConfig(**options), QUICK, validation, source())

    assert select() is None
    assert select(early_stopping=3).name == "clean"
    for options, message in (
        ({"select": "accuracy"}, "select .* Received: 'accuracy'"),
        ({"select": "corruptions/smoke"}, "Received: 'corruptions/smoke'"),
        ({"select": "corruptions/fog/5"}, "Received: corruptions/fog/5. Try: severities"),
        ({"validation": None, "select": "un"}, "Expected validation images"),
        ({"select": "un", "select_every": 0}, "select_every >= 1"),
        ({"early_stopping": -1}, "early_stopping >= 0"),
    ):
        with pytest.raises(ValueError, match=message):
            select(**options)
