"""Methods of tiny networks, their batches and their weights, shared by the tests of methods and of training."""

import keras
import tensorflow as tf

from tf_robust import data, methods
from tf_robust.data.augment import clean

OPTIONS = {"fcl": {"k": 20}, "moco": {"queue": 30}, "instdis": {"examples": 48}, "pirl": {"examples": 48}}
VIEWS = {"noisymix": 3, "augmix": 3, "augmax": 5, "simclr": 2, "moco": 2, "pirl": 2}  # of those that want several


def brighter(images, seed):
    return tf.minimum(images + 0.2 * tf.random.stateless_uniform(tf.shape(images), seed), 1.0)


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


def weights(method):
    return [v.numpy() for v in method.classifier.variables]
