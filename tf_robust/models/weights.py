"""Weights of a trained classifier, written next to each exported model and read by `--init_from`."""

import functools
import itertools
import os
import re
import warnings

import keras
import numpy as np
import tensorflow as tf

from tf_robust.models.heads import HEAD_LAYERS, pooled
from tf_robust.utils.files import DAMAGED, storable

FILE = "weights.npz"


def write_weights(classifier: keras.Model, folder: str) -> None:
    """Writes all variables of a classifier, in their order, to `folder`/weights.npz."""
    np.savez(os.path.join(folder, FILE), **{f"{i:05d}:{v.path}": storable(v.numpy()) for i, v in enumerate(classifier.variables)})


def load_encoder(classifier: keras.Model, path: str, *, head: bool = False) -> None:
    """Loads the encoder's weights of an exported classifier into another one; its head does not change unless `head`.

    Args:
        classifier: a network with outputs {"logits", "embedding"}.
        path: the workdir of a run with an exported model, or its folder `saved_model`; or a Keras file .keras, .weights.h5 or .h5 of the
            classifier or of a model inside it (the one that `applications:NAME` or `module:function` names).
        head: load the head as well; both must have the same classes.

    Raises:
        FileNotFoundError: there are no weights.
        ValueError: the weights are of another model (the message names the first layers that differ), or the file is damaged.

    Examples:
        >>> trained, new = (tfr.models.build("lenet", (28, 28, 1), classes, seed=classes) for classes in (10, 3))
        >>> trained.save("trained.keras")
        >>> tfr.models.load_encoder(new, "trained.keras")
        >>> images = np.ones([1, 28, 28, 1], np.float32)
        >>> bool(np.allclose(new(images)["embedding"], trained(images)["embedding"]))
        True
    """
    if path.endswith((".keras", ".h5")):
        return _load_keras_file(classifier, path, head)
    candidates = [os.path.join(path, FILE), os.path.join(path, "saved_model", FILE)]
    file_path = next(filter(os.path.exists, candidates), None)
    if file_path is None:
        run = re.fullmatch(r"(?:.*/)?([^/]+)/seed_(\d+)/*", path)
        flags = f"--flagfile=TABLE/{run[1]}.flags --seeds={run[2]}" if run else "its flags"
        raise FileNotFoundError(
            f"Expected init_from to name a workdir that has a saved_model, or a SavedModel of this package. Received: {path}, "
            f"which has neither {FILE} nor saved_model/{FILE}. Try: tf-robust train --evaluations=none {flags} "
            f"--workdir={path}, which trains it"
        )
    try:
        with np.load(file_path) as file:
            loaded = [(name.split(":", 1)[1], file[name]) for name in sorted(file.files)]
    except DAMAGED as error:
        raise ValueError(
            f"Expected the weights of an exported model in {file_path}. Received: a damaged file "
            f"({error}). Try: export it again by tf-robust train --evaluations=none with its flags and workdir"
        ) from error
    loaded = [(name, value) for name, value in loaded if head or not _is_of_head(name)]
    current = [v for v in classifier.variables if head or not _is_of_head(v.path)]
    pairs = list(itertools.zip_longest(loaded, current))
    differing = [
        f"{f'{pair[0]} {pair[1].shape}' if pair else 'nothing'} for {f'{v.path} {tuple(v.shape)}' if v is not None else 'nothing'}"
        for pair, v in pairs
        if pair is None or v is None or pair[1].shape != tuple(v.shape)
    ]
    if differing:
        raise ValueError(
            f"Expected weights of {_name(classifier, head)} in {file_path}. "
            f"Received: {len(differing)} of {len(current)} do not fit: {'; '.join(differing[:3])}"
        )
    for (_, value), variable in pairs:
        variable.assign(value)


def _is_of_head(path):
    return path.rsplit("/", 2)[-2] in HEAD_LAYERS


def _name(classifier, head):
    return f"{classifier.name}{'' if head else ' without its logits'}"


def _load_keras_file(classifier, path, head):
    """Loads the first of the classifier and the models inside it that the file fits.

    Weights that Keras does not find in the file, or finds in another shape, are known by the NaN that they had before.
    """
    if not os.path.isfile(path):
        raise FileNotFoundError(f"Expected init_from to name a Keras file of weights. Not found: {path}")
    before = [v.numpy() for v in classifier.variables]
    required = [v for v in classifier.variables if tf.as_dtype(v.dtype).is_floating and (head or not _is_of_head(v.path))]
    remaining, reason = required, ""
    inner = [layer for layer in classifier._flatten_layers(include_self=False) if isinstance(layer, keras.Model)]
    loaders = [functools.partial(model.load_weights, skip_mismatch=True) for model in (classifier, *inner)]
    if logits := next((layer for layer in classifier.layers if layer.name == "logits"), None):
        loaders += [functools.partial(_load_with_logits, model, logits) for model in inner if getattr(model, "outputs", None)]
    for load in loaders:
        for variable in required:
            variable.assign(np.full(variable.shape, np.nan))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of skipped layers
                load(path)
        except Exception as error:  # of the kinds that files of other models and damaged ones raise
            reason = f" ({' '.join(str(error).split())[:300]})"
        remaining = min(remaining, [v for v in required if np.isnan(v.numpy()).any()], key=len)
        if not remaining:
            break
    for variable, value in zip(classifier.variables, before):
        if remaining or not head and _is_of_head(variable.path):
            variable.assign(value)
    if remaining:
        first = "; ".join(f"{v.path} {tuple(v.shape)}" for v in remaining[:3])
        raise ValueError(
            f"Expected weights of {_name(classifier, head)} in {path}. Received: {len(remaining)} of "
            f"{len(required)} are missing in the file, have another shape, or are not finite: {first}{reason}"
        )


def _load_with_logits(model, logits, path):
    """Loads a file into a model behind which it has the logits."""
    last = keras.layers.Dense(logits.units)
    complete = keras.Model(model.inputs, last(pooled(model.outputs[0])))
    last.set_weights([np.full(v.shape, np.nan) for v in last.variables])
    complete.load_weights(path, skip_mismatch=True)
    for variable, loaded in zip(logits.variables, last.variables):
        if variable.shape == loaded.shape:
            variable.assign(loaded.numpy())
