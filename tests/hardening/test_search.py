"""The search on a model with one weight, whose accuracy and time are formulas."""

import dataclasses
import json
import math
import os

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_robust.hardening.candidates import Candidate, candidates, variations
from tf_robust.hardening.config import TARGETS, parse_budget
from tf_robust.hardening.search import COEFFICIENTS, RUNGS, Frontier, Search
from tf_robust.hardening.target import Outcome
from tf_robust.hardening.training import State, interpolate
from tf_robust.hardening.trials import Trial, TrialStore, choose
from tf_robust.methods import METHODS
from tf_robust.training.loop import TrainingDiverged

IMAGES = 2000
GAINS = {"AugMix + JSD": 0.10, "NoisyMix": 0.08, "Patch Gaussian": 0.03}  # of the target after infinitely many steps; others 0.01
EVALUATION_SECONDS = 0.5


class Clock:
    """Counts simulated seconds."""

    seconds = 0.0

    def __call__(self):
        return self.seconds


@dataclasses.dataclass
class Trainers:
    """Weights move from 0 towards (gain, loss) of a recipe; a step takes a tenth of a second, the first call of a recipe ten seconds."""

    diverges: str = ""  # a recipe
    unsuitable: tuple = ()  # recipes
    interrupted_at: int | None = None  # number of calls
    harmful_rate: float = 1.0  # above it a training loses accuracy
    unstable_rate: float = 1.0
    start = (np.zeros(2),)

    def __post_init__(self):
        self.clock, self.known, self.calls = Clock(), set(), []

    def is_stable(self, candidate):
        return candidate.learning_rate <= self.unstable_rate

    def seconds_per_step(self, candidate):
        if candidate.recipe in self.unsuitable:
            raise ValueError("Expected a model with layers")
        if candidate.recipe not in self.known:
            self.known.add(candidate.recipe)
            self.clock.seconds += 10.0
        return 0.1

    def train(self, candidate, steps, state=None, seconds=math.inf):
        if self.interrupted_at == len(self.calls):
            raise KeyboardInterrupt
        self.seconds_per_step(candidate)
        self.calls.append((candidate, steps))
        self.clock.seconds += 0.1 * steps
        if candidate.recipe == self.diverges:
            raise TrainingDiverged
        total = steps + (state.steps if state else 0)
        if candidate.learning_rate > self.harmful_rate:
            return State([np.array([0.0, 0.3])], [np.array(total)], total)
        better = 1.3 if candidate.variation == "crop and flip" else 1.0
        reached = total / (total + 50)
        return State([better * reached * np.array([GAINS.get(candidate.recipe, 0.01), 0.02])], [np.array(total)], total)


def _search(tmp_path, budget, trainers=None, **options):
    trainers = trainers or Trainers()
    clock = trainers.clock

    def evaluate(weights):
        clock.seconds += EVALUATION_SECONDS
        gain, loss = weights[0]
        order = (np.arange(IMAGES) + 0.5) / IMAGES
        return Outcome(order < 0.8 - loss * loss * 25, (order < 0.5 + gain).astype(float))  # interpolation loses little

    store = TrialStore(str(tmp_path / "trials"), {"budget": budget})
    arguments = {"budget": parse_budget(budget), "max_clean_loss": 0.01, "clock": clock, "log": lambda line: None, **options}
    return Search(trainers, evaluate, candidates(("corruptions",)), store=store, **arguments)


def _searched(*arguments, **options):
    search = _search(*arguments, **options)
    search.run()
    return search


@pytest.fixture(scope="module")
def in_steps(tmp_path_factory):
    return _searched(tmp_path_factory.mktemp("in_steps"), "3000steps")


@pytest.fixture(scope="module")
def in_time(tmp_path_factory):
    return _searched(tmp_path_factory.mktemp("in_time"), "20m")


def _finish(search):
    frontier = Frontier(search)
    frontier.build(None)
    return frontier, choose(search.start, frontier.points, search.max_clean_loss)


@pytest.mark.parametrize("minutes", (4, 20, 60))
def test_a_budget_in_time_holds_within_a_tenth_and_the_best_recipe_wins(tmp_path, minutes):
    search = _searched(tmp_path, f"{minutes}m")
    frontier, choice = _finish(search)
    is_complete = len(frontier.points) == len(COEFFICIENTS) * len({point.line for point in frontier.points})
    assert search.clock.seconds < 1.1 * 60 * minutes and (is_complete or search.clock.seconds > 0.9 * 60 * minutes)
    assert {candidate.recipe for candidate, *_ in choice.point.members} <= {"AugMix + JSD", "NoisyMix"}
    assert choice.helps and choice.clean["mean"] >= -0.01


