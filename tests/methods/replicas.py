"""Training on one device and on two, in float64, shared by the tests of replicas and of several workers."""

import keras
import tensorflow as tf

from tests.conftest import tiny_network, tiny_source
from tests.methods import common
from tf_robust import methods
from tf_robust.training import distribution, loop

OPTIONS = {
    **common.OPTIONS,
    "fcl": {"k": 20, "weight": 0.5},
    "contrastive_gaussian": {"weight": 0.5},
    "gaussian": {"weight": 0.5},
    "simclr": {"gradient_weight": 0.5},
    "moco": {"queue": 30, "momentum": 0.5},
    "linear_probe": {"solver": "sgd"},
    "l2_sp": {"alpha": 0.5},
    "similarity": {"weight": 0.05},
    "input_gradient": {"weight": 12.0, "loss": "batch_mean"},
}
SYNCHRONIZED = (
    *("cross_entropy", "input_gradient", "sam", "asam", "simclr", "moco", "instdis"),
    *("linear_probe", "finetune", "l2_sp", "similarity"),
)


def exact(images, seed):
    """Images in float64, so that their gradients are too."""
    return tf.cast(images, tf.float64)


def mirrored(images, seed):
    return exact(common.mirrored(images, seed), seed)


def build(name):
    """Returns a method with synchronized batch norm if one device takes the complete batch, without any if it takes halves."""
    method = methods.METHODS[name](tiny_network(batch_norm=name in SYNCHRONIZED), weight_decay=0.1, seed=3, **OPTIONS.get(name, {}))
    distribution.synchronize_batch_norm(method)
    method.compile(optimizer=keras.optimizers.SGD(0.125))  # exact in float32
    return method


def trained(name, strategy):
    """Returns a method after eight steps on the devices of a strategy."""
    with strategy.scope():
        method = build(name)
    views = (exact, mirrored)[: common.VIEWS.get(name, 1)] if name in SYNCHRONIZED else common.views(name)
    loop.fit(method, tiny_source(), epochs=2, batch_size=12, views=views)
    return method


def state(method):
    """Returns a method's arrays, in an order independent of names."""
    return [variable.numpy() for variable in (*method.trainable_variables, *method.non_trainable_variables)]
