"""A trainable array as a layer, for converted models."""

from collections.abc import Sequence

import keras


@keras.saving.register_keras_serializable("tf_robust")
class Parameter(keras.layers.Layer):
    """A trainable array of a converted model that is an operand, such as a class token or a scale.

    Args:
        shape: of the array.
        repeat: whether it is repeated along the first axis for each of the images.

    Examples:
        >>> token = tfr.layers.Parameter((1, 4), repeat=True)
        >>> token(np.zeros((3, 8, 8, 1))).shape  # one row for each image
        TensorShape([3, 4])
    """

    def __init__(self, shape: Sequence[int], repeat: bool = False, **kwargs):
        super().__init__(**kwargs)
        self.shape, self.repeat = tuple(shape), repeat
        self.array = self.add_weight(shape=self.shape, initializer="zeros", name="array")

    def call(self, images):
        if not self.repeat:
            return keras.ops.convert_to_tensor(self.array)
        return keras.ops.broadcast_to(self.array, (keras.ops.shape(images)[0], *self.shape[1:]))

    def compute_output_spec(self, images):
        return keras.KerasTensor((None, *self.shape[1:]) if self.repeat else self.shape, dtype=self.compute_dtype)

    def get_config(self):
        return super().get_config() | {"shape": self.shape, "repeat": self.repeat}
