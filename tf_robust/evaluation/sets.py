"""Builds the evaluation sets of a configuration: clean, shifted, noisy, corrupted, perturbed and attacked images."""

import dataclasses
import fractions
import itertools
from collections.abc import Hashable, Sequence
from functools import cache, lru_cache, partial

import numpy as np
import tensorflow as tf

from tf_robust import attacks, corruptions, data, metrics
from tf_robust.attacks import norms
from tf_robust.attacks.attack import Predict, at_radii
from tf_robust.configs.evaluation import ATTACKS, BALLS, CLEAN_EVALUATIONS, NOISE_FLOORS, EvalConfig, parse_curve, parse_threat
from tf_robust.corrupted_datasets import reader
from tf_robust.data.pipeline import PARALLEL_CALLS
from tf_robust.data.source import Source
from tf_robust.data.sources import Shift
from tf_robust.data.subsets import stratified_order, stratified_subset
from tf_robust.evaluation import adversarial, scoring, smoothing
from tf_robust.evaluation.metric_value import CORRUPTION_FAMILIES
from tf_robust.evaluation.scoring import SEED, EvaluationSet, batch_size_of, clean_batches
from tf_robust.models.outputs import Model
from tf_robust.utils.hyperparameters import seconds_of

MAX_CACHED_BYTES = 8 * 2**20  # of a corrupted set; larger ones are computed again
MAX_CACHE_BYTES = 512 * 2**20
_RARE = range(10, 15)  # the rare classes of corner digits: a digit 0-4 in the center and one in a corner
_STD_IMAGES = 50_000
_STD_BATCH = 500
_cached_sets: dict[Hashable, tuple[int, tf.data.Dataset]] = {}  # {all that the batches depend on: (size in bytes, batches)}
_cached_stds: dict[tuple, np.ndarray] = {}  # by the fingerprint of the training set and the size of its images


def check(source: Source, eval_config: EvalConfig) -> None:
    """Raises ValueError for unknown attacks, and unless the evaluations `utility` and `slices` are possible on the images of a source."""
    if "adversarial" in eval_config.evaluations:
        for name in eval_config.attack:
            adversarial.check_attack(name)
    if "utility" in eval_config.evaluations and (source.num_classes != 15 or not source.name.startswith("synthetic_")):
        raise ValueError(
            f"Expected corner digits (data=synthetic_digits or synthetic_mnist) for the evaluation 'utility'. "
            f"Received: {source.name} with {source.num_classes} classes"
        )
    if "slices" not in eval_config.evaluations:
        return
    if source.labels is None:
        raise ValueError(f"Expected a data set that is not read as a stream for the evaluation slices. Received: {source.name}")
    column, columns = eval_config.groups, source.columns or {}
    if column and column not in columns:
        known = ", ".join(columns) or "none"
        raise ValueError(f"Expected groups as a further column of data=csv:FILE. Received: {column!r} for {source.name}. Columns: {known}")


