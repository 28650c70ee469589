"""Weights of a trained classifier, written next to each exported model and read by `--init_from`."""

import os
import re

import keras
import numpy as np

from tf_robust.models.heads import HEAD_LAYERS
from tf_robust.utils.files import DAMAGED

FILE = "weights.npz"


def write_weights(classifier: keras.Model, folder: str) -> None:
    """Writes all variables of a classifier, in their order, to `folder`/weights.npz."""
    np.savez(os.path.join(folder, FILE), **{f"{i:05d}:{v.path}": v.numpy() for i, v in enumerate(classifier.variables)})


def load_encoder(classifier: keras.Model, path: str, *, head: bool = False) -> None:
    """Loads the encoder's weights of an exported classifier into another one; its head does not change unless `head`.

    Args:
        classifier: a model of this package.
        path: the workdir of a run with an exported model, or its folder `saved_model`.
        head: load the head as well; both must have the same classes.

    Raises:
        FileNotFoundError: there are no weights.
        ValueError: the weights are of another model (the message names the first layers that differ), or the file is damaged.
    """
    candidates = [os.path.join(path, FILE), os.path.join(path, "saved_model", FILE)]
    file_path = next((candidate for candidate in candidates if os.path.exists(candidate)), None)
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
    current = [(v.path, v) for v in classifier.variables]
    if not head:
        loaded, current = ([pair for pair in pairs if _layer(pair[0]) not in HEAD_LAYERS] for pairs in (loaded, current))
    differing = [
        f"{loaded[i][0] if i < len(loaded) else 'nothing'} {loaded[i][1].shape if i < len(loaded) else ''} for "
        f"{current[i][0] if i < len(current) else 'nothing'} {tuple(current[i][1].shape) if i < len(current) else ''}"
        for i in range(max(len(loaded), len(current)))
        if i >= len(loaded) or i >= len(current) or loaded[i][1].shape != tuple(current[i][1].shape)
    ]
    if differing:
        raise ValueError(
            f"Expected weights of {classifier.name}{'' if head else ' without its logits'} in {file_path}. "
            f"Received: {len(differing)} of {len(current)} do not fit: {'; '.join(differing[:3])}"
        )
    for (_, variable), (_, value) in zip(current, loaded):
        variable.assign(value)


def _layer(path):
    return path.rsplit("/", 2)[-2]
