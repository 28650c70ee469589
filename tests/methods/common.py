"""Methods of tiny networks, their batches and their weights, shared by the tests of methods and of training."""

import contextlib

import keras
import numpy as np
import tensorflow as tf

from tf_robust import data, methods
from tf_robust.data.augment import clean

OPTIONS = {"fcl": {"k": 20}, "moco": {"queue": 30}, "instdis": {"examples": 48}, "pirl": {"examples": 48}}
VIEWS = {"noisymix": 3, "augmix": 3, "augmax": 5, "simclr": 2, "moco": 2, "pirl": 2}  # of those that want several


def brighter(images, seed):
    return tf.minimum(images + 0.2 * tf.random.stateless_uniform(tf.shape(images), seed), 1.0)


def mirrored(images, seed):
    return images[:, :, ::-1]


def views(name):
    return (clean, *[brighter] * (VIEWS.get(name, 1) - 1))


def build(name, network, jit_compile=False, **options):
    method = methods.METHODS[name](network, **{**OPTIONS.get(name, {}), **options})
    method.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9), jit_compile=jit_compile)
    method.optimizer.build(method.trainable_variables)
    return method


# test_arguments: the others take the steps of NoisyMix with other arguments
DISTINCT = [name for name in methods.METHODS if name not in ("mixup", "manifold_mixup", "nfm", "augmix")]
PIPELINES = {}  # arguments -> (iterator, the batches that it has made)


def batches(source, count, batch_size=12, seed=0, name=None):
    """Returns an iterator over the first batches of a pipeline, which depend on its arguments alone: each is made once for all tests."""
    number = len(views(name))
    key = (source.images.tobytes(), source.images.shape, source.labels.tobytes(), batch_size, seed, number)
    if key not in PIPELINES:
        PIPELINES[key] = iter(data.training_batches(source, batch_size, seed=seed, views=views(name))), []
    iterator, made = PIPELINES[key]
    while len(made) < count:
        made.append(next(iterator))
    return iter(made[:count])


def two_views(count, shape, step=0):
    """Returns a batch of random images in two views."""
    images = np.random.RandomState(step).uniform(0, 1, (2, count, *shape)).astype(np.float32)
    labels, steps = tf.range(count, dtype=tf.int64) % 3, tf.fill([count], tf.constant(step, tf.int64))
    return data.Batch(tuple(map(tf.constant, images)), labels, steps)


def weights(method):
    return [v.numpy() for v in method.classifier.variables]


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def last_logs(method, source, steps, last, name):
    """Returns the logs of the last steps of a training on views with a little noise."""
    step, noise = tf.function(method.train_step), np.random.RandomState(0)
    for number, batch in enumerate(batches(source, steps, name=name)):
        if number == steps - last:
            method.reset_metrics()
        views = tuple(view + noise.normal(0, 0.02, view.shape).astype(np.float32) for view in batch.views)
        logs = step(batch._replace(views=views))
    return {term: float(value) for term, value in logs.items()}


@contextlib.contextmanager
def dtype_policy(name):
    """Layers and methods built in this context have a dtype policy."""
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy("float32")