def evaluation_sets(
    source: Source,
    training_source: Source | None,
    eval_config: EvalConfig,
    data_dir: str | None = None,
    shifts: Sequence[Shift] = (),
    surrogate: Predict | None = None,
    encoder: Model | None = None,
) -> list[EvaluationSet]:
    """Returns the evaluation sets of a configuration. Arguments as in `evaluate`.

    Raises:
        FileNotFoundError: the corrupted set does not exist or has no corruption.
        ValueError: as in `check`, or a radius that is out of range.
    """
    check(source, eval_config)
    chosen = {*eval_config.evaluations}
    clean = cache(partial(clean_batches, source))  # the same Dataset for all sets
    few = stratified_subset(source, eval_config.attack_subset) if 0 < eval_config.attack_subset < len(source) else source
    clean_few = clean if few is source else cache(partial(clean_batches, few))
    first = [_changed_set(clean_name(source), source, clean)] if chosen & {*CLEAN_EVALUATIONS} else []
    sets: list[EvaluationSet] = []
    if eval_config.needs_training_set:
        sets += _noisy_sets(source, training_source, eval_config, clean)
    if chosen & {*CORRUPTION_FAMILIES}:
        sets += _corrupted_sets(source, eval_config, clean, data_dir)
    if "perturbations" in chosen:
        sets += _sequence_sets(source, eval_config)
    if "utility" in chosen:
        rare = EvaluationSet("bal/rare", lambda: _select_classes(clean(), _RARE))
        sets += [rare, EvaluationSet("utility", clean, scoring.score_utility)]
    if "sensitivity" in chosen:
        sets.append(EvaluationSet("sensitivity", clean_few, partial(scoring.score_sensitivity, encoder=encoder)))
    if "adversarial" in chosen:
        sets += _attacked_sets(few, clean_few, eval_config, surrogate)
    curves = _curve_scores(few, eval_config) if "attack_curves" in chosen else {}
    smoothed = _smoothed_scores(few, eval_config) if "certified" in chosen else {}
    sets += [EvaluationSet(name, clean_few, score) for name, score in {**curves, **smoothed}.items()]
    first, sets = ([dataclasses.replace(one, class_mask=source.class_mask) for one in part] for part in (first, sets))
    shifted = [_shifted_set(shift) for shift in shifts]
    if eval_config.adaptation != "none":
        size = eval_config.adaptation_batch_size
        first, sets = ([in_batches(one, len(source), size) for one in part] for part in (first, sets))
        shifted = [in_batches(one, len(shift.source), size) for one, shift in zip(shifted, shifts)]
    return [*first, *shifted, *sets]


def order_for_adaptation(source: Source, order: str) -> Source:
    """Returns the images of a source in another fixed order: shuffled, or by_class (as few classes per batch as possible)."""
    shuffled = np.random.RandomState(SEED).permutation(len(source))
    return source.subset(shuffled if order == "shuffled" else np.argsort(np.asarray(source.labels), kind="stable"))


