"""The contract of a method."""

import inspect
import os
import tempfile
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_robust import data
from tf_robust.data.augment import clean
from tf_robust.methods import Method
from tf_robust.saved_models import export, loading
from tf_robust.testing.samples import expect, tiny_network, tiny_source, without_global_draws
from tf_robust.training import checkpoints, loop
from tf_robust.utils import hyperparameters

_BATCH = 12


def check_method(method: type[Method], *, random: bool | None = None, **options: Any) -> None:
    """Checks the contract of a method on a network of one convolution and 48 images of 16 x 16 pixels.

    Its hyperparameters are keyword arguments with a line of help; it trains, and logs each of its terms and their sum, all finite;
    `gradients` assigns nothing. Randomness is a function of (seed, step): neither global generators nor earlier steps change it, and a
    training that is resumed from a checkpoint ends with the same weights, bit for bit. The exported classifier gives the same logits.

    Args:
        method: the class of the entry in `METHODS`.
        random: whether another seed gives other weights; None: not checked.
        **options: arguments of the method.

    Raises:
        AssertionError: the contract is broken.

    Examples:
        >>> from tf_robust import testing
        >>> class Weighted(tfr.methods.CrossEntropy):
        ...     def __init__(self, classifier, *, weight: float = 1.0, **kwargs):
        ...         super().__init__(classifier, **kwargs)
        >>> testing.check_method(Weighted)
        Traceback (most recent call last):
        AssertionError: Expected a line under Args: in the docstring of Weighted for each argument ... Received: none for ['weight']
    """
    _check_arguments(method)
    _check_training(method, options)
    _check_randomness(method, options, random)


def _build(method, options, seed=1, network_seed=0):
    built = method(tiny_network(seed=network_seed), **{"seed": seed, "examples": 48, **options})
    built.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9))
    built.optimizer.build(built.trainable_variables)
    return built


def _views(built):
    """Returns as many cheap views as the method takes."""
    return (clean, *[_brighter] * (len(built.default_views) - 1))


def _brighter(images, seed):
    return tf.minimum(images + 0.2 * tf.random.stateless_uniform(tf.shape(images), seed), 1.0)


def _variables(method):
    return [variable.numpy() for variable in [*method.variables, *method.optimizer.variables]]


def _check_equal(first, second, expected):
    changed = [number for number, (a, b) in enumerate(zip(first, second, strict=True)) if not np.array_equal(a, b)]
    expect(not changed, expected, f"{len(changed)} of {len(first)} variables that differ")


def _check_arguments(method):
    name = method.__name__
    for argument in list(inspect.signature(method).parameters.values())[1:]:
        expect(argument.kind is argument.KEYWORD_ONLY, f"keyword-only arguments of {name} after the classifier", argument)
    missing = [one.name for one in hyperparameters.parameters(method).values() if not one.help]
    expect(not missing, f"a line under Args: in the docstring of {name} for each argument with an annotation", f"none for {missing}")


def _check_training(method, options):
    built = _build(method, options)
    loop.fit(built, tiny_source(), epochs=1, batch_size=_BATCH, views=_views(built))
    logs = {term: float(value) for term, value in built.get_metrics_result().items()}
    terms = {"total", "accuracy", *built.term_names}
    expect(set(logs) == terms, f"logs {sorted(terms)} of {method.__name__}", sorted(logs))
    expect(np.isfinite(list(logs.values())).all(), f"finite logs of {method.__name__}", logs)
    total = sum(logs[term] for term in built.term_names)
    expect(np.isclose(logs["total"], total, rtol=1e-5), f"a total of {method.__name__} that is the sum of its terms", logs)


def _check_randomness(method, options, random):
    name = method.__name__
    built = _build(method, options)
    batches = list(data.training_batches(tiny_source(), _BATCH, seed=0, views=_views(built)).take(2))
    before = _variables(built)
    built.gradients(batches[0], batches[0].step[0])
    _check_equal(before, _variables(built), f"gradients of {name}, which assign nothing")

    def train(one, steps, global_seed):
        keras.utils.set_random_seed(global_seed)
        with without_global_draws(name):
            for step in steps:
                one.train_step(batches[step])
        return _variables(one)

    after_one, after_two = train(built, [0], 1), train(built, [1], 1)
    expect(all(np.isfinite(value).all() for value in after_two), f"finite variables of {name}", "NaN or infinity")
    stopped = _build(method, options)
    _check_equal(after_one, train(stopped, [0], 2), f"weights of {name} that do not depend on global generators")
    resumed = _build(method, options, network_seed=1)
    with tempfile.TemporaryDirectory() as folder:
        checkpoints.save(stopped, os.path.join(folder, "checkpoint"), 1)
        checkpoints.restore(resumed, os.path.join(folder, "checkpoint"))
        _check_equal(after_one, _variables(resumed), f"all state of {name} in its variables, which a checkpoint restores")
        _check_equal(after_two, train(resumed, [1], 3), f"a resumed training of {name} that equals an uninterrupted one")
        images = batches[0].views[0]
        export.export(resumed.classifier, os.path.join(folder, "model"), {})
        exported = loading.load_classifier(os.path.join(folder, "model"))(images)
        difference = np.abs(exported - resumed.classifier(images)["logits"]).max()
        expect(difference <= 1e-5, f"the same logits of {name}'s exported classifier", f"a difference of {difference}")
    if random is not None:
        other = train(_build(method, options, seed=2), [0], 1)
        differs = any(not np.array_equal(a, b) for a, b in zip(after_one, other))
        expect(differs == random, f"weights of {name} that {'differ' if random else 'do not differ'} by seed", not random)
