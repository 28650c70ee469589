"""Builds the evaluation sets: clean, noisy, corrupted and attacked images, and perturbation sequences."""

import dataclasses
import functools
import itertools
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_robust import attacks, corruptions, data, metrics
from tf_robust.attacks import norms
from tf_robust.attacks.attack import Predict
from tf_robust.corrupted_datasets import reader
from tf_robust.data.pipeline import PARALLEL_CALLS
from tf_robust.data.shifts import Shift
from tf_robust.data.source import Source
from tf_robust.data.subsets import stratified_order, stratified_subset
from tf_robust.evaluation import adaptation, adversarial, auto_attack, boundary, scoring, set_cache, slices, smoothing, utility
from tf_robust.evaluation.config import EvalConfig
from tf_robust.evaluation.evaluation_set import EvaluationSet
from tf_robust.evaluation.measure import parse_measure
from tf_robust.evaluation.nonuniform_noise import probabilities, training_std

NOISE_FLOORS = (0.02, 0.05, 0.1, 0.2, 0.5)
NOISE_SEED = 15  # fixed: all models and training seeds get the same noise and corruptions
BATCH = 500


def check(source: Source, eval_config: EvalConfig) -> None:
    """Checks that the evaluations are possible on the images of a source.

    Raises:
        ValueError: they are not.
    """
    if "boundary" in eval_config.evaluations:
        boundary.check(source)
    if "utility" in eval_config.evaluations:
        utility.check(source)
    if "slices" in eval_config.evaluations:
        slices.check(source, eval_config.groups)


def evaluation_sets(
    source: Source,
    training_source: Source | None,
    eval_config: EvalConfig,
    data_dir: str | None = None,
    shifts: Sequence[Shift] = (),
    surrogate: Predict | None = None,
) -> list[EvaluationSet]:
    """Returns the evaluation sets of a configuration.

    Args:
        source: images to evaluate on.
        training_source: images from which NUN computes its standard deviation per location; may be None without noise.
        eval_config: names the evaluations.
        data_dir: where TFDS keeps a corrupted set; None: its default.
        shifts: shifted data sets, each a set of its own.
        surrogate: differentiable model from which attacks are transferred; None: there are none.

    Raises:
        FileNotFoundError: the corrupted set does not exist or has no corruption.
        ValueError: the evaluation `boundary` for images that are not points in the plane, or `utility` for images that are not corner
            digits.
    """
    check(source, eval_config)
    own = _sets(source, training_source, eval_config, data_dir, surrogate)
    own = [dataclasses.replace(one, class_mask=source.class_mask) for one in own]
    first = 1 if own and parse_measure(own[0].name).is_clean else 0
    shifted = [_shifted(shift) for shift in shifts]
    if eval_config.adaptation != "none":
        size = eval_config.adaptation_batch_size
        own = [adaptation.in_batches(one, len(source), size) for one in own]
        shifted = [adaptation.in_batches(one, len(shift.source), size) for one, shift in zip(shifted, shifts)]
    return [*own[:first], *shifted, *own[first:]]


def _shifted(shift):
    """The set of a shifted data set; its labels are columns of the model's output."""
    columns = tf.constant(shift.columns, tf.int64)

    def open_shift():
        return _clean(shift.source).map(lambda images, labels: (images, tf.gather(columns, labels)))

    return EvaluationSet(f"shift/{shift.name}", open_shift, class_mask=shift.class_mask)