def adaptation_batches(count: int, batch_size: int) -> list[int]:
    """Returns the sizes of the batches: equal up to one image, and none smaller than `batch_size` unless there are fewer images."""
    batches = max(1, count // batch_size)
    return [count // batches + (number < count % batches) for number in range(batches)]


def in_batches(evaluation_set: EvaluationSet, count: int, batch_size: int) -> EvaluationSet:
    """Returns a set of `count` images in the batches of an adaptation."""
    sizes = adaptation_batches(count, batch_size)
    return dataclasses.replace(evaluation_set, batches=lambda: evaluation_set.batches().rebatch(sizes))


def clean_name(source: Source) -> str:
    """Returns the name of the clean set: `clean`, or `bal` for the balanced corner-digit sets."""
    return "bal" if source.name.startswith("synthetic_") else "clean"


def _changed_set(name, source, clean, change=lambda _, batches: batches):
    """The set of changed images; `clean` returns their batches, `change` is (source, batches) -> batches."""

    def part_batches(first, last):
        part = source.part(first, last)
        return change(part, clean_batches(part))

    return EvaluationSet(name, lambda: change(source, clean()), source=source, part_batches=part_batches)


def _shifted_set(shift):
    """The set of a shifted data set; its labels are columns of the model's output."""
    columns = tf.constant(shift.columns, tf.int64)

    def relabel(_, batches):
        return batches.map(lambda images, labels: (images, tf.gather(columns, labels)))

    one = _changed_set(f"shift/{shift.name}", shift.source, partial(clean_batches, shift.source), relabel)
    return dataclasses.replace(one, class_mask=shift.class_mask)


def _select_classes(batches, classes):

    def select(images, labels):
        selected = tf.reduce_any(labels[:, None] == tf.constant(list(classes), labels.dtype), axis=1)
        return tf.boolean_mask(images, selected), tf.boolean_mask(labels, selected)

    return batches.map(select).filter(lambda images, labels: tf.size(labels) > 0)


def _indexed(source, batches, transform, size=None):
    """Batches of `size` after `transform(images, indices)`; an index is the image's position in its data set."""
    positions = tf.constant(source.positions)

    @tf.autograph.experimental.do_not_convert  # not needed, and would take most of the time until the first image
    def apply(first, example):
        images, labels = example
        return transform(images, positions[first : first + tf.shape(images, tf.int64)[0]]), labels

    size = size or batch_size_of(source.image_shape)
    numbered = tf.data.Dataset.zip(tf.data.Dataset.range(0, len(source) + size, size), batches)
    return numbered.map(apply, num_parallel_calls=PARALLEL_CALLS, deterministic=True).prefetch(2)


def _noisy_sets(source, training_source, eval_config, clean):
    std = cache(partial(training_std, training_source))  # computed when the first noise set is opened

    def uniform(part, batches):
        return _indexed(part, batches, lambda x, i: corruptions.uniform_noise(x, seed=SEED, indices=i))

    def nonuniform(part, batches, floor):
        floor = floor_of(eval_config, std()) if floor is None else floor
        probabilities = corruptions.nonuniform_probabilities(std(), floor=floor)
        return _indexed(part, batches, lambda x, i: corruptions.nonuniform_noise(x, probabilities, seed=SEED, indices=i))

    changes = {}
    if "noise" in eval_config.evaluations:
        changes |= {"un": uniform, "nun": partial(nonuniform, floor=None)}
    if "noise_floor" in eval_config.evaluations:
        changes |= {f"nun/floor_{floor:g}": partial(nonuniform, floor=floor) for floor in NOISE_FLOORS}
    return [_changed_set(name, source, clean, change) for name, change in changes.items()]


def noise_probabilities(training_source: Source, eval_config: EvalConfig) -> np.ndarray:
    """Returns NUN's probability of each location [H, W], from (at most 50,000) training images."""
    std = training_std(training_source)
    return corruptions.nonuniform_probabilities(std, floor=floor_of(eval_config, std))


def training_std(training_source: Source) -> np.ndarray:
    """Returns the standard deviation of each location [H, W] over (at most 50,000) training images; cached."""
    key = training_source.fingerprint(), tuple(training_source.image_shape), str(training_source.fit)
    if key not in _cached_stds:
        if training_source.sorted_by_class and len(training_source) > _STD_IMAGES:
            training_source = training_source.subset(stratified_order(training_source.labels)[:_STD_IMAGES])
        batches = data.evaluation_batches(training_source, _STD_BATCH).take(_STD_IMAGES // _STD_BATCH)
        _cached_stds[key] = corruptions.location_std(images for images, _ in batches)
    return _cached_stds[key]


def floor_of(eval_config: EvalConfig, std: np.ndarray) -> float:
    """Returns NUN's floor for the standard deviations of the locations [H, W]."""
    floor = eval_config.nun_floor
    return corruptions.default_floor(std) if floor == "auto" else float(fractions.Fraction(floor))


def _corrupted_sets(source, eval_config, clean, data_dir):
    members = (eval_config.corruptions or metrics.MEANS["mean19"], metrics.BAR[eval_config.bar_set(source.image_shape)])
    sets: list[EvaluationSet] = []
    for family, chosen in zip(CORRUPTION_FAMILIES, members):
        pairs = [*itertools.product((name for name in corruptions.CORRUPTIONS if name in chosen), eval_config.severities)]
        if family in eval_config.evaluations and eval_config.corrupted_dir:
            sets += _sets_from_disk(source, family, pairs, eval_config.corrupted_dir, data_dir)
        elif family in eval_config.evaluations:
            sets += [_corrupted_set(source, family, *pair, eval_config, clean) for pair in pairs]
    return sets


def _corrupted_set(source, family, name, severity, eval_config, clean):
    options = {
        "constants": eval_config.constants(source.image_shape),
        "protocol": eval_config.protocol(source.image_shape),
        "frost_dir": eval_config.frost_dir or None,
    }

    def corrupt(images, indices):
        return corruptions.corrupt(images, name, severity, SEED, indices, **options)

    def change(part, batches):
        num_bytes = 4 * len(source) * int(np.prod(source.image_shape))
        if part is not source or num_bytes > MAX_CACHED_BYTES:
            return _indexed(part, batches, corrupt)
        images_key = source.fingerprint(), tuple(source.image_shape), str(source.fit), source.positions.tobytes()
        key = *images_key, name, corruptions.user_code(name), severity, *options.values(), batch_size_of(source.image_shape)
        if key not in _cached_sets:
            if sum(size for size, _ in _cached_sets.values()) + num_bytes > MAX_CACHE_BYTES:
                _cached_sets.clear()
            positions, size = tf.constant(source.positions), batch_size_of(source.image_shape)
            with tf.device("CPU"):  # as in a Dataset; in memory, since building a graph takes longer
                starts = itertools.count(0, size)
                changed = [(corrupt(images, positions[start:][: len(images)]), labels) for start, (images, labels) in zip(starts, batches)]
                parts = tuple(tf.concat(part, axis=0) for part in zip(*changed))
                _cached_sets[key] = num_bytes, tf.data.Dataset.from_tensor_slices(parts).batch(size)
        return _cached_sets[key][1]

    return _changed_set(f"{family}/{name}/{severity}", source, clean, change)


def _sets_from_disk(source, family, pairs, folder, data_dir):
    """The corruptions of a set on disk, of (name, severity) `pairs`."""

    @lru_cache(maxsize=1)
    def read(pair):
        return reader.open_corrupted(folder, source, *pair, data_dir=data_dir)

    def origin(pair):  # perhaps in another order
        return source if not source.random_access or np.array_equal(read(pair).labels, source.labels) else read(pair)

    available = {*reader.available(folder, data_dir)}
    chosen = [pair for pair in pairs if pair in available]
    if not chosen:
        wanted, found = (", ".join(f"{name} {severity}" for name, severity in some) or "none" for some in (pairs, sorted(available)))
        raise FileNotFoundError(f"Expected corruptions ({wanted}) in {folder}. Received: {found}")
    reader.check_images(folder, source)  # also where all sets were measured before
    return [
        EvaluationSet(
            f"{family}/{pair[0]}/{pair[1]}",
            lambda pair=pair: clean_batches(read(pair)),
            source=source,
            part_batches=lambda first, last, pair=pair: clean_batches(read(pair).part(first, last)),
            origin=partial(origin, pair),
        )
        for pair in chosen
    ]


def _sequence_sets(source, eval_config):
    constants, size = eval_config.constants(source.image_shape), max(1, batch_size_of(source.image_shape) // 16)

    def batches(name):
        def perturb(images, indices):
            frames = corruptions.perturb(images, name, seed=SEED, indices=indices, constants=constants)
            return corruptions.store(frames, "cifar_c")

        return _indexed(source, data.evaluation_batches(source, size), perturb, size)

    names = corruptions.sequence_names(eval_config.sequences)
    return [EvaluationSet(f"flips/{name}", partial(batches, name), scoring.score_sequences) for name in names]


def _attacked_sets(source, clean, eval_config, surrogate):
    """Sets for robust accuracies, FGSM in linf, and the checks of the attacks at each norm's largest radius.

    What ends soon is measured first: FGSM, then the larger radii, which leave fewer images to the later members of AutoAttack.
    """
    threats = _threats(source, eval_config, BALLS)
    named: dict[str, tuple[tuple[str, float], attacks.Attack]] = {}

    def add(prefix, attack_at, norms_of_attack=BALLS):
        """An attack, {norm, radii} -> attacks, at the radii of some norms."""
        at = {norm: {text: threat for text, threat in threats.items() if threat[0] == norm} for norm in norms_of_attack}
        made = {norm: attack_at(norm, [radius for _, radius in of_norm.values()]) for norm, of_norm in at.items() if of_norm}
        found = {text: attack for norm, of_norm in made.items() for text, attack in zip(at[norm], of_norm)}
        named.update({f"{prefix}{text}": (threat, found[text]) for text, threat in threats.items() if text in found})

    for name in eval_config.attack:
        add(ATTACKS.get(name, f"robust/{name}/"), partial(adversarial.accuracy_attacks, name, queries=eval_config.attack_queries))
    if surrogate is not None:
        add("robust/transfer/", adversarial.transferred_attacks)
    if eval_config.attacks_by_gradient:
        add("fgsm/", lambda norm, radii: at_radii(attacks.FastGradient, radii, norm=norm), ("linf",))
    surrogate = surrogate and scoring.masked(surrogate, source.class_mask)
    members = sum(isinstance(attack, attacks.AutoAttack) for _, attack in named.values())
    limit = adversarial.SharedTime(seconds_of(eval_config.attack_time), members) if eval_config.attack_time else None
    sets = []
    for name, ((norm, radius), attack) in named.items():
        score = adversarial.score_members if isinstance(attack, attacks.AutoAttack) else adversarial.score_attacked
        options: dict = {"limit": limit} if isinstance(attack, attacks.AutoAttack) else {}
        options |= {"surrogate": surrogate} if name.startswith("robust/transfer/") else {}
        scored = partial(score, attack=attack, positions=source.positions, **options)
        rank = 1 if name.startswith("fgsm/") else 2 + sum(one[0] == norm and one[1] > radius for one in threats.values())
        sets.append(EvaluationSet(name, clean, scored, rank=rank))
    if not (eval_config.attacks_by_gradient and eval_config.attack_checks):
        return sets
    count = adversarial.CHECKED
    few = stratified_subset(source, count) if source.random_access and len(source) > count else source
    batches = cache(lambda: (clean() if few is source else clean_batches(few)).unbatch().take(count).batch(count))
    for norm, radius in adversarial.largest_radii(threats).items():
        score = partial(adversarial.score_checks, norm=norm, radius=radius, positions=few.positions, measured=eval_config.attack)
        sets.append(EvaluationSet(f"checks/{norm}", batches, score, rank=2 + len(threats)))
    return sets


def _threats(source, eval_config, norms_of_attacks):
    """{text: (norm, radius)} of the threats in the norms of some attacks, whose radii are checked."""
    threats = {text: threat for text in eval_config.attack_radii if (threat := parse_threat(text))[0] in norms_of_attacks}
    for norm, radius in threats.values():
        norms.check_radius(radius, norms.norm(norm), source.image_shape)
    return threats


def _curve_scores(source, eval_config):
    """{name of a set: score} for the sizes of the smallest perturbations that are misclassified."""
    curves = {text: parse_curve(text) for text in eval_config.curve_attacks}
    _threats(source, eval_config, {norm for _, norm in curves.values()})
    named = {f"distance/{text}": adversarial.CURVES[name](norm=norm, seed=SEED) for text, (name, norm) in curves.items()}
    return {name: partial(adversarial.score_distances, attack=attack, positions=source.positions) for name, attack in named.items()}


def _smoothed_scores(source, eval_config):
    """{name of a set: score} for certified radii, and for the accuracy of the smoothed classifier without and with attacks."""
    radii = {f"smoothed/pgd/l2_{radius:g}": radius for radius in eval_config.certified_radii if radius and eval_config.smoothing_attack}
    for radius in radii.values():
        norms.check_radius(radius, norms.norm("l2"), source.image_shape)
    options = {
        "positions": source.positions,
        "sigma": eval_config.smoothing_sigma,
        "samples": eval_config.smoothing_samples,
        "batch": batch_size_of(source.image_shape),
    }
    certified = partial(smoothing.score_certified, selection=eval_config.smoothing_selection, **options)
    smoothed = {
        name: partial(smoothing.score_smoothed, radius=radius, **options) for name, radius in {"smoothed/clean": 0.0, **radii}.items()
    }
    return {"certified": certified, **smoothed}