def test_trials_of_one_candidate_keep_their_own_weights(tmp_path, monkeypatch):
    """With a small budget a candidate has as many steps in a later rung; training in parallel may still end at other weights."""
    trainers = Trainers()
    train = trainers.train

    def train_otherwise(candidate, steps, state, seconds):
        trained = train(candidate, steps, state)
        return dataclasses.replace(trained, weights=[trained.weights[0] + 1e-3 * len(trainers.calls)])

    trainers.train = train_otherwise
    monkeypatch.setattr(Search, "_steps", lambda search, candidate, share: (20, math.inf))
    search = _searched(tmp_path, "1000steps", trainers)
    frontier, _ = _finish(search)
    ends = {point.line: frontier.weights(point)[0] for point in frontier.points if point.coefficient == 1.0 and len(point.members) == 1}
    trials = search.finalists()
    assert len({trial.candidate.name for trial in trials}) < len(trials) == len(ends)
    for trial in trials:
        np.testing.assert_allclose(ends[trial.points[-1].line], search.store.weights(trial)[0])


def test_a_budget_in_steps_holds_and_is_reproducible(in_steps, tmp_path):
    again = _searched(tmp_path, "3000steps")
    assert again.trainers.calls == in_steps.trainers.calls
    assert sum(steps for _, steps in again.trainers.calls) <= 3000 * sum(RUNGS) * 1.01
    assert _finish(again)[1].point.name == _finish(in_steps)[1].point.name


def test_a_recipe_that_the_model_does_not_suit_is_left_out(tmp_path):
    trainers, lines = Trainers(unsuitable=("AugMix + JSD", "FCL")), []
    search = _searched(tmp_path, "20m", trainers, log=lines.append)
    left_out = [line for line in lines if "left out" in line]
    assert left_out == [f"{name} is left out: Expected a model with layers" for name in trainers.unsuitable]
    assert search.ranked(search.trials)[0].candidate.recipe == "NoisyMix" and not set(trainers.unsuitable) & trainers.known
    trainers = Trainers(unsuitable=[candidate.recipe for candidate in candidates(("corruptions",)) if not candidate.control])
    with pytest.raises(ValueError, match="one that suits none"):
        _searched(tmp_path / "none", "20m", trainers)


def test_rungs_keep_the_better_candidates(in_time):
    rungs = [[trial for trial in in_time.trials if trial.rung == rung] for rung in range(3)]
    assert len(rungs[0]) == len(candidates(("corruptions",)))
    assert [trial.candidate.recipe for trial in rungs[1][:2]] == ["AugMix + JSD", "NoisyMix"]
    assert {trial.candidate.recipe for trial in rungs[1]} == {"AugMix + JSD", "NoisyMix"} and len(rungs[1]) > 2
    assert rungs[2][0].candidate.control and rungs[2][1].candidate.variation == "crop and flip" and len(rungs[2]) == 3
    assert rungs[2][0].seconds > 0.9 * rungs[2][1].seconds  # the control trains for as long
    assert min(trial.steps for trial in rungs[2]) > max(trial.steps for trial in rungs[1]) > min(trial.steps for trial in rungs[0])


def test_both_of_the_best_recipes_have_all_their_variations(tmp_path, monkeypatch):
    monkeypatch.setattr("tf_robust.hardening.search.LONGER", 0.01)
    search = _search(tmp_path, "3000steps")
    chosen = search._settings(search._first_rung())
    assert [one.recipe for one in chosen[:5]] == ["AugMix + JSD", "NoisyMix", "AugMix + JSD", "AugMix + JSD", "NoisyMix"]
    for recipe in chosen[:2]:
        own = [one.name for one in chosen if one.recipe == recipe.recipe]
        assert own == [recipe.name, *(one.name for one in variations(recipe, has_batch_norm=True, has_layers=True))]


def test_an_interrupted_search_resumes(in_steps, tmp_path):
    stopped = _search(tmp_path, "3000steps", Trainers(interrupted_at=4))
    with pytest.raises(KeyboardInterrupt):
        stopped.run()
    assert len(stopped.trials) == 4
    assert _finish(stopped)[1].point.members[0][0].recipe in GAINS  # the best so far
    resumed = _searched(tmp_path, "3000steps")
    assert resumed.trainers.calls == in_steps.trainers.calls[4:]
    scores = [[(t.candidate, t.steps, one.score(t.points)) for t in one.trials] for one in (resumed, in_steps)]
    assert scores[0] == scores[1]


