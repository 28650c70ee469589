"""Robust accuracy under AutoAttack: the same as the attack's own result, resumed after any part, and its warnings."""

import dataclasses
import functools
import re
import types

import numpy as np
import pytest
import tensorflow as tf

from tests.attacks.oracles import SHAPE, Linear, sample_images
from tf_robust import attacks, data, evaluation
from tf_robust.evaluation import adversarial
from tf_robust.evaluation.recording import read_records, records
from tf_robust.evaluation.scoring import EvaluationSet, correctness, read_chosen

RADIUS = 0.02
POSITIONS = np.arange(100, 130)


class Curved(Linear):
    """A linear model on a curved scale, so that the members leave different images."""

    def __call__(self, images):
        return tf.sin(4.0 * super().__call__(images)) + 0.1 * super().__call__(images)


class Interrupted(Exception):
    pass


ATTACK = attacks.AutoAttack(norm="l2", radius=RADIUS, steps=5, queries=20, batch_size=12)  # its graphs are kept for one model
MODEL = Curved(classes=5)


def curved_set():
    images, labels = sample_images(MODEL, count=30, std=0.1)
    labels[::10] = (labels[::10] + 1) % 5
    score = functools.partial(adversarial.score_members, attack=ATTACK, positions=POSITIONS)
    return images, labels, EvaluationSet("robust/l2_0.1", lambda: tf.data.Dataset.from_tensor_slices((images, labels)).batch(20), score)


def test_it_counts_what_the_attack_leaves_and_what_each_member_leaves():
    images, labels, curved = curved_set()
    record = curved.score(MODEL, curved)
    attacked = ATTACK(MODEL, images, labels, indices=POSITIONS)
    np.testing.assert_array_equal(correctness(record), np.argmax(MODEL(attacked), axis=1) == labels)
    counts = [record["correct_after"][name] for name in ("clean", "apgd_ce", "apgd_t", "fab_t", "square")]
    assert counts == sorted(counts, reverse=True) and counts[0] == 27 and counts[0] > counts[1] > counts[2] > 0
    first = ATTACK.members(5)["apgd_ce"](MODEL, images, labels, indices=POSITIONS)
    assert counts[1] == np.sum(np.argmax(MODEL(first), axis=1) == labels) and record["correct"] == counts[-1]


def test_a_member_that_takes_long_is_announced_with_what_is_left(monkeypatch):
    monkeypatch.setattr(adversarial, "_LONG", 0.0)
    *_, curved = curved_set()
    lines: list[str] = []
    left = curved.score(MODEL, dataclasses.replace(curved, log=lines.append))["correct_after"]
    announced = [re.match(r"  Attacking by (\S+): robust/l2_0.1, (\d+) of 30 images .* at most \d+ s", line).groups() for line in lines]
    titles = ("APGD-CE", "APGD-T", "FAB-T", "Square")
    assert announced == [(title, str(left[name])) for title, name in zip(titles, ("clean", "apgd_ce", "apgd_t", "fab_t"))]


