"""Evaluation by attacks, on linear classifiers whose robust accuracy and distances are known."""

import numpy as np
import pytest
import tensorflow as tf

import tf_robust as tfr
from tests.attacks.oracles import ORDERS, Linear
from tests.evaluation.shared import by_name, source_of
from tf_robust import attacks, data, evaluation
from tf_robust.configs.evaluation import parse_curve, parse_threat
from tf_robust.evaluation import adversarial
from tf_robust.utils import files

RADII = ("l2_0.05", "linf_1/50")


@pytest.fixture(autouse=True)
def few_queries(monkeypatch):
    monkeypatch.setattr(adversarial, "_CHECK_QUERIES", 100)


@pytest.fixture(scope="module")
def linear():
    return Linear(classes=3)


@pytest.fixture(scope="module")
def source(linear):
    return source_of(linear, 60)


def evaluated(linear, source, **settings):
    eval_config = evaluation.EvalConfig(**{"attack_queries": 50, "attack_radii": RADII, **settings})
    return by_name(evaluation.evaluate(linear, source, source, eval_config, log=lambda line: None).metrics)


def known_distances(linear, source, order):
    """Returns the distance of each image to another class; 0 for misclassified images."""
    images = source.images / np.float32(255)
    distances = linear.distances(images, source.labels, order)
    return np.where(np.argmax(linear(images), axis=1) == source.labels, distances, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("attack,radii", [("autoattack", RADII[:1]), ("pgd", RADII[1:])])
def test_robust_accuracy_is_the_fraction_of_images_with_a_distance_above_the_radius(linear, source, attack, radii):
    rows = evaluated(linear, source, evaluations=("clean", "adversarial"), attack=(attack,), attack_radii=radii)
    own, other = ("robust/pgd/", "robust/") if attack == "pgd" else ("robust/", "robust/pgd/")
    assert not any(f"{other}{text}" in rows for text in radii)
    assert rows["clean"].value == pytest.approx(0.9)
    for text in radii:
        norm, radius = parse_threat(text)
        distances = known_distances(linear, source, ORDERS[norm])
        low, high = (np.mean(distances > factor * radius) for factor in (1.0, 0.97))
        missed = {"autoattack": 1, "pgd": 6}[attack]  # images: between three classes the cross-entropy points to none of them
        assert low - 1e-6 <= rows[f"{own}{text}"].value <= high + missed / 60 + 1e-6, text
        assert rows[f"checks/{norm}/noise"].value > rows[f"checks/{norm}/ten_steps"].value
    assert rows["checks/failed"].value == 0
    if attack == "pgd":
        assert rows["fgsm/linf_1/50"].value >= rows["robust/pgd/linf_1/50"].value


def test_square_alone_needs_no_gradients(linear, source):
    def predict(images):
        return tf.stop_gradient(linear(images))

    rows = evaluated(predict, source, evaluations=("adversarial",), attack=("square",), attack_radii=("linf_1/50",))
    assert set(rows) == {"robust/square/linf_1/50"}
    distances = known_distances(linear, source, np.inf)
    assert np.mean(distances > 1 / 50) <= rows["robust/square/linf_1/50"].value <= np.mean(distances > 0)
    with pytest.raises(ValueError, match="attack=square"):
        evaluated(predict, source, evaluations=("adversarial",), attack=("pgd",), attack_radii=("linf_1/50",))


@pytest.mark.slow
def test_each_attack_has_its_own_metric(linear, source):
    chosen = {"evaluations": ("adversarial",), "attack": ("autoattack", "pgd"), "attack_radii": RADII[:1]}
    both = evaluated(linear, source, attack_checks=False, **chosen)
    for name, metric in (("autoattack", "robust/l2_0.05"), ("pgd", "robust/pgd/l2_0.05")):
        attack = adversarial.accuracy_attacks(name, "l2", [0.05], 50)[0]
        images = source.images / np.float32(255)
        attacked = attack(linear, images, source.labels, indices=source.positions)
        assert both[metric].value == np.mean(np.argmax(linear(attacked), axis=1) == source.labels)
    assert set(both) == {"robust/l2_0.05", "robust/pgd/l2_0.05"}


def test_curves_give_distances_and_accuracies_at_radii_that_are_compared_per_image(linear, source):
    radii, curves = ("l2_0.03", "l2_0.06", "l2_1/10"), ("pgd_l2", "plb_l2", "pgd_linf")
    data, settings = (source.images / np.float32(255), source.labels), {"evaluations": "attack_curves", "check_inputs": False}
    result = tfr.evaluate(linear, data, attack_radii=",".join(radii), curve_attacks=",".join(curves), **settings)
    rows = {row["metric"]: row for row in result.evaluation["rows"]}
    for text in curves:
        median, row = np.median(known_distances(linear, source, ORDERS[parse_curve(text)[1]])), rows[f"distance/{text}"]
        assert 0.999 * median <= row["value"] <= 1.03 * median, text
        assert row["low"] < row["value"] < row["high"] and row["count"] == 60
    distances, per_image = known_distances(linear, source, 2), evaluation.PerImage(lambda _: result.folder)
    for threat in radii:
        radius, value = parse_threat(threat)[1], result.values[f"attack_curves/{threat}"]
        assert np.mean(distances > radius) <= value <= np.mean(distances > radius / 1.03), threat
        assert per_image(result.evaluation, f"attack_curves/{threat}")[1].mean() == value
    assert 0.9 > result.values["attack_curves/l2_0.03"] > result.values["attack_curves/l2_1/10"]
    other = tfr.evaluate(linear, data, curve_attacks="pgd_l2", **settings)
    assert not [metric for metric in other.values if "linf" in metric]  # of the default radii: no curve in this norm
    cards = result.evaluation["card"], other.evaluation["card"]
    assert evaluation.difference("attack_curves/l2_0.03", *cards) == [("attack_curves.attacks", [*curves], ["pgd_l2"])]
    assert evaluation.difference("distance/pgd_l2", *cards) == []


def test_radii_of_curves_are_in_their_norms():
    curve = {"evaluations": ("attack_curves",), "curve_attacks": ("plb_l2",)}
    with pytest.raises(ValueError, match="linf_8/255 .*Try: curve_attacks=plb_l2,pgd_linf"):
        evaluation.EvalConfig(**curve, attack_radii=("l2_0.5", "linf_8/255"))
    evaluation.EvalConfig(**curve)  # the default radii have both norms
    evaluation.EvalConfig(**{**curve, "evaluations": ("adversarial", "attack_curves")}, attack_radii=("linf_8/255",))


def test_attacks_are_checked_on_images_of_all_classes(linear, source, monkeypatch):
    monkeypatch.setattr(adversarial, "CHECKED", 12)
    by_class = source.subset(np.argsort(source.labels, kind="stable"))
    settings = evaluation.EvalConfig(evaluations=("adversarial",), attack=("pgd",), attack_radii=RADII[:1])
    checks = next(one for one in evaluation.evaluation_sets(by_class, None, settings) if one.name == "checks/l2")
    labels = np.concatenate([labels for _, labels in checks.batches().as_numpy_iterator()])
    shares = np.bincount(source.labels, minlength=3) / 60
    assert len(labels) == 12 and np.abs(np.bincount(labels, minlength=3) - 12 * shares).max() <= 1


def test_the_strongest_attack_counts_at_each_radius():
    distances = [np.array(row, np.float32) for row in ([0.0, 1.0, 2.0, np.inf], [0.0, 2.0, np.inf, np.inf])]
    records = [{"distances": files.encoded(one)} for one in distances]
    assert [adversarial.correct_at(records, radius).tolist() for radius in (0.0, 1.0, 1.5)] == [
        [False, True, True, True],
        [False, False, True, True],
        [False, False, True, True],
    ]
    assert adversarial.correct_at(records[1:], 1.5).tolist() == [False, True, True, True]


def test_median_intervals_have_the_nominal_coverage():
    random = np.random.RandomState(0)
    inside = 0
    for _ in range(400):
        record = {"distances": files.encoded(random.exponential(size=41).astype(np.float32))}
        median, low, high, count = adversarial.median_interval(record)
        assert low <= median <= high and count == 41
        inside += low <= np.log(2) <= high
    assert 0.93 < inside / 400 <= 1.0


def test_each_sign_of_masked_gradients_fails_one_check():
    sound = {
        "noise": 0.9,
        "one_step": 0.5,
        "ten_steps": 0.3,
        "hundred_steps": 0.3,
        "half_radius": 0.6,
        "double_radius": 0.0,
        "large_radius": 0.0,
        "black_box": 0.4,
    }
    one_of_100 = {"ten_steps": 0.06, "black_box": 0.06, "hundred_steps": 0.07}  # 0.07 - 0.06 > 0.01 in floating-point numbers
    assert adversarial.failed_checks(sound) == adversarial.failed_checks({**sound, **one_of_100}) == []
    signs = {
        "noise": 0.2,
        "one_step": 0.2,
        "hundred_steps": 0.4,
        "half_radius": 0.2,
        "double_radius": 0.4,
        "large_radius": 0.1,
        "black_box": 0.2,
    }
    for name, value in signs.items():
        assert len(adversarial.failed_checks({**sound, name: value})) == 1, name


def test_a_model_with_masked_gradients_fails_the_checks(linear, source):
    def masked(images):  # logits of the linear model, with the gradient of another model
        other = tf.reverse(images, [1, 2])
        return tf.stop_gradient(linear(images) - linear(other)) + linear(other)

    settings = {"evaluations": "adversarial", "attack": "pgd", "attack_radii": "linf_1/50", "check_inputs": False}
    result = tfr.evaluate(masked, (source.images / np.float32(255), source.labels), **settings)
    (note,) = result.evaluation["notes"]
    assert result.values["checks/failed"] >= 1 and "linf, radius 0.02, 60 images" in note
    assert note in tfr.report.evaluation_notes([result.evaluation])[-1]


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"attack_radii": ("4/255",)}, "attack_radii=linf_4/255$"),
        ({"attack_radii": ("4",)}, "attack_radii=linf_4/255$"),
        ({"attack_radii": ("0.5",)}, "attack_radii=linf_0.5$"),
        ({"attack_radii": ("l2_x",)}, "'l2_x'"),
        ({"attack_radii": ("linf_1/0",)}, "'linf_1/0'"),
        ({"attack_radii": ("l1_0.5",)}, "norm: 'l1'"),
        ({"curve_attacks": ("pgd_l1",)}, "norm: 'l1'"),
        ({"curve_attacks": ("plb",)}, "norm: ''"),
        ({"curve_attacks": ("cw_l2",)}, "attack of a curve: 'cw'"),
        ({"attack_queries": 0}, "attack_queries"),
        ({"attack": ()}, "attack"),
    ],
)
def test_invalid_settings_of_attacks_raise(settings, message):
    with pytest.raises(ValueError, match=message):
        evaluation.EvalConfig(**settings)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"attack": ("cw",)}, "attack: 'cw'"),
        ({"attack": ("plb",)}, "attack: 'plb'"),  # which has no radius
        ({"attack_radii": ("linf_1.5",)}, "radius"),
        ({"evaluations": ("attack_curves",), "curve_attacks": ("plb_linf",), "attack_radii": ("linf_8",)}, "linf_8/255"),
    ],
)
def test_attacks_that_the_images_do_not_permit_raise(source, settings, message):
    with pytest.raises(ValueError, match=message):
        evaluation.evaluation_sets(source, None, evaluation.EvalConfig(**{"evaluations": ("adversarial",), **settings}))