def test_a_finished_search_in_time_is_read_with_the_same_choice(tmp_path):
    frontier, choice = _finish(_searched(tmp_path, "6m"))
    again = _search(tmp_path, "6m")
    again.clock.seconds = 10_000.0  # no time is left
    again.run()
    read, same = _finish(again)
    assert not again.trainers.calls and len(read.points) == len(frontier.points) and same.point.name == choice.point.name


def test_weights_of_trials_that_are_not_needed_are_deleted(in_time):
    kept = [name for name in os.listdir(in_time.store.folder) if name.endswith(".weights.npz")]
    assert len(in_time.trials) > 10 and len(kept) == len(in_time.finalists()) == 5


def test_arguments_without_a_trial_are_replaced(tmp_path):
    (tmp_path / "trials").mkdir()
    (tmp_path / "trials" / "arguments.json").write_text('{"budget": "1s"}')
    _searched(tmp_path, "3000steps")
    assert json.loads((tmp_path / "trials" / "arguments.json").read_text()) == {"budget": "3000steps"}


def test_an_unsuitable_variation_is_left_out(tmp_path, monkeypatch):
    train = Trainers.train

    def trained(self, candidate, steps, state, seconds):
        if candidate.variation:
            raise ValueError("Expected trainable weights")
        return train(self, candidate, steps, state)

    monkeypatch.setattr(Trainers, "train", trained)
    search = _searched(tmp_path, "2000steps")
    assert {trial.rung for trial in search.trials} == {0, 1, 2} and not any(trial.candidate.variation for trial in search.trials)


def test_other_arguments_in_the_same_folder_are_refused(in_steps):
    with pytest.raises(ValueError, match="budget=3000steps. Received: budget=20m"):
        TrialStore(in_steps.store.folder, {"budget": "20m"})


def test_a_learning_rate_that_harms_the_model_is_lowered(tmp_path):
    search = _searched(tmp_path, "3000steps", Trainers(harmful_rate=0.006))
    rates = [trial.candidate.learning_rate for trial in search.trials if trial.rung == 0]
    assert rates[:3] == [0.02, 0.005, 0.005]
    assert {candidate.learning_rate for candidate, _ in search.trainers.calls[2:9]} == {0.005}


def test_a_learning_rate_at_which_the_loss_rises_at_once_is_not_tried(tmp_path):
    search = _searched(tmp_path, "3000steps", Trainers(unstable_rate=0.002))
    used = {candidate.learning_rate for candidate, _ in search.trainers.calls if "learning rate" not in candidate.variation}
    assert used == {0.00125}
    assert search.trials[0].candidate.variation == "learning rate 0.00125"


def test_a_candidate_that_diverges_does_not_stop_the_search(tmp_path):
    search = _searched(tmp_path, "3000steps", Trainers(diverges="AugMix + JSD"))
    _, choice = _finish(search)
    assert [trial.diverged for trial in search.trials if trial.candidate.recipe == "AugMix + JSD"] == [True]
    assert choice.point.members[0][0].recipe == "NoisyMix"


@pytest.mark.parametrize("budget, shortest, recipes", (("2m", 15.0, 2), ("60s", 15.0, 1), ("200steps", 20, 3), ("45steps", 20, 1)))
def test_a_budget_too_short_for_three_rungs_has_one_with_the_cheapest_recipes(tmp_path, budget, shortest, recipes):
    search = _searched(tmp_path, budget, shortest=shortest)
    assert [trial.rung for trial in search.trials] == [0] * (recipes + 1) and search.trials[0].candidate.control
    every = candidates(("corruptions",))[1:]
    assert {trial.candidate.cost for trial in search.trials[1:]} == {*sorted(one.cost for one in every)[:recipes]}
    amount = search.budget.amount
    used = sum(trial.steps for trial in search.trials) if search.budget.in_steps else search.clock.seconds
    assert 0.6 * amount < used <= amount


def test_a_candidate_goes_on_in_later_rungs_so_that_all_of_a_rung_are_trained_for_as_long(in_steps):
    first, second, third = ([trial for trial in in_steps.trials if trial.rung == rung] for rung in range(3))
    assert {len(trial.parts) for trial in first} == {1}
    again = {trial.candidate.name: trial for trial in first}
    assert [trial.parts[0] for trial in second[:2]] == [again[trial.candidate.name].steps for trial in second[:2]]
    assert max(trial.steps for trial in second) - min(trial.steps for trial in second) <= 1
    before = {trial.candidate.name: trial.parts for trial in (*first, *second)}
    assert [trial.parts[:-1] for trial in third] == [before[trial.candidate.name] for trial in third]  # the control's of the first rung
    assert max(trial.steps for trial in third) - min(trial.steps for trial in third) <= 1
    assert sum(trial.parts[-1] for trial in in_steps.trials) == sum(steps for _, steps in in_steps.trainers.calls) <= 2700


