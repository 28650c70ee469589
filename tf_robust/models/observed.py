"""Layers within a model whose graph is not known: which are called, with which inputs and outputs."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras


class Observed(keras.layers.Layer):
    """Calls a model whose layers are not known as a graph; also returns the input or output of one of its layers.

    Args:
        model: keras.Model, images -> outputs.
        layer: within the model.
        of_output: return the output of the layer's last call, instead of its input.
        **kwargs: of `keras.layers.Layer`.
    """

    def __init__(self, model, layer, of_output, **kwargs):
        super().__init__(**kwargs)
        self.model, self.layer, self.of_output, self.built = model, layer, of_output, True

    def call(self, images, training=False):
        """Returns (outputs of the model, input or output of the layer).

        Raises:
            ValueError: the model does not call the layer.
        """
        with calls_of([self.layer]) as calls:
            outputs = self.model(images, training=training)
        if not calls:
            raise ValueError(f"Expected a layer that {self.model.name} calls. Received: {self.layer.name}. Try: embedding='another layer'")
        _, inputs, own = calls[-1]
        return outputs, own if self.of_output else inputs

    def get_config(self):
        """Raises ValueError: the model's layers are not known as a graph."""
        raise ValueError(
            f"Expected a Functional or Sequential model for a method that copies its layers. Received: {type(self.model).__name__}"
        )


@contextlib.contextmanager
def calls_of(layers: Sequence[keras.layers.Layer]) -> Iterator[list[tuple[keras.layers.Layer, Any, Any]]]:
    """Context with a list to which (layer, inputs, outputs) of each call of some layers is added."""
    calls: list[tuple[keras.layers.Layer, Any, Any]] = []

    def observed(layer, original):
        def call(inputs, *args, **kwargs):
            outputs = original(inputs, *args, **kwargs)
            calls.append((layer, inputs, outputs))
            return outputs

        return call

    for layer in layers:
        object.__setattr__(layer, "call", observed(layer, layer.call))
    try:
        yield calls
    finally:
        for layer in layers:
            object.__delattr__(layer, "call")


def inner_layers(layer: keras.layers.Layer) -> Iterator[keras.layers.Layer]:
    """Yields the layers within a layer in their order; `_flatten_layers` of Keras reverses those of nested models."""
    for inner in layer._layers:
        yield inner
        yield from inner_layers(inner)