def _sets(source, training_source, eval_config, data_dir, surrogate):
    """The sets of the evaluated images."""
    clean = functools.cache(functools.partial(_clean, source))
    std = functools.partial(training_std, training_source)  # computed when the first noise set is opened
    sets = []
    chosen = eval_config.evaluations
    if {"clean", "calibration", "slices"} & set(chosen):
        sets.append(EvaluationSet(clean_name(source), clean))
    if "noise" in chosen:
        sets.append(
            EvaluationSet("un", lambda: _indexed(source, clean(), lambda x, i: corruptions.uniform_noise(x, seed=NOISE_SEED, indices=i)))
        )
        sets.append(EvaluationSet("nun", lambda: _nonuniform(source, clean(), probabilities(std(), eval_config))))
    if "noise_floor" in chosen:
        sets += _floors(source, std, clean)
    for family, members in (
        ("corruptions", (*metrics.BENCHMARK, *metrics.EXTRA)),
        ("corruptions_bar", metrics.BAR[eval_config.bar_set(source.image_shape)]),
    ):
        names = [name for name in corruptions.CORRUPTIONS if name in members]
        if family in chosen and eval_config.corrupted_dir:
            sets += _from_disk(source, family, names, eval_config, data_dir)
        elif family in chosen:
            pairs = itertools.product(names, eval_config.severities)
            sets += [_corrupted(source, family, name, severity, eval_config, clean) for name, severity in pairs]
    if "perturbations" in chosen:
        sets += _sequences(source, eval_config)
    if "boundary" in chosen:
        sets.append(EvaluationSet("boundary", boundary.grid, scoring.score_boundary))
    if "utility" in chosen:
        sets.append(EvaluationSet("bal/rare", lambda: _of_classes(clean(), utility.RARE)))
        sets.append(EvaluationSet("utility", clean, utility.measure))
    if "adversarial" in chosen:
        sets += _attacks(_attacked(source, eval_config), eval_config, surrogate)
    if "attack_curves" in chosen:
        sets += _curves(_attacked(source, eval_config), eval_config)
    if "certified" in chosen:
        sets += _smoothed(_attacked(source, eval_config), eval_config)
    return sets


def _attacked(source, eval_config):
    """The subset of a source that is attacked."""
    return stratified_subset(source, eval_config.attack_subset) if 0 < eval_config.attack_subset < len(source) else source


def _of_classes(batches, classes):
    """The images of some classes, in batches that may be smaller."""

    def select(images, labels):
        selected = tf.reduce_any(labels[:, None] == tf.constant(list(classes), labels.dtype), axis=1)
        return tf.boolean_mask(images, selected), tf.boolean_mask(labels, selected)

    return batches.map(select).filter(lambda images, labels: tf.size(labels) > 0)


def _clean(source):
    return data.evaluation_batches(source, batch_size_of(source.image_shape))


def clean_name(source: Source) -> str:
    """Returns the name of the clean set: `clean`, or `bal` for the balanced corner-digit sets."""
    return "bal" if source.name.startswith("synthetic_") else "clean"


