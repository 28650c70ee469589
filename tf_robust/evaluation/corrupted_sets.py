"""Evaluation sets of noisy and corrupted images, and of perturbation sequences."""

import functools
import itertools
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tf_robust import corruptions, data, metrics
from tf_robust.configs.evaluation import NOISE_FLOORS, EvalConfig
from tf_robust.corrupted_datasets import reader
from tf_robust.data.pipeline import PARALLEL_CALLS
from tf_robust.data.source import Source
from tf_robust.evaluation import scoring, set_cache
from tf_robust.evaluation.batches import SEED, batch_size_of, clean_batches
from tf_robust.evaluation.evaluation_set import EvaluationSet
from tf_robust.evaluation.metric_value import CORRUPTION_FAMILIES
from tf_robust.evaluation.nonuniform_noise import probabilities, training_std

_Batches = Callable[[], tf.data.Dataset]
_Change = Callable[[Source, tf.data.Dataset], tf.data.Dataset]


def noisy_sets(source: Source, training_source: Source | None, eval_config: EvalConfig, clean: _Batches) -> list[EvaluationSet]:
    """Returns the sets of the evaluations `noise` and `noise_floor`.

    Args:
        source: images to evaluate on.
        training_source: as in `sets.evaluation_sets`.
        eval_config: names the evaluations.
        clean: returns the batches of the source.
    """

    @functools.cache  # computed when the first noise set is opened
    def std():
        return training_std(training_source)

    def uniform(images, batches):
        return _indexed(images, batches, lambda x, i: corruptions.uniform_noise(x, seed=SEED, indices=i))

    def nonuniform(images, batches):
        return _nonuniform(images, batches, probabilities(std(), eval_config))

    def with_floor(floor, images, batches):
        return _nonuniform(images, batches, corruptions.nonuniform_probabilities(std(), floor=floor))

    changes: dict[str, _Change] = {}
    if "noise" in eval_config.evaluations:
        changes |= {"un": uniform, "nun": nonuniform}
    if "noise_floor" in eval_config.evaluations:
        changes |= {f"nun/floor_{floor:g}": functools.partial(with_floor, floor) for floor in NOISE_FLOORS}
    return [_changed_set(name, source, clean, change) for name, change in changes.items()]


def corrupted_sets(source: Source, eval_config: EvalConfig, clean: _Batches, data_dir: str | None) -> list[EvaluationSet]:
    """Returns a set of each corruption and severity of the chosen families.

    Args:
        source: images to evaluate on.
        eval_config: names the evaluations and corruptions.
        clean: returns the batches of the source.
        data_dir: as in `sets.evaluation_sets`.

    Raises:
        FileNotFoundError: as in `sets.evaluation_sets`.
    """
    members = (eval_config.corruptions or metrics.MEANS["mean19"], metrics.BAR[eval_config.bar_set(source.image_shape)])
    sets: list[EvaluationSet] = []
    for family, chosen in zip(CORRUPTION_FAMILIES, members):
        names = [name for name in corruptions.CORRUPTIONS if name in chosen]
        if family in eval_config.evaluations and eval_config.corrupted_dir:
            sets += _from_disk(source, family, names, eval_config, data_dir)
        elif family in eval_config.evaluations:
            pairs = itertools.product(names, eval_config.severities)
            sets += [_corrupted(source, family, name, severity, eval_config, clean) for name, severity in pairs]
    return sets


def sequence_sets(source: Source, eval_config: EvalConfig) -> list[EvaluationSet]:
    """Returns a set of each perturbation sequence."""
    constants, size = eval_config.constants(source.image_shape), max(1, batch_size_of(source.image_shape) // 16)

    def open_sequence(name):
        def perturb(images, indices):
            frames = corruptions.perturb(images, name, seed=SEED, indices=indices, constants=constants)
            return corruptions.store(frames, "cifar_c")

        return _indexed(source, data.evaluation_batches(source, size), perturb, size)

    return [
        EvaluationSet(f"flips/{name}", functools.partial(open_sequence, name), scoring.score_sequences)
        for name in corruptions.sequence_names(eval_config.sequences)
    ]


def _nonuniform(source, batches, probabilities):
    return _indexed(source, batches, lambda x, i: corruptions.nonuniform_noise(x, probabilities, seed=SEED, indices=i))


def _changed_set(name, source, clean, change):
    """The set of changed images; change: (source, its batches) -> batches."""

    def open_range(first, last):
        part = source.part(first, last)
        return change(part, clean_batches(part))

    return EvaluationSet(name, lambda: change(source, clean()), images=source, open_range=open_range)


def _corrupted(source, family, name, severity, eval_config, clean):
    options = {
        "constants": eval_config.constants(source.image_shape),
        "protocol": eval_config.protocol(source.image_shape),
        "frost_dir": eval_config.frost_dir or None,
    }

    def change(images, indices):
        return corruptions.corrupt(images, name, severity, SEED, indices, **options)

    def open_corrupted(images, batches):
        num_bytes = 4 * len(source) * int(np.prod(source.image_shape))
        if images is not source or num_bytes > set_cache.SET_BYTES:
            return _indexed(images, batches, change)
        images_key = source.fingerprint(), tuple(source.image_shape), str(source.fit), source.positions.tobytes()
        key = *images_key, name, severity, *options.values(), batch_size_of(source.image_shape)
        return set_cache.cached(key, num_bytes, lambda: _changed(source, batches, change))

    return _changed_set(f"{family}/{name}/{severity}", source, clean, open_corrupted)


def _from_disk(source, family, names, eval_config, data_dir):
    """The corruptions of a set on disk, in the order of `names`."""
    folder = eval_config.corrupted_dir

    @functools.lru_cache(maxsize=1)
    def opened(name, severity):
        return reader.open_corrupted(folder, source, name, severity, data_dir=data_dir)

    def origin(name, severity):
        corrupted = opened(name, severity)  # perhaps in another order
        return source if not source.random_access or np.array_equal(corrupted.labels, source.labels) else corrupted

    def corrupted_set(name, severity):
        return EvaluationSet(
            f"{family}/{name}/{severity}",
            lambda: clean_batches(opened(name, severity)),
            images=source,
            open_range=lambda first, last: clean_batches(opened(name, severity).part(first, last)),
            origin=functools.partial(origin, name, severity),
        )

    available = set(reader.available(folder, data_dir))
    chosen = [pair for pair in itertools.product(names, eval_config.severities) if pair in available]
    if not chosen:
        raise FileNotFoundError(
            f"Expected corruptions ({', '.join(names)}) at severities "
            f"{', '.join(map(str, eval_config.severities))} in {folder}. Received: "
            f"{', '.join(f'{name} {severity}' for name, severity in sorted(available)) or 'none'}"
        )
    reader.check_images(folder, source)  # also where all sets were measured before
    return [corrupted_set(name, severity) for name, severity in chosen]


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
