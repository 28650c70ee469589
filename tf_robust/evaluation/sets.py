"""The sets that the papers measure on: clean, noised, corrupted, and perturbation sequences."""

import dataclasses
import functools
import itertools
import typing

import numpy as np
import tensorflow as tf

from tf_robust import attacks, corruptions, data
from tf_robust.attacks import norms
from tf_robust.corrupted_datasets import reader
from tf_robust.data.pipeline import PARALLEL_CALLS
from tf_robust.data.subsets import stratified_order, stratified_subset
from tf_robust.evaluation import adversarial, boundary, scoring, utility

NOISE_FLOORS = (0.02, 0.05, 0.1, 0.2, 0.5)
NOISE_SEED = 15  # one fixed draw, so that every model and every seed sees the same noise and corruptions
STD_IMAGES = 50_000
BATCH = 500
SEVERITIES = range(1, 6)
_deviations = {}  # by the training set's fingerprint: the card and the figures need them too


@dataclasses.dataclass(frozen=True)
class EvaluationSet:
    """Images to measure on.

    Attributes:
        name: `clean`, `bal`, `un`, `nun`, `nun/floor_0.1`, `corruptions/NAME/SEVERITY`, `flips/NAME`,
            `boundary`, `bal/rare`, `utility`, `robust/NORM_RADIUS`, `robust/pgd/NORM_RADIUS`, `fgsm/NORM_RADIUS`, `checks/NORM` or
            `distance/ATTACK_NORM`.
        open: () -> Dataset of (float32 [B, H, W, C] in [0, 1], int64 [B]); for flips [B, frames, H, W, C]. Made when it
            is needed: a set that was measured before costs nothing.
        measure: (predict, this set) -> its record, a dictionary for JSON.
    """

    name: str
    open: typing.Callable
    measure: typing.Callable = scoring.scores


def check(source, eval_config):
    """Raises ValueError if an evaluation that is asked for cannot be done on a source's images."""
    if "boundary" in eval_config.evaluations:
        boundary.check(source)
    if "utility" in eval_config.evaluations:
        utility.check(source)


def evaluation_sets(source, training_source, eval_config, data_dir=None):
    """The sets that `eval_config` (a `EvalConfig`) names, as a list of `EvaluationSet`.

    Args:
        source: what to evaluate on. training_source: gives NUN its deviation per location; None where no noise is asked for.
        data_dir: where TFDS keeps a prepared corrupted set; None for its default.

    Raises:
        FileNotFoundError: a prepared set is not there, or holds no corruption.
        ValueError: a boundary is asked for of images that are not points in the plane, or the utility of other images than corner
            digits.
    """
    check(source, eval_config)

    clean = functools.partial(_clean, source)
    deviation = functools.partial(training_std, training_source)  # of all noise sets; read when the first is opened
    found = []
    chosen = eval_config.evaluations
    if {"clean", "calibration"} & set(chosen):
        found.append(EvaluationSet(clean_name(source), clean))
    if "noise" in chosen:
        found.append(
            EvaluationSet("un", lambda: _indexed(source, clean(), lambda x, i: corruptions.uniform_noise(x, seed=NOISE_SEED, indices=i)))
        )
        found.append(EvaluationSet("nun", lambda: _nonuniform(source, clean(), _probabilities(deviation(), eval_config))))
    if "noise_floor" in chosen:
        found += _floors(source, deviation, clean)
    if "corruptions" in chosen and eval_config.corrupted_dir:
        found += _prepared(source, eval_config.corrupted_dir, data_dir)
    elif "corruptions" in chosen:
        found += [_corrupted(source, name, severity, eval_config, clean) for name in corruptions.CORRUPTIONS for severity in SEVERITIES]
    if "perturbations" in chosen:
        found += _sequences(source, eval_config)
    if "boundary" in chosen:
        found.append(EvaluationSet("boundary", boundary.grid, scoring.drawn_boundary))
    if "utility" in chosen:
        found.append(EvaluationSet("bal/rare", lambda: _of_classes(clean(), utility.RARE)))
        found.append(EvaluationSet("utility", clean, utility.measure))
    if "adversarial" in chosen:
        found += _attacks(_attacked(source, eval_config), eval_config)
    if "attack_curves" in chosen:
        found += _curves(_attacked(source, eval_config), eval_config)
    return found


