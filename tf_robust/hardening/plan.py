"""Plan of a hardening: numbers of images and time of its parts within the budget, from the time of a few batches."""

import dataclasses
import math
import time

import keras
import numpy as np
import tensorflow as tf

from tf_robust import evaluation
from tf_robust.attacks.attack import Predict
from tf_robust.data.source import Source
from tf_robust.evaluation.evaluation_data import EvaluationData
from tf_robust.evaluation.scoring import first_images
from tf_robust.hardening import diagnosis
from tf_robust.hardening.config import HardenConfig, parse_budget
from tf_robust.hardening.data import ATTACK_STEPS, MAX_CLEAN_IMAGES, MAX_VALIDATION_IMAGES, Parts
from tf_robust.hardening.search import MINIMUM_STEPS, ONE_RUNG, QUICK_COEFFICIENTS
from tf_robust.hardening.target import PAIRS_PER_IMAGE, batch_of, predict_logits
from tf_robust.utils.progress import duration

FINAL_IMAGES = 2000  # of the test images, unless `subset` says otherwise
MIN_IMAGES = 100  # of each kind
GRADIENT_IMAGES = 16  # by which the time of a training step is known
OF_BUDGET = {"target": 0.02, "clean": 0.005, "diagnosis": 0.05, "final": 0.25}  # largest parts; the first two of one evaluation
GRAPH = 10.0  # seconds to build the graph of a training step
REPORT = 8.0  # seconds
CHANGES = 25  # forward passes that the changes of an image of a diagnosis, and their classification, take
ATTACK_PASSES = {"autoattack": 1800}  # passes with gradients per image, with half of the images robust; of other attacks:
ATTACK_PASSES_OF_OTHERS = 100
ROUND = 30  # seconds of a budget that a message advises
ADVISED = 1.2  # times the shortest time, as estimated


@dataclasses.dataclass(frozen=True)
class Plan:
    """Numbers of images at most, and seconds."""

    images: int = MAX_VALIDATION_IMAGES  # validation images with the changes of the target
    clean: int = MAX_CLEAN_IMAGES  # unchanged validation images
    diagnosis: int = diagnosis.MAX_IMAGES  # validation images
    final: int = FINAL_IMAGES  # test images
    final_seconds: float = 0.0  # of the final evaluation and the report
    shortest: float = MINIMUM_STEPS  # seconds (or steps) of the shortest trial
    begin: float = 0.0  # seconds from the start of the command to that of the search
    severities: dict[str, int] | None = None  # of the target's corruptions; None: not yet measured

    def summary(self, config: HardenConfig) -> str:
        """Returns a line on the time of each part."""
        budget, final = parse_budget(config.budget), duration(self.final_seconds)
        if budget.in_steps:
            return f"Plan: a search of {budget.amount:,.0f} training steps, and about {final} for the final evaluation."
        search = budget.amount - self.final_seconds - self.begin
        return (
            f"Plan: {duration(budget.amount)} in all, about {duration(search)} of it for the search, whose shortest trial takes about "
            f"{duration(self.shortest)}, and {final} for the final evaluation."
        )