def batch_size_of(image_shape: Sequence[int]) -> int:
    """Returns the number of images per batch: 500 of 32 pixels, fewer of larger ones."""
    return max(1, min(BATCH, BATCH * 48 * 48 * 3 // int(np.prod(image_shape))))


def _nonuniform(source, batches, probabilities):
    return _indexed(source, batches, lambda x, i: corruptions.nonuniform_noise(x, probabilities, seed=NOISE_SEED, indices=i))


def _floors(source, std, clean):
    def open_with_floor(floor):
        return _nonuniform(source, clean(), corruptions.nonuniform_probabilities(std(), floor=floor))

    return [EvaluationSet(f"nun/floor_{floor:g}", functools.partial(open_with_floor, floor)) for floor in NOISE_FLOORS]


def _corrupted(source, family, name, severity, eval_config, clean):
    options = {
        "constants": eval_config.constants(source.image_shape),
        "protocol": eval_config.protocol(source.image_shape),
        "frost_dir": eval_config.frost_dir or None,
    }

    def change(images, indices):
        return corruptions.corrupt(images, name, severity, NOISE_SEED, indices, **options)

    def open_corrupted():
        key = source.fingerprint(), source.positions.tobytes(), name, severity, *options.values(), batch_size_of(source.image_shape)
        num_bytes = 4 * len(source) * int(np.prod(source.image_shape))
        if num_bytes > set_cache.SET_BYTES:
            return _indexed(source, clean(), change)
        return set_cache.cached(key, num_bytes, lambda: _changed(source, clean(), change))

    return EvaluationSet(f"{family}/{name}/{severity}", open_corrupted)


def _from_disk(source, family, names, eval_config, data_dir):
    """The corruptions of a set on disk, in the order of `names`."""
    folder = eval_config.corrupted_dir

    def open_corruption(name, severity):
        corrupted = reader.open_corrupted(folder, source, name, severity, data_dir=data_dir)
        return data.evaluation_batches(corrupted, batch_size_of(source.image_shape))

    available = set(reader.available(folder, data_dir))
    chosen = [pair for pair in itertools.product(names, eval_config.severities) if pair in available]
    if not chosen:
        raise FileNotFoundError(
            f"Expected corruptions ({', '.join(names)}) at severities "
            f"{', '.join(map(str, eval_config.severities))} in {folder}. Received: "
            f"{', '.join(f'{name} {severity}' for name, severity in sorted(available)) or 'none'}"
        )
    return [EvaluationSet(f"{family}/{name}/{severity}", functools.partial(open_corruption, name, severity)) for name, severity in chosen]


def _sequences(source, eval_config):
    constants, size = eval_config.constants(source.image_shape), max(1, batch_size_of(source.image_shape) // 16)

    def open_sequence(name):
        def perturb(images, indices):
            frames = corruptions.perturb(images, name, seed=NOISE_SEED, indices=indices, constants=constants)
            return corruptions.store(frames, "cifar_c")

        return _indexed(source, data.evaluation_batches(source, size), perturb, size)

    return [
        EvaluationSet(f"flips/{name}", functools.partial(open_sequence, name), scoring.score_sequences)
        for name in corruptions.sequence_names(eval_config.sequences)
    ]


def _curves(source, eval_config):
    """Sets for the sizes of the smallest perturbations that are misclassified."""
    return [
        EvaluationSet(
            f"distance/{text}",
            functools.partial(_clean, source),
            adversarial.distances(adversarial.minimal_attack(*adversarial.parse_curve(text)), source.positions),
        )
        for text in eval_config.curve_attacks
    ]


def _smoothed(source, eval_config):
    """Sets for certified radii, and for the accuracy of the smoothed classifier without and with attacks."""
    clean, positions, sigma = functools.partial(_clean, source), source.positions, eval_config.smoothing_sigma
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


def _attacks(source, eval_config, surrogate):
    """Sets for robust accuracies, FGSM in linf, and the checks of the attacks at each norm's largest radius."""
    clean = functools.partial(_clean, source)
    threats = {text: adversarial.parse_threat(text) for text in eval_config.attack_radii}
    accuracy_of, attack = {"autoattack": auto_attack.accuracy}, adversarial.accuracy_attack
    for norm, radius in threats.values():
        norms.check_radius(radius, norms.norm(norm), source.image_shape)
    sets = [
        EvaluationSet(
            f"{adversarial.ATTACKS[name]}{text}",
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
    largest = {norm: max(radius for other, radius in threats.values() if other == norm) for norm, _ in threats.values()}

    def first_batch():
        return clean().unbatch().take(adversarial.CHECKED).batch(adversarial.CHECKED)

    return sets + [
        EvaluationSet(f"checks/{norm}", first_batch, adversarial.checks(norm, radius, source.positions)) for norm, radius in largest.items()
    ]


def _transferred(source, threats, surrogate):
    """Sets for accuracies under attacks on another model."""
    return [
        EvaluationSet(
            f"robust/transfer/{text}",
            functools.partial(_clean, source),
            adversarial.transferred_accuracy(adversarial.transferred_attack(norm, radius), source.positions, surrogate),
        )
        for text, (norm, radius) in threats.items()
    ]


def _changed(source, batches, change):
    """A small set that is changed in memory: building a graph takes longer. Arguments as in `_indexed`."""
    positions, size = tf.constant(source.positions), batch_size_of(source.image_shape)
    with tf.device("CPU"):  # as in a Dataset
        changed = [(change(images, positions[number * size :][: len(images)]), labels) for number, (images, labels) in enumerate(batches)]
        images, labels = (tf.concat(parts, axis=0) for parts in zip(*changed))
        return tf.data.Dataset.from_tensor_slices((images, labels)).batch(size)


def _indexed(source, batches, change, size=None):
    """Batches of `size` changed by `change(images, indices)`; an index is the image's position in its data set."""
    positions = tf.constant(source.positions)

    @tf.autograph.experimental.do_not_convert  # not needed, and would take most of the time until the first image
    def apply(first, example):
        images, labels = example
        return change(images, positions[first : first + tf.shape(images, tf.int64)[0]]), labels

    size = size or batch_size_of(source.image_shape)
    numbered = tf.data.Dataset.zip(tf.data.Dataset.range(0, len(source) + size, size), batches)
    return numbered.map(apply, num_parallel_calls=PARALLEL_CALLS, deterministic=True).prefetch(2)


def first_images(source: Source, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first images of a source, of all classes: float32 [N, H, W, C] in [0, 1] and int64 [N].

    Args:
        source: any source.
        count: number of images.
    """
    if source.sorted_by_class:
        source = source.subset(stratified_order(source.labels)[:count])
    batches = data.evaluation_batches(source, min(count, BATCH)).as_numpy_iterator()
    first = list(itertools.islice(batches, -(-count // min(count, BATCH))))
    return np.concatenate([b[0] for b in first])[:count], np.concatenate([b[1] for b in first])[:count]
