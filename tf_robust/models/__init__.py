"""Classifiers: builder(input_shape, num_classes, *, mean, std, resize) -> keras.Model.

Builders of `MODELS` take:

- input_shape: (H, W, C) of images in [0, 1], at least 8 pixels per side unless the builder says otherwise;
- num_classes: number of logits;
- mean, std: of the normalization (x - mean) / std inside the model, on the [0, 1] scale; a number, or one per channel;
- resize, if they can: side in pixels to which the model resizes images first, gray ones with three equal channels; 0: not resized;

and return a keras.Model: float32 [N, H, W, C] in [0, 1] -> {"logits": [N, num_classes], "embedding": [N, E]}. They raise ValueError for
images that are too small.
"""

import inspect
from collections.abc import Callable, Sequence

import keras

from tf_robust.models import lenet, resnet
from tf_robust.models.heads import HEAD_LAYERS, from_backbone, stages, with_hidden_layer
from tf_robust.models.named import PRETRAINED, build_named, is_named
from tf_robust.models.user_models import (
    SMALLEST_PROBABILITY,
    LinearOutput,
    before_softmax,
    check_input_range,
    history,
    is_graph,
    is_network,
    of_two_classes,
    stage_layers,
    wrap,
)
from tf_robust.models.vit import vit_tiny4
from tf_robust.models.weights import load_encoder, write_weights
from tf_robust.utils.errors import unknown

__all__ = ["MODELS", "build", "from_backbone", "load_encoder"]

if keras.config.image_data_format() != "channels_last":
    raise ImportError(
        "Expected Keras with images [N, H, W, C]. Received: image_data_format channels_first (keras.json). "
        "Try: keras.config.set_image_data_format('channels_last') before importing tf_robust"
    )


MODELS: dict[str, Callable[..., keras.Model]] = {
    "lenet": lenet.lenet,
    "resnet8": resnet.resnet8,
    "resnet20": resnet.resnet20,
    "resnet56": resnet.resnet56,
    "resnet50_v2": resnet.resnet50_v2,
    "resnet50": resnet.resnet50,
    "resnet50_cifar": resnet.resnet50_cifar,
    "preact_resnet18": resnet.preact_resnet18,
    "preact_resnet18_ibn": resnet.preact_resnet18_ibn,
    "resnet20_ibn": resnet.resnet20_ibn,
    "wide_resnet28_2": resnet.wide_resnet28_2,
    "wide_resnet28_4": resnet.wide_resnet28_4,
    "vit_tiny4": vit_tiny4,
    "mlp": lenet.mlp,
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

    Examples:
        >>> network = tfr.models.build("lenet", (28, 28, 1), 10, seed=0)
        >>> outputs = network(np.zeros([2, 28, 28, 1], np.float32))
        >>> {name: one.shape.as_list() for name, one in outputs.items()}
        {'logits': [2, 10], 'embedding': [2, 84]}
        >>> network.count_params()
        61706
    """
    keras.utils.set_random_seed(seed)
    if is_named(name) or weights:
        return build_named(name, input_shape, num_classes, resize=resize, weights=weights)
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    resizing = [known for known, model in MODELS.items() if "resize" in inspect.signature(model).parameters]
    if resize and name not in resizing:
        raise ValueError(f"Expected resize=0, or a model that can resize: {', '.join(resizing)}. Received: {name}")
    return MODELS[name](tuple(input_shape), num_classes, **({"resize": resize} if resize else {}))