def test_cards_have_the_settings_that_each_metric_depends_on(source):
    def difference(metric, first, second):
        configs = (evaluation.EvalConfig(("adversarial", "attack_curves"), **settings) for settings in (first, second))
        return evaluation.difference(metric, *(evaluation.card_of(source, config, None) for config in configs))

    both = {"attack": ("autoattack", "pgd"), "attack_queries": 5}
    assert difference("robust/l2_0.5", both, {"attack_queries": 7}) == [("robust.queries", 5, 7)]
    assert difference("robust/pgd/l2_0.5", both, {"attack": ("pgd",)}) == []  # which does not use attack_queries
    assert difference("robust/l2_0.5", {}, {"attack": ("pgd",)})
    assert difference("robust/l2_0.5", {}, {"attack_checks": False}) == difference("clean", {"attack_subset": 20}, {}) == []
    for metric in ("robust/linf_1/50", "fgsm/linf_1/50", "distance/pgd_l2"):
        assert [change[1:] for change in difference(metric, {"attack_subset": 20}, {})] == [(20, None)]


@pytest.mark.slow
def test_attack_subset_applies_to_attacks_only(linear, source):
    options = {
        "evaluations": ("clean", "adversarial", "attack_curves"),
        "attack": ("pgd",),
        "attack_radii": RADII[1:],
        "curve_attacks": ("pgd_l2",),
        "attack_checks": False,
    }
    rows = evaluated(linear, source, attack_subset=20, **options)
    smaller = data.subsets.stratified_subset(source, 20)
    assert sorted(smaller.labels) == sorted(source.labels[smaller.positions])
    alone = evaluated(linear, smaller, **options)
    assert (rows["clean"].count, rows["robust/pgd/linf_1/50"].count) == (60, 20)
    for metric in ("robust/pgd/linf_1/50", "fgsm/linf_1/50", "distance/pgd_l2"):
        assert rows[metric].value == alone[metric].value


