import keras
import numpy as np
import pytest

from tests.conftest import sweep
from tf_robust.hardening import training
from tf_robust.hardening.candidates import Candidate, candidates, variations
from tf_robust.hardening.result import lines_of
from tf_robust.hardening.target import Outcome
from tf_robust.hardening.trials import Member, Point

OUTCOME = Outcome(np.ones(1, bool), np.ones(1))
RECIPES = {recipe.recipe: recipe for target in ("corruptions", "noise", "adversarial") for recipe in candidates(target, values=256 * 3)}


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    keras.utils.set_random_seed(0)
    path = str(tmp_path_factory.mktemp("start") / "start.keras")
    norm = [keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization(), keras.layers.ReLU()]
    head = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(3, activation="softmax")]
    keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Rescaling(1 / 255), *norm, *head]).save(path)
    return path


@pytest.fixture
def run(start, tmp_path, monkeypatch):
    """Returns a function that runs the lines of a point, and returns their variables and the model that they save."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)

    def run_lines(point, **options):
        lines = lines_of(point, start, batch_size=16, seed=0, options={"input_range": (0.0, 255.0), "from_logits": False}, **options)
        assert all(len(line) <= 140 for line in lines.splitlines())
        names = {"images": random.integers(0, 256, (80, 16, 16, 3)).astype(np.uint8), "labels": random.integers(0, 3, 80)}
        exec(compile(lines, "recipe", "exec"), names)  # noqa: S102
        return names, keras.saving.load_model(tmp_path / "robust.keras")

    return run_lines


@pytest.fixture
def few_batches(monkeypatch):
    """Re-estimates the moving averages over two batches, which AugMix changes without a graph, not thirty."""
    monkeypatch.setattr(training, "BATCHES", 2)


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize("name", sweep(RECIPES, quick=("NoisyMix", "extra corruptions", "FCL", "adversarial training")))
def test_the_lines_of_every_recipe_run(run, name):
    names, model = run(Point(OUTCOME, 0.75, (Member(RECIPES[name], (2,), 0),)))
    for weight, first, end in zip(model.get_weights(), names["start"], names["ends"][0]):
        np.testing.assert_allclose(weight, first + 0.75 * (end - first), rtol=1e-4, atol=1e-6)
    assert not np.array_equal(names["ends"][0][0], names["start"][0])


@pytest.mark.usefixtures("few_batches")
def test_the_start_with_batch_norm_re_estimated(run):
    names, model = run(Point(OUTCOME, 0.0, (), reestimated=True), mixture=("clean", "augmix", "noise"))
    changed = [weight.name for weight, first in zip(model.weights, names["start"]) if not np.array_equal(weight, first)]
    assert changed == ["moving_mean", "moving_variance"]


@pytest.mark.usefixtures("few_batches", "eagerly")
def test_soups_frozen_layers_augmentations_and_reestimation(run):
    plain = Candidate("plain", "cross_entropy")
    members = [one for one in variations(plain, has_batch_norm=True, has_layers=True) if one.layers != "all" or one.augmentations]
    assert len(members) == 3
    names, model = run(Point(OUTCOME, 1.0, tuple(Member(member, (1, 1), 1) for member in members), reestimated=True))
    means = [np.mean(values, axis=0) for values in zip(*names["ends"])]
    np.testing.assert_allclose(model.get_weights()[0], means[0], rtol=1e-5, atol=1e-7)
    moved = [weight.name for weight in model.weights].index("moving_mean")
    assert not np.allclose(model.get_weights()[moved], means[moved], atol=1e-4)
