"""Evaluation of chosen corruptions, also of one that a user adds: it changes no published mean."""

import numpy as np
import pytest

import tf_robust as tfr
from tf_robust import corrupted_datasets, corruptions, metrics
from tf_robust.corruptions.corruption import Corruption
from tf_robust.evaluation import EvalConfig, check_metrics
from tf_robust.hardening.target import pairs_of

LEVELS = (0.1, 0.2, 0.4, 0.6, 0.9)
IMAGES = (np.random.RandomState(0).randint(0, 256, [40, 16, 16, 3]) // np.arange(1, 5).repeat(10)[:, None, None, None]).astype(np.uint8)
LABELS = (np.arange(40) < 20).astype(np.int64)  # the brighter half


@pytest.fixture
def darken(monkeypatch):
    added = Corruption("darken", lambda images, level: images * (1 - level), levels=LEVELS)
    monkeypatch.setitem(corruptions.CORRUPTIONS, "darken", added)


def model(images):
    bright = np.asarray(images).mean(axis=(1, 2, 3)) > 0.2
    return np.eye(2, dtype=np.float32)[bright.astype(int)]


def test_a_corruption_of_a_user_is_evaluated_alone(darken):
    evaluated = {"data": (IMAGES, LABELS), "evaluations": "clean,corruptions", "check_inputs": False}
    values = tfr.evaluate(model, **evaluated, corruptions=("darken",)).values
    expected = []
    for level in LEVELS:
        stored = np.floor(np.float32(255) * (IMAGES / np.float32(255) * (1 - level)) + 1e-3) / 255
        expected.append(float((model(stored).argmax(axis=1) == LABELS).mean()))
    assert len({*expected}) > 2
    assert [values[f"corruptions/darken/{severity}"] for severity in metrics.SEVERITIES] == pytest.approx(expected)
    assert values["corruptions/darken"] == pytest.approx(np.mean(expected))
    assert {name.split("/")[1] for name in values if name.startswith("corruptions/")} == {"darken"}


def test_means_without_all_members_are_absent(darken):
    chosen = (*metrics.GROUPS["digital"], "darken", "ripple")
    result = tfr.evaluate(
        model, data=(IMAGES, LABELS), evaluations="corruptions", corruptions=chosen, severities=(2,), subset=20, check_inputs=False
    )
    members = [result.values[f"corruptions/{name}/2"] for name in metrics.GROUPS["digital"]]
    assert result.values["corruptions/digital"] == pytest.approx(np.mean(members))
    names = {name.split("/")[1] for name in result.values}
    assert names == {*chosen, "digital"}


def test_a_further_corruption_changes_no_published_list(darken):
    assert len(metrics.BENCHMARK) == 15 and [len(metrics.MEANS[name]) for name in ("mean15", "mean16", "mean19")] == [15, 16, 19]
    assert [len(names) for names in metrics.BAR.values()] == [10, 10]
    assert {name for name, _ in pairs_of("corruptions")} == {*metrics.BENCHMARK}
    assert not corrupted_datasets.WriterConfig().corruptions and not EvalConfig().corruptions


def test_required_measures_need_their_corruptions(darken):
    config = EvalConfig(("corruptions",), corruptions=("darken", "fog"))
    check_metrics(["corruptions/darken", "corruptions/fog/3"], config, "--require")
    for metric in ("corruptions/mean15", "corruptions/weather", "corruptions/snow", "corruptions/mce"):
        with pytest.raises(ValueError, match="corruptions=darken,fog"):
            check_metrics([metric], config, "--require")
    check_metrics(["corruptions/mean19"], EvalConfig(("corruptions",)), "--require")
    with pytest.raises(ValueError, match="Try: corruptions=darken"):
        check_metrics(["corruptions/darken"], EvalConfig(("corruptions",)), "--require")
    with pytest.raises(ValueError, match="gaussian_noise"):
        EvalConfig(corruptions=("gausian_noise",))


def test_levels_of_a_corruption_are_those_of_all_sizes(darken):
    images = IMAGES[:2] / np.float32(255)
    for constants in ("auto", "cifar", "imagenet"):
        for severity, level in zip(metrics.SEVERITIES, LEVELS):
            result = corruptions.corrupt(images, "darken", severity, constants=constants)
            np.testing.assert_allclose(result, images * (1 - level), atol=1e-6)
