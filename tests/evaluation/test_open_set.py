"""Open sets: records, metrics and the embeddings of models."""

import dataclasses
import types

import keras
import numpy as np
import pytest

from tests.evaluation.shared import values_of
from tf_robust import data, evaluation, metrics
from tf_robust.configs import DataConfig
from tf_robust.data import sources
from tf_robust.saved_models.loading import ModelInterface, classifier_of, with_embedding
from tf_robust.utils.files import decoded


def _others(count=40):
    images = np.random.default_rng(7).integers(0, 256, size=(count, 16, 16, 1)).astype(np.uint8)
    return data.ArraySource.of("others", "test", images, np.zeros(count, int), ["none"])


def test_measures_are_those_of_the_scores(network, source):
    model, tested, known, others = classifier_of(network()), source(60, split="test"), source(48), _others()
    sets = evaluation.OpenSets({"others": others}, with_embedding(model), known)
    done = evaluation.evaluate(model, tested, None, evaluation.EvalConfig(("clean",)), log=lambda _: None, open_sets=sets)
    values = values_of(done.metrics)
    inside, outside, trained = (network()(one.images / np.float32(255)) for one in (tested, others, known))
    for name, score in metrics.logit_scores(inside["logits"]).items():
        other = metrics.logit_scores(outside["logits"])[name]
        prefix = "ood/others" if name == "max_softmax" else f"ood/others/{name}"
        assert values[f"{prefix}/auroc"] == pytest.approx(metrics.auroc(score, other), abs=1e-3)
        assert values[f"{prefix}/fpr95"] == pytest.approx(metrics.false_positive_rate(score, other), abs=0.03)
    neighbors = [metrics.neighbor_scores(trained["embedding"], one["embedding"], 1) for one in (inside, outside)]
    assert values["ood/others/knn/auroc"] == pytest.approx(metrics.auroc(*neighbors), abs=1e-3)
    assert sets.neighbors == 1


def test_nearest_neighbors_matter_to_their_own_scores_alone(network, source):
    tested, known, others = source(60, split="test"), source(48), _others()
    config = evaluation.EvalConfig(("clean",))
    model = with_embedding(classifier_of(network()))
    sets = evaluation.OpenSets({"others": others}, model, known), evaluation.OpenSets({"others": others})
    with_neighbors, without = (evaluation.card_of(tested, config, None, open_sets=one) for one in sets)
    for name in ("others/auroc", "others/fpr95", "others/energy/auroc"):
        assert evaluation.difference(f"ood/{name}", with_neighbors, without) == []
    fields = {field for field, _, _ in evaluation.difference("ood/others/knn/auroc", with_neighbors, without)}
    assert fields == {"ood.neighbors", "ood.neighbors_among"}
    first, second = (evaluation.dependencies("digest", {}, card, "ood/others")["family"] for card in (with_neighbors, without))
    assert first != second and first["sets"] == second["sets"]  # the record of a set has all scores


def test_embedding_of_a_keras_model_is_the_input_of_its_last_dense_layer():
    model = keras.Sequential([keras.Input((4, 4, 1)), keras.layers.Flatten(), keras.layers.Dense(5), keras.layers.Dense(3)])
    images = np.random.default_rng(0).random((6, 4, 4, 1), np.float32)
    outputs = with_embedding(classifier_of(model, ModelInterface(input_range="0,255"))).outputs(images)
    np.testing.assert_allclose(outputs["embedding"], model.layers[1](images.reshape(6, 16) * 255), rtol=1e-5)
    np.testing.assert_allclose(outputs["logits"], model(images * 255), rtol=1e-5)
    assert with_embedding(classifier_of(lambda images: images)) is None


def test_other_data_may_have_more_classes_and_another_size(source, tmp_path):
    np.savez(tmp_path / "many.npz", x=_others().images[:, :8, :8], y=np.arange(40) + 60)
    opened = sources.open_other(DataConfig(), f"npz:{tmp_path}/many.npz", source(60, split="test"))
    assert len(opened) == 40 and opened.num_classes == 100 and opened.image_shape == (16, 16, 1)


@pytest.mark.parametrize("class_mask", [(), (0, 2)])
def test_images_pass_through_the_model_once(network, source, class_mask):
    model, tested, calls = classifier_of(network()), dataclasses.replace(source(30, split="test"), class_mask=class_mask), []
    counting = classifier_of(lambda images: calls.append(len(images)) or model(images))
    embedded = types.SimpleNamespace(outputs=lambda images: calls.append(len(images)) or model.outputs(images))
    one, other = evaluation.OpenSets({"others": _others(20)}, embedded, source(16)).evaluation_sets(tested)
    records = evaluation.records(counting, [one, other], log=lambda _: None)
    assert sorted(calls) == [16, 20, 30]  # the known images, and each set once
    logits = np.array(model(tested.images / np.float32(255)))
    logits[:, [column for column in range(logits.shape[1]) if class_mask and column not in class_mask]] = -np.inf
    found = decoded(records[0]["scores"]["max_logit"], np.float32)
    np.testing.assert_allclose(np.sort(found), np.sort(metrics.logit_scores(logits)["max_logit"]), rtol=1e-5)