def make(
    predict: Predict,
    network: keras.Model,
    parts: Parts,
    final: EvaluationData,
    config: HardenConfig,
    *,
    subset: int,
    batch_size: int,
    begin: float,
) -> Plan:
    """Returns the plan of a search that began at a time of `time.monotonic`.

    `predict`: images, float32 [N, H, W, C] in [0, 1] -> logits, by `network`, which is trained; `final` is of
    `final_evaluation.final_data`; `subset`: number of test images that the user chose, or 0. Raises ValueError if the budget does not
    suffice for plain fine-tuning and one recipe on few images.
    """
    budget = parse_budget(config.budget)
    if budget.in_steps and budget.amount * ONE_RUNG[0] < 2 * MINIMUM_STEPS:
        needed = math.ceil(2 * MINIMUM_STEPS / ONE_RUNG[0])
        raise ValueError(f"Expected a budget for plain fine-tuning and one recipe, {needed} steps. Received: {config.budget}")
    height, width, _ = parts.validation.image_shape
    images = first_images(parts.validation, batch_of(height, width))[0]
    forward = _seconds_per_image(lambda batch: predict_logits(predict, batch), images)
    fixed, per_image = _seconds_of_final(predict, parts.validation, final)
    gradients = _seconds_per_image(_gradients_of(network), images[:GRADIENT_IMAGES])
    attacked = 2 * gradients * _attack_passes(final, subset or len(parts.test))
    if budget.in_steps:
        return Plan(final_seconds=fixed + attacked + per_image * min(subset or FINAL_IMAGES, len(parts.test)) + REPORT)
    attack = ATTACK_STEPS * gradients / forward  # in forward passes
    versions = PAIRS_PER_IMAGE if config.weights else 1 if config.shift else attack
    elapsed, validation, test = time.monotonic() - begin, len(parts.validation), len(parts.test)

    def planned(size):
        """The plan for a budget in seconds, and the seconds that it needs."""

        def affordable(part, seconds, most):
            return int(min(most, max(MIN_IMAGES, OF_BUDGET[part] * size / seconds)))

        count = affordable("target", versions * forward, MAX_VALIDATION_IMAGES)
        clean = max(count, affordable("clean", forward, MAX_CLEAN_IMAGES))
        tested = subset or affordable("final", per_image, FINAL_IMAGES)
        diagnosed = affordable("diagnosis", CHANGES * forward, diagnosis.MAX_IMAGES)
        of_target = forward * versions * min(validation, count)
        evaluation_seconds = of_target + forward * min(validation, clean)
        before = elapsed + CHANGES * forward * min(validation, diagnosed) + evaluation_seconds
        of_final = fixed + attacked + per_image * min(tested, test) + REPORT
        if config.weights:
            before += of_target  # to find the severities, at most
            of_final += 2 * forward * versions * min(count, tested, test)  # the target on test images, of both models
        shortest = GRAPH + MINIMUM_STEPS * gradients * batch_size + len(QUICK_COEFFICIENTS) * evaluation_seconds
        return Plan(count, clean, diagnosed, tested, of_final, shortest, before), before + 2 * shortest / ONE_RUNG[0] + of_final

    found, needed = planned(budget.amount)
    if needed > budget.amount:
        fewer = ", or fewer evaluations, as in --evaluations=clean,noise" if {*final.eval_config.evaluations} - {"clean", "noise"} else ""
        advised = ROUND
        while ADVISED * planned(advised)[1] > advised:
            advised += ROUND
        raise ValueError(
            f"Expected a budget for plain fine-tuning and one recipe, {duration(found.shortest)} each at least, {duration(found.begin)} "
            f"before and {duration(found.final_seconds)} of final evaluation. Received: {config.budget}. Try: --budget={advised}s{fewer}"
        )
    return found


def _gradients_of(network):
    """A graph: images -> gradients with respect to the weights."""

    @tf.function(reduce_retracing=True)
    def gradients(images):
        with tf.GradientTape() as tape:
            outputs = tf.nest.flatten(network(images, training=False))  # which changes no weight
            loss = tf.add_n([tf.reduce_mean(tf.cast(one, tf.float32) ** 2) for one in outputs])
        return [tf.reduce_sum(one) for one in tape.gradient(loss, network.trainable_variables) if one is not None]

    return gradients


def _seconds_per_image(function, images):
    """Seconds per image of a function of images, from the median of some calls."""
    function(images)  # builds the graph
    times: list[float] = []
    while len(times) < 3 and sum(times) < 2.0:
        begin = time.monotonic()
        function(images)
        times.append(time.monotonic() - begin)
    return float(np.median(times)) / len(images)


def _seconds_of_final(predict, validation: Source, final):
    """(fixed seconds of all sets of both models, seconds per image), from one batch, read twice: the first time builds a graph."""
    eval_config = dataclasses.replace(final.eval_config, corrupted_dir="", subset=0)
    sets = evaluation.evaluation_sets(validation, validation, eval_config, final.config.data_dir or None)
    corrupted = [one for one in sets if evaluation.parse_metric(one.name).family in evaluation.CORRUPTION_FAMILIES] or sets[:1]
    for one in (corrupted[0], corrupted[len(corrupted) // 2]):  # the first one builds that of the model
        begin, times = time.monotonic(), []
        batches = one.batches()
        for _ in range(2):
            images, labels = next(iter(batches))
            predict(images)
            times.append(time.monotonic() - begin)
            begin = time.monotonic()
    return 2 * len(sets) * max(0.0, times[0] - times[1]), 2 * len(sets) * times[1] / len(labels)


def _attack_passes(final, images):
    """Passes with gradients of the attacks of one model, about; 0 without attacks."""
    chosen = final.eval_config
    if "adversarial" not in chosen.evaluations:
        return 0
    passes = sum(ATTACK_PASSES.get(name, ATTACK_PASSES_OF_OTHERS) for name in chosen.attack)
    return min(chosen.attack_subset or images, images) * len(chosen.attack_radii) * passes
