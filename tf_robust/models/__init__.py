"""Classifiers: builder(input_shape, num_classes) -> keras.Model giving {"logits", "embedding"} from [0, 1] pictures."""

import keras

from tf_robust.errors import unknown
from tf_robust.models.lenet import lenet
from tf_robust.models.resnet import resnet8, resnet20, resnet50_v2, resnet56

MODELS = {"lenet": lenet, "resnet8": resnet8, "resnet20": resnet20, "resnet56": resnet56, "resnet50_v2": resnet50_v2}


def build(name, input_shape, num_classes, *, seed=0):
    """A freshly initialized model, the same for the same seed.

    Raises:
        ValueError: unknown name, or pictures smaller than the model allows.
    """
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    keras.utils.set_random_seed(seed)
    return MODELS[name](tuple(input_shape), num_classes)
