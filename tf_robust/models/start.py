"""Weights of a trained classifier as the start of another: written beside each exported model, read by `--init_from`."""

import os
import re

import numpy as np

from tf_robust.models.heads import HEAD_LAYERS
from tf_robust.utils.files import DAMAGED

FILE = "weights.npz"


def write_weights(classifier, folder):
    """Writes all variables of a classifier, in their order, to `folder`/weights.npz."""
    np.savez(os.path.join(folder, FILE), **{f"{i:05d}:{v.path}": v.numpy() for i, v in enumerate(classifier.variables)})


def start(classifier, path, *, head=False):
    """Gives a classifier the encoder of an exported one; its logits keep their own start unless `head`.

    Args:
        classifier: a model of this package. path: a workdir that was trained or exported to, or its `saved_model`.
        head: take the logits' layer as well; both must have the same classes.

    Raises:
        FileNotFoundError: there are no weights. ValueError: they are of another model; the first layers that differ are named.
    """
    places = [os.path.join(path, FILE), os.path.join(path, "saved_model", FILE)]
    found = next((place for place in places if os.path.exists(place)), None)
    if found is None:
        run = re.fullmatch(r"(?:.*/)?([^/]+)/seed_(\d+)/*", path)
        flags = f"--flagfile=TABLE/{run[1]}.flags --seeds={run[2]}" if run else "its flags"
        raise FileNotFoundError(f"Expected init_from to name a workdir that has a saved_model, or a SavedModel of ours. Received: {path}, "
                                f"which has neither {FILE} nor saved_model/{FILE}. Try: python run_experiment.py --mode=train {flags} "
                                f"--workdir={path}, which trains it")
    try:
        with np.load(found) as file:
            theirs = [(name.split(":", 1)[1], file[name]) for name in sorted(file.files)]
    except DAMAGED as error:
        raise ValueError(f"Expected the weights of an exported model in {found}. Received a damaged file ({error}). Export it again: "
                         "--mode=train with its flags and workdir") from error
    ours = [(v.path, v) for v in classifier.variables]
    if not head:
        theirs, ours = ([pair for pair in pairs if _layer(pair[0]) not in HEAD_LAYERS] for pairs in (theirs, ours))
    differing = [f"{theirs[i][0] if i < len(theirs) else 'nothing'} {theirs[i][1].shape if i < len(theirs) else ''} for "
                 f"{ours[i][0] if i < len(ours) else 'nothing'} {tuple(ours[i][1].shape) if i < len(ours) else ''}"
                 for i in range(max(len(theirs), len(ours)))
                 if i >= len(theirs) or i >= len(ours) or theirs[i][1].shape != tuple(ours[i][1].shape)]
    if differing:
        raise ValueError(f"Expected weights of {classifier.name}{'' if head else ' without its logits'} in {found}. {len(differing)} "
                         f"of {len(ours)} do not fit: {'; '.join(differing[:3])}")
    for (_, variable), (_, value) in zip(ours, theirs):
        variable.assign(value)


def _layer(path):
    return path.rsplit("/", 2)[-2]