@pytest.mark.parametrize(
    ("allowed", "expected"),
    (
        (0.01, "50 steps, clean 0.797 (-0.003), target 0.540 (+0.040)"),
        (0.001, "target 0.520 (+0.020; about +0.025 at the maximum clean loss)"),
    ),
)
def test_the_progress_line_tells_what_the_allowed_loss_leaves(tmp_path, allowed, expected):
    """50 steps reach half of NoisyMix's gain, for a clean loss of 0.0025, and half of the way to that a quarter of this loss."""
    lines: list[str] = []
    search = _search(tmp_path, "100000steps", log=lines.append, max_clean_loss=allowed)
    search._trial(next(one for one in candidates(("corruptions",)) if one.recipe == "NoisyMix"), 0, 50)
    assert expected in lines[0] and lines[0].endswith("; the best so far")


BUILT: set[tuple[str, str]] = set()


@pytest.mark.parametrize("target", (*TARGETS, "shift=folder:night"))
def test_candidates_are_methods_with_hyperparameters_that_they_have(target):
    """Each method is built once with the same hyperparameters, which several targets share."""
    recipes = candidates((target,), values=192)
    assert recipes[0].control and len({recipe.name for recipe in recipes}) == len(recipes) >= 4
    for recipe in recipes:
        for one in (recipe, *variations(recipe, has_batch_norm=True, has_layers=True)):
            if (configuration := (one.method, repr(one.settings))) not in BUILT:
                METHODS[one.method](_tiny(), **one.settings)
                BUILT.add(configuration)
    assert "fcl" not in {recipe.method for recipe in candidates((target,), skip=("fcl",))}


def _tiny():
    layers = [keras.layers.Conv2D(4, 3), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(3)]
    return keras.Sequential([keras.Input((8, 8, 3)), *layers])


def test_variations_differ_in_one_thing():
    recipe = Candidate("NoisyMix", "noisymix", {"alpha": 1.0}, strengths={"alpha 0.2": {"alpha": 0.2}})
    made = variations(recipe, has_batch_norm=False, has_layers=True)
    assert len({one.name for one in made}) == len(made) and "batch norm frozen" not in {one.variation for one in made}
    for one in made:
        different = [f.name for f in dataclasses.fields(one) if getattr(one, f.name) != getattr(recipe, f.name) and f.name != "variation"]
        assert len(different) == 1, one


def test_a_gain_that_costs_too_much_clean_accuracy_counts_as_far_as_it_is_allowed(in_steps):
    start, attainable = in_steps.start, in_steps.attainable  # clean 0.8, target 0.5; 0.01 may be lost
    order = (np.arange(IMAGES) + 0.5) / IMAGES

    def point(clean, target, coefficient):
        return dataclasses.replace(start, outcome=Outcome(order < clean, (order < target).astype(float)), coefficient=coefficient)

    costly, harmless = [point(0.78, 0.58, 0.5), point(0.75, 0.7, 1.0)], [point(0.8, 0.55, 0.5), point(0.795, 0.56, 1.0)]
    np.testing.assert_allclose(attainable(costly), (0.54, 0.25), rtol=1e-3)
    np.testing.assert_allclose(attainable(harmless), (0.56, 1.0), rtol=1e-3)
    np.testing.assert_allclose(attainable([point(0.8, 0.55, 0.5), point(0.7, 0.75, 1.0)]), (0.57, 0.55), rtol=1e-3)
    assert attainable([point(0.7, 0.4, 1.0)]) == (start.target, 0.0)


def test_the_store_keeps_weights_of_bfloat16(tmp_path):
    store, weights = TrialStore(str(tmp_path), {}), [np.array([0.75, -3.0], tf.bfloat16.as_numpy_dtype), np.array([2], np.int64)]
    trial = Trial(candidates(("corruptions",))[0], 0, (4, 6), 1.0, (), False)
    store.write(trial, State(weights, [np.array(7)], 10), 1.0)
    state = store.state(trial)
    assert [one.tolist() for one in state.others] == [7] and state.steps == 10
    half, integers = interpolate([np.zeros_like(weights[0]), weights[1]], store.weights(trial), 0.5)
    assert half.dtype == weights[0].dtype and half.tolist() == [0.375, -1.5] and integers.tolist() == [2]
