"""Evaluation sets of attacked images, and of images whose smallest perturbations or certified radii are computed."""

import functools

from tf_robust import attacks
from tf_robust.attacks import norms
from tf_robust.attacks.attack import Predict
from tf_robust.configs.evaluation import ATTACKS, EvalConfig, parse_curve, parse_threat
from tf_robust.data.source import Source
from tf_robust.data.subsets import stratified_subset
from tf_robust.evaluation import adversarial, auto_attack, scoring, smoothing
from tf_robust.evaluation.batches import batch_size_of, clean_batches
from tf_robust.evaluation.evaluation_set import EvaluationSet


def attacked_sets(source: Source, eval_config: EvalConfig, surrogate: Predict | None) -> list[EvaluationSet]:
    """Returns the sets of the evaluations `adversarial`, `attack_curves` and `certified`, of the subset that is attacked.

    Args:
        source: images to evaluate on.
        eval_config: names the evaluations.
        surrogate: as in `sets.evaluation_sets`.

    Raises:
        ValueError: a radius that is out of range.
    """
    few = stratified_subset(source, eval_config.attack_subset) if 0 < eval_config.attack_subset < len(source) else source
    sets = _attacks(few, eval_config, surrogate) if "adversarial" in eval_config.evaluations else []
    sets += _curves(few, eval_config) if "attack_curves" in eval_config.evaluations else []
    return sets + (_smoothed(few, eval_config) if "certified" in eval_config.evaluations else [])


def _attacks(source, eval_config, surrogate):
    """Sets for robust accuracies, FGSM in linf, and the checks of the attacks at each norm's largest radius."""
    clean = functools.partial(clean_batches, source)
    threats = {text: parse_threat(text) for text in eval_config.attack_radii}
    accuracy_of, attack = {"autoattack": auto_attack.accuracy}, adversarial.accuracy_attack
    for norm, radius in threats.values():
        norms.check_radius(radius, norms.norm(norm), source.image_shape)
    sets = [
        EvaluationSet(
            f"{ATTACKS[name]}{text}",
            clean,
            accuracy_of.get(name, adversarial.accuracy)(attack(name, norm, radius, eval_config.attack_queries), source.positions),
        )
        for name in eval_config.attack
        for text, (norm, radius) in threats.items()
    ]
    if surrogate is not None:
        sets += _transferred(source, threats, scoring.masked(surrogate, source.class_mask))
    if not eval_config.attacks_by_gradient:
        return sets
    sets += [
        EvaluationSet(f"fgsm/{text}", clean, adversarial.accuracy(attacks.FastGradient(norm=norm, radius=radius), source.positions))
        for text, (norm, radius) in threats.items()
        if norm == "linf"
    ]
    if not eval_config.attack_checks:
        return sets

    few = stratified_subset(source, adversarial.CHECKED) if source.random_access and len(source) > adversarial.CHECKED else source

    def checked():
        return clean_batches(few).unbatch().take(adversarial.CHECKED).batch(adversarial.CHECKED)

    return sets + [
        EvaluationSet(f"checks/{norm}", checked, adversarial.checks(norm, radius, few.positions, eval_config.attack))
        for norm, radius in adversarial.largest_radii(threats).items()
    ]


def _transferred(source, threats, surrogate):
    """Sets for accuracies under attacks on another model."""
    return [
        EvaluationSet(
            f"robust/transfer/{text}",
            functools.partial(clean_batches, source),
            adversarial.transferred_accuracy(adversarial.transferred_attack(norm, radius), source.positions, surrogate),
        )
        for text, (norm, radius) in threats.items()
    ]


def _curves(source, eval_config):
    """Sets for the sizes of the smallest perturbations that are misclassified."""
    curves = {text: parse_curve(text) for text in eval_config.curve_attacks}
    for norm, radius in map(parse_threat, eval_config.attack_radii):
        if norm in {of_curve for _, of_curve in curves.values()}:
            norms.check_radius(radius, norms.norm(norm), source.image_shape)
    return [
        EvaluationSet(
            f"distance/{text}",
            functools.partial(clean_batches, source),
            adversarial.distances(adversarial.minimal_attack(*curve), source.positions),
        )
        for text, curve in curves.items()
    ]


def _smoothed(source, eval_config):
    """Sets for certified radii, and for the accuracy of the smoothed classifier without and with attacks."""
    clean, positions, sigma = functools.partial(clean_batches, source), source.positions, eval_config.smoothing_sigma
    samples, batch = eval_config.smoothing_samples, batch_size_of(source.image_shape)
    radii = {f"smoothed/pgd/l2_{radius:g}": radius for radius in eval_config.certified_radii if radius and eval_config.smoothing_attack}
    for radius in radii.values():
        norms.check_radius(radius, norms.norm("l2"), source.image_shape)
    return [
        EvaluationSet("certified", clean, smoothing.certified(positions, sigma, eval_config.smoothing_selection, samples, batch)),
        *(
            EvaluationSet(name, clean, smoothing.attacked(positions, sigma, samples, batch, radius))
            for name, radius in {"smoothed/clean": 0.0, **radii}.items()
        ),
    ]
