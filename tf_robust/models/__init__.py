"""Classifiers: builder(input_shape, num_classes) -> keras.Model giving {"logits", "embedding"} from [0, 1] images."""

import inspect
from collections.abc import Callable, Sequence

import keras

from tf_robust.models.heads import HEAD_LAYERS, from_backbone, stages, with_hidden_layer
from tf_robust.models.lenet import lenet, mlp
from tf_robust.models.named import PRETRAINED, build_named, is_named
from tf_robust.models.resnet import (
    preact_resnet18,
    preact_resnet18_ibn,
    resnet8,
    resnet20,
    resnet20_ibn,
    resnet50_v2,
    resnet56,
    wide_resnet28_2,
    wide_resnet28_4,
)
from tf_robust.models.resnet50 import resnet50, resnet50_cifar
from tf_robust.models.user_models import (
    SMALLEST_PROBABILITY,
    WrappedModel,
    before_softmax,
    check_input_range,
    is_graph,
    is_network,
    of_two_classes,
    stage_layers,
    wrap,
)
from tf_robust.models.vit import vit_tiny4
from tf_robust.models.weights import load_encoder, write_weights
from tf_robust.utils.errors import unknown

if keras.config.image_data_format() != "channels_last":
    raise ImportError(
        "Expected Keras with images [N, H, W, C]. Received: image_data_format channels_first (keras.json). "
        "Try: keras.config.set_image_data_format('channels_last') before importing tf_robust"
    )


MODELS: dict[str, Callable[..., keras.Model]] = {
    "lenet": lenet,
    "resnet8": resnet8,
    "resnet20": resnet20,
    "resnet56": resnet56,
    "resnet50_v2": resnet50_v2,
    "resnet50": resnet50,
    "resnet50_cifar": resnet50_cifar,
    "preact_resnet18": preact_resnet18,
    "preact_resnet18_ibn": preact_resnet18_ibn,
    "resnet20_ibn": resnet20_ibn,
    "wide_resnet28_2": wide_resnet28_2,
    "wide_resnet28_4": wide_resnet28_4,
    "vit_tiny4": vit_tiny4,
    "mlp": mlp,
}


def build(
    name: str, input_shape: Sequence[int], num_classes: int, *, seed: int = 0, resize: int = 0, weights: str | None = None
) -> keras.Model:
    """Returns a newly initialized model, the same for the same seed.

    Args:
        name: one of MODELS; or applications:NAME, keras_hub:PRESET or module:function (`models.named`).
        input_shape: (H, W, C) of the images.
        num_classes: number of logits.
        seed: of the initialization.
        resize: side in pixels to which the model resizes images, gray ones with three equal channels; 0: not resized.
        weights: imagenet, for applications:NAME with its pretrained weights; None: random ones, or those of a preset.

    Raises:
        ValueError: unknown name, images smaller than the model allows, or a model without resizing.
    """
    if is_named(name) or weights:
        keras.utils.set_random_seed(seed)
        return build_named(name, input_shape, num_classes, resize=resize, weights=weights)
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    resizing = [known for known, model in MODELS.items() if "resize" in inspect.signature(model).parameters]
    if resize and name not in resizing:
        raise ValueError(f"Expected resize=0, or a model that can resize: {', '.join(resizing)}. Received: {name}")
    keras.utils.set_random_seed(seed)
    return MODELS[name](tuple(input_shape), num_classes, **({"resize": resize} if resize else {}))
