"""Plans of a hardening from given times of a forward pass and of the final evaluation."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_robust import data
from tf_robust.configs import DataConfig
from tf_robust.evaluation import EvalConfig
from tf_robust.evaluation.evaluation_data import EvaluationData
from tf_robust.hardening import plan
from tf_robust.hardening.config import HardenConfig
from tf_robust.hardening.data import Parts

BATCH = 64


def parts(train=2000, validation=400, test=3000, side=8):
    random = np.random.default_rng(0)
    arrays = {n: data.from_arrays(random.random((n, side, side, 3), np.float32), np.arange(n) % 10) for n in {train, validation, test}}
    return Parts(arrays[train], arrays[validation], arrays[test], note="", split=True, shift=None)


@pytest.fixture
def make(monkeypatch):
    """Returns a plan for a budget, of a model whose forward pass and final evaluation take given seconds per image."""
    now = [100.0]
    monkeypatch.setattr(plan.time, "monotonic", lambda: now[0])

    def made(budget, forward, final=(10.0, 0.02), target="corruptions", elapsed=5.0, subset=0, evaluations=("clean",), images=None):
        monkeypatch.setattr(plan, "_seconds_per_image", lambda _, images: forward * (3 if len(images) <= plan.GRADIENT_IMAGES else 1))
        monkeypatch.setattr(plan, "_seconds_of_final", lambda *_: final)
        given = EvaluationData(
            DataConfig(data="unused"), eval_config=EvalConfig(evaluations=evaluations, attack_subset=50, attack_radii=("linf_0.01",))
        )
        config = HardenConfig(target=target, budget=budget)
        return plan.make(None, None, images or parts(), given, config, subset=subset, batch_size=BATCH, begin=now[0] - elapsed)

    return made


def test_a_fast_model_has_as_many_images_as_without_a_plan(make):
    made = make("30m", 1e-5)
    assert (made.images, made.clean, made.diagnosis, made.final) == (1000, 5000, 500, 2000)
    assert made.final_seconds == pytest.approx(10.0 + 0.02 * 2000 + plan.REPORT + 2 * 1e-5 * 3 * 1000)
    assert made.begin == pytest.approx(5.0 + 1e-5 * (25 * 400 + 400 * (4 + 3)))  # 400 validation images
    assert made.shortest == pytest.approx(plan.GRAPH + 20 * 3 * 64e-5 + 2 * 1e-5 * 400 * 4)


def test_a_slow_model_has_fewer_images_within_parts_of_the_budget(make):
    forward, seconds = 0.02, 1800
    made = make("30m", forward, final=(10.0, 0.5), images=parts(validation=3000))
    assert made.images == int(0.02 * seconds / (3 * forward)) == 600 and made.clean == 600  # at least as many
    assert made.diagnosis == int(0.05 * seconds / (25 * forward)) == 180
    assert made.final == int(0.25 * seconds / 0.5) == 900 and made.final_seconds == pytest.approx(
        10 + 450 + plan.REPORT + 2 * forward * 3 * 600
    )
    assert make("30m", forward, final=(10.0, 0.5), subset=200).final == 200


@pytest.mark.parametrize("forward", (1e-5, 1e-3, 0.02))
def test_a_budget_that_is_too_short_names_one_that_suffices(make, forward):
    with pytest.raises(ValueError, match="Expected a budget for plain fine-tuning and one recipe") as caught:
        make("20s", forward)
    advised = re.search(r"--budget=(\d+)s", str(caught.value))[1]
    made = make(f"{advised}s", forward)
    assert 2 * made.shortest < int(advised) - made.begin - made.final_seconds < 6 * made.shortest + 60
    with pytest.raises(ValueError, match="Expected a budget"):
        make(f"{int(advised) // 2}s", forward)


def test_attacks_of_the_final_evaluation_take_time(make):
    without, attacked = (make("5h", 1e-3, evaluations=one).final_seconds for one in (("clean",), ("clean", "adversarial")))
    assert attacked - without == pytest.approx(2 * 3 * 1e-3 * 50 * 1800)  # two models, 50 images, AutoAttack


def test_steps_have_all_images_whatever_the_time(make):
    made = make("45steps", 10.0)
    assert (made.images, made.clean, made.final, made.begin, made.shortest) == (1000, 5000, 2000, 0.0, 20)
    with pytest.raises(ValueError, match="45 steps. Received: 44steps"):
        make("44steps", 1e-5)


def test_measuring_a_step_changes_no_weight():
    network = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.BatchNormalization(), keras.layers.Flatten(), keras.layers.Dense(3)])
    before, gradients = network.get_weights(), plan._gradients_of(network)
    sums = gradients(tf.random.stateless_uniform([4, 8, 8, 3], (1, 2)))
    assert len(sums) == len(network.trainable_variables) and all(float(tf.abs(one)) > 0 for one in sums[-2:])
    np.testing.assert_equal(network.get_weights(), before)