def test_in_a_limited_time_each_member_attacks_as_many_images_as_it_has_time_for(monkeypatch):
    """A forward pass of an image takes a second, by a clock of the test; each batch takes as long as its images at most."""
    images, labels, curved = curved_set()
    clock, passes = [0.0], 30
    monkeypatch.setattr(adversarial, "time", types.SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(adversarial, "_forward_passes", lambda attack, classes: passes)
    call = attacks.Attack.__call__

    def predict(batch):
        clock[0] += len(batch)
        return MODEL(batch)

    def timed(attack, predict, images, *arguments, **options):
        clock[0] += passes * len(images)
        return call(attack, MODEL, images, *arguments, **options)

    monkeypatch.setattr(attacks.Attack, "__call__", timed)
    seconds = 2 * 35 * passes
    limit = adversarial.SharedTime(seconds, sets=2)
    record = curved.score(predict, curved, limit=limit)
    correct, left, expected = np.argmax(MODEL(images), axis=1) == labels, seconds / 2, {"clean": 27}
    missed = {}
    for name, member in ATTACK.members(5).items():
        missed[name] = correct.copy()
        while len(chosen := np.flatnonzero(missed[name])[: max(0, int(left // passes))]):
            points = call(member, MODEL, images[chosen], labels[chosen], indices=POSITIONS[chosen])
            correct[chosen] = np.argmax(MODEL(points), axis=1) == labels[chosen]
            left -= (passes + 1) * len(chosen)  # and whether they are still correct
            missed[name][chosen] = False
        expected[name] = int(correct.sum())
    counts = {adversarial.MEMBERS[name]: (one & correct).sum() for name, one in missed.items()}
    assert record["correct_after"] == expected and 0 == counts["APGD-CE"] < counts["APGD-T"] < counts["Square"]
    assert f"({', '.join(f'{name} {count}' for name, count in counts.items() if count)})" in record["warnings"][-1]


def test_sets_share_a_time_and_leave_the_rest_to_the_others(monkeypatch):
    clock = iter([5.0, 15.0, 95.0])
    monkeypatch.setattr(adversarial, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    limit = adversarial.SharedTime(90.0, sets=3)
    assert [limit.end_of_next() for _ in range(3)] == [35.0, 55.0, 95.0]


@pytest.mark.slow  # the graphs of four attacks on a model of its own, which counts
def test_the_passes_of_an_attack_are_at_least_the_calls_of_the_model():
    model, calls = Linear(classes=5), tf.Variable(0)
    images, labels = sample_images(model, count=1)

    def counted(batch):
        calls.assign_add(1)
        return model(batch)

    attack = attacks.AutoAttack(norm="linf", radius=1e-6, steps=4, queries=9)  # which never succeeds
    for member in attack.members(5).values():
        calls.assign(0)
        member(counted, images, labels)
        passes, attempts = adversarial._forward_passes(member, 5), member.attempts(5, False)
        assert passes / 3 <= int(calls) <= passes + 3 * attempts  # where attempts begin and end


def test_chosen_images_are_read_in_full_batches():
    images, chosen = np.arange(12.0, dtype=np.float32).reshape(12, 1, 1, 1) / 12, np.isin(np.arange(12), [0, 2, 3, 7, 8, 9, 11])
    batches = tf.data.Dataset.from_tensor_slices((images, np.arange(12) % 5)).batch(5)
    read = [*read_chosen(EvaluationSet("clean", lambda: batches), chosen, 3)]
    assert [places.tolist() for *_, places in read] == [[0, 2, 3], [7, 8, 9], [11]]
    for found, labels, places in read:
        np.testing.assert_array_equal(found, images[places])
        np.testing.assert_array_equal(labels, places % 5)


def test_an_interrupted_measure_resumes_at_the_batch_of_a_member(tmp_path):
    *_, curved = curved_set()
    complete = records(MODEL, [curved], log=lambda line: None)[0]
    path, ran, call = str(tmp_path / "measured.jsonl"), [], attacks.Attack.__call__

    def run_until(stop, monkeypatch):
        def limited(self, *args, **kwargs):
            if len(ran) == stop:
                raise Interrupted
            ran.append(type(self).__name__)
            return call(self, *args, **kwargs)

        monkeypatch.setattr(attacks.Attack, "__call__", limited)
        return records(MODEL, [curved], path, log=lambda line: None)[0]

    for stop in range(12):  # three batches of four members; each run adds one
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Interrupted):
            run_until(stop, patch)
            raise Interrupted  # the last members may have had nothing left to attack
        assert len(ran) <= stop
    with pytest.MonkeyPatch.context() as patch:
        resumed = run_until(100, patch)
    assert {**resumed, "depends": None} == {**complete, "depends": None}
    expected = ["AutoProjectedGradientDescent", "TargetedAutoPGD", "FastAdaptiveBoundary", "Square"] * 3
    assert [name for name in ran if ran.count(name) > 3] == [] and set(ran) == set(expected)  # none ran twice
    assert sorted(file.name for file in tmp_path.iterdir()) == ["measured.jsonl"]


def test_parts_of_other_dependencies_are_not_used(tmp_path):
    *_, curved = curved_set()
    path = str(tmp_path / "measured.jsonl")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(attacks.Square, "__call__", lambda *args, **kwargs: (_ for _ in ()).throw(Interrupted()))
        records(MODEL, [curved], path, depends=lambda name: "one", log=lambda line: None)
    parts = read_records(f"{path}.parts")
    assert {part["part"].partition("/")[0] for part in parts} == {"apgd_ce", "apgd_t", "fab_t"} and not read_records(path)
    other = Curved(classes=5, seed=3)
    records(MODEL, [curved], log=lambda line: None)
    alone = records(other, [dataclasses.replace(curved, parts={})], log=lambda line: None)[0]
    assert records(other, [curved], log=lambda line: None)[0] == alone  # nor those of another model in memory
    shared = records(other, [curved], path, depends=lambda name: "two", log=lambda line: None)[0]
    assert shared["which"] == alone["which"]


def messages_of(model, scale=1.0):
    images, labels = sample_images(Linear(classes=4, scale=scale), count=8)
    return adversarial.model_warnings(model, images, labels)


def test_each_property_of_a_model_has_its_warning():
    model = Linear(classes=4)
    assert messages_of(model) == []
    calls = iter(range(100))
    assert [m for m in messages_of(lambda x: model(x) + 0.01 * next(calls)) if "differ between calls" in m]
    assert messages_of(lambda x: tf.concat([model(x), tf.fill([len(x), 1], -np.inf)], axis=1)) == []  # a class that is masked out
    (message,) = messages_of(lambda x: tf.nn.softmax(model(x)))
    assert "outputs=probabilities" in message
    for scale in (1e3, 1e4):  # the second underflows to 0 on some CPUs, the first on none
        confident = Linear(classes=4, scale=scale)
        assert any("The gradient vanishes for" in message for message in messages_of(lambda x: tf.nn.softmax(confident(x)), scale=scale))
        assert messages_of(confident, scale=scale) == []
    (message,) = messages_of(lambda x: tf.stop_gradient(model(x)) + 0.0 * model(x))
    assert "vanishes for 8 of 8 images" in message
    with pytest.raises(ValueError, match="attack=square"):
        messages_of(lambda x: tf.stop_gradient(model(x)))


def test_square_is_named_when_it_takes_more_than_its_tolerance():
    assert adversarial.square_warnings({"fab_t": 500, "square": 499}, 1000) == []
    (message,) = adversarial.square_warnings({"fab_t": 500, "square": 490}, 1000)
    assert "0.010" in message


def test_the_card_names_the_budget_of_the_attack_that_runs():
    source = data.ArraySource.of("tiny", "test", np.zeros([4, *SHAPE], np.uint8), np.arange(4) % 2, ["a", "b"])
    new = evaluation.card_of(source, evaluation.EvalConfig(evaluations=("adversarial",)), None)
    card = new["robust"]
    (attack,) = adversarial.accuracy_attacks("autoattack", "l2", [0.5], card["queries"])
    members = attack.members(10)
    assert card["members"] == list(members) and card["attack"] == "autoattack" and card["seed"] == attack.seed
    assert [member.steps for member in members.values()] == [*[card["steps"]] * 3, card["queries"]]
    assert {member.restarts for member in members.values()} == {card["restarts"]}
    assert {members[name].target_classes for name in ("apgd_t", "fab_t")} == {card["target_classes"]}
    old = {**new, "robust": {"attack": "ensemble", "seed": evaluation.SEED, "queries": 5000}}
    assert ("robust.attack", "ensemble", "autoattack") in evaluation.difference("robust/l2_0.5", old, new)