def test_the_measured_pgd_is_compared_with_that_on_the_margin():
    sound = dict.fromkeys(adversarial.check_attacks("linf", 0.1, 1.0), 0.0)
    measured = adversarial.check_attacks("linf", 0.1, 1.0, ("pgd",))["pgd"]
    assert "pgd" not in sound and measured.loss == "cross_entropy" and measured.steps == adversarial.PGD_STEPS
    assert [len(adversarial.failed_checks({**sound, "pgd": value})) for value in (0.04, 0.06)] == [0, 1]


def test_checks_of_pgd_are_of_the_attack_and_of_the_outputs(linear, source, monkeypatch):
    strong = attacks.FastGradient(norm="linf", radius=1.0)  # in the place of all checks but pgd, so that only what follows fails
    names, weak = adversarial.check_attacks("linf", 0.1, 1.0), attacks.FastGradient(norm="linf", radius=0.0)
    monkeypatch.setattr(adversarial, "check_attacks", lambda *_: {**dict.fromkeys(names, strong), "pgd": weak})
    few = source.subset(np.arange(12))
    checked = evaluation.EvalConfig(evaluations=("adversarial",), attack=("pgd",), attack_radii=("linf_1/50",))
    for predict, failed in ((linear, 1), (lambda images: tf.nn.softmax(linear(images)), 2)):
        (checks,) = [one for one in evaluation.evaluation_sets(few, None, checked) if one.name.startswith("checks/")]
        record = checks.score(predict, checks)
        assert len(record["failed"]) == failed and record["accuracies"]["hundred_steps"] == 0 < record["accuracies"]["pgd"]