def _attacked(source, eval_config):
    """The part of a source that is attacked."""
    return stratified_subset(source, eval_config.attack_subset) if 0 < eval_config.attack_subset < len(source) else source


def _of_classes(batches, classes):
    """The images of some classes, in batches that may be smaller."""

    def chosen(images, labels):
        kept = tf.reduce_any(labels[:, None] == tf.constant(list(classes), labels.dtype), axis=1)
        return tf.boolean_mask(images, kept), tf.boolean_mask(labels, kept)

    return batches.map(chosen).filter(lambda images, labels: tf.size(labels) > 0)


def _clean(source):
    return data.evaluation_batches(source, batch_of(source.image_shape))


def clean_name(source):
    """`clean`; `bal` on the balanced corner-digit sets."""
    return "bal" if source.name.startswith("synthetic_") else "clean"


def batch_of(image_shape):
    """Images a batch: 500 of 32 pixels, fewer of larger ones."""
    return max(1, min(BATCH, BATCH * 48 * 48 * 3 // int(np.prod(image_shape))))


def noise_probabilities(training_source, eval_config):
    """Returns NUN's probability of each location [H, W], from (at most 50,000) training images. eval_config: a `EvalConfig`."""
    return _probabilities(training_std(training_source), eval_config)


def _probabilities(deviation, eval_config):
    return corruptions.nonuniform_probabilities(deviation, floor=eval_config.floor(deviation))


def training_std(training_source):
    """Returns the standard deviation of each location [H, W] over (at most 50,000) training images; computed once for each set."""
    key = training_source.fingerprint()
    if key not in _deviations:
        _deviations[key] = _deviation(training_source)
    return _deviations[key]


def _deviation(training_source):
    if training_source.sorted_by_class and len(training_source) > STD_IMAGES:
        training_source = training_source.subset(stratified_order(training_source.labels)[:STD_IMAGES])
    batches = data.evaluation_batches(training_source, BATCH).take(STD_IMAGES // BATCH)
    return corruptions.location_std(images for images, _ in batches)


def _nonuniform(source, batches, probabilities):
    return _indexed(source, batches, lambda x, i: corruptions.nonuniform_noise(x, probabilities, seed=NOISE_SEED, indices=i))


def _floors(source, deviation, clean):
    def opened(floor):
        chances = corruptions.nonuniform_probabilities(deviation(), floor=floor)
        return _nonuniform(source, clean(), chances)

    return [EvaluationSet(f"nun/floor_{floor:g}", lambda floor=floor: opened(floor)) for floor in NOISE_FLOORS]


def _corrupted(source, name, severity, eval_config, clean):
    options = {
        "constants": eval_config.constants(source.image_shape),
        "protocol": eval_config.protocol(source.image_shape),
        "frost_dir": eval_config.frost_dir or None,
    }
    return EvaluationSet(
        f"corruptions/{name}/{severity}",
        lambda: _indexed(source, clean(), lambda x, i: corruptions.corrupt(x, name, severity, NOISE_SEED, i, **options)),
    )


def _prepared(source, where, data_dir):
    """What a corrupted set that is already there holds, in the order of the benchmark."""

    def opened(name, severity):
        there = reader.open_corrupted(where, source, name, severity, data_dir=data_dir)
        return data.evaluation_batches(there, batch_of(source.image_shape))

    there = set(reader.available(where, data_dir))
    chosen = [(name, severity) for name in corruptions.CORRUPTIONS for severity in SEVERITIES if (name, severity) in there]
    if not chosen:
        raise FileNotFoundError(
            f"Expected corruptions ({', '.join(corruptions.CORRUPTIONS)}) in {where}. Found: "
            f"{', '.join(f'{name} {severity}' for name, severity in sorted(there)) or 'none'}"
        )
    return [
        EvaluationSet(f"corruptions/{name}/{severity}", lambda name=name, severity=severity: opened(name, severity))
        for name, severity in chosen
    ]


def _sequences(source, eval_config):
    constants, size = eval_config.constants(source.image_shape), max(1, batch_of(source.image_shape) // 16)

    def opened(name):
        def perturb(images, indices):
            frames = corruptions.perturb(images, name, seed=NOISE_SEED, indices=indices, constants=constants)
            return corruptions.store(frames, "cifar_c")

        return _indexed(source, data.evaluation_batches(source, size), perturb, size)

    return [
        EvaluationSet(f"flips/{name}", lambda name=name: opened(name), scoring.flips)
        for name in corruptions.sequence_names(eval_config.sequences)
    ]


def _curves(source, eval_config):
    """Sizes of the smallest perturbations that are misclassified."""
    return [
        EvaluationSet(
            f"distance/{text}",
            functools.partial(_clean, source),
            adversarial.distances(adversarial.minimal(*adversarial.curve(text)), source.positions),
        )
        for text in eval_config.curve_attacks
    ]


def _attacks(source, eval_config):
    """Robust accuracies, FGSM in linf, and the checks of the attacks at each norm's largest radius."""
    clean = functools.partial(_clean, source)
    threats = {text: adversarial.threat(text) for text in eval_config.attack_radii}
    for norm, radius in threats.values():
        norms.check_radius(radius, norms.norm(norm), source.image_shape)
    found = [
        EvaluationSet(
            f"{adversarial.ATTACKS[name]}{text}",
            clean,
            adversarial.accuracy(adversarial.strongest(name, norm, radius, eval_config.attack_queries), source.positions),
        )
        for name in eval_config.attack
        for text, (norm, radius) in threats.items()
    ]
    found += [
        EvaluationSet(f"fgsm/{text}", clean, adversarial.accuracy(attacks.FastGradient(norm=norm, radius=radius), source.positions))
        for text, (norm, radius) in threats.items()
        if norm == "linf"
    ]
    largest = {norm: max(radius for other, radius in threats.values() if other == norm) for norm, _ in threats.values()}

    def first():
        return clean().unbatch().take(adversarial.CHECKED).batch(adversarial.CHECKED)

    return found + [
        EvaluationSet(f"checks/{norm}", first, adversarial.checks(norm, radius, source.positions)) for norm, radius in largest.items()
    ]


def _indexed(source, batches, change, size=None):
    """Batches of `size` changed by `change(images, indices)`; an index is the image's place in its data set."""
    places = tf.constant(source.positions)

    @tf.autograph.experimental.do_not_convert  # not needed, and takes most of the time until the first image
    def apply(first, example):
        images, labels = example
        return change(images, places[first : first + tf.shape(images, tf.int64)[0]]), labels

    size = size or batch_of(source.image_shape)
    numbered = tf.data.Dataset.zip(tf.data.Dataset.range(0, len(source) + size, size), batches)
    return numbered.map(apply, num_parallel_calls=PARALLEL_CALLS, deterministic=True).prefetch(2)


def first_images(source, count):
    """The first `count` images of a source, of all classes: (float32 [N, H, W, C], int64 [N]) arrays."""
    if source.sorted_by_class:
        source = source.subset(stratified_order(source.labels)[:count])
    batches = data.evaluation_batches(source, min(count, BATCH)).as_numpy_iterator()
    taken = list(itertools.islice(batches, -(-count // min(count, BATCH))))
    return np.concatenate([b[0] for b in taken])[:count], np.concatenate([b[1] for b in taken])[:count]
