"""The contract of a format of models."""

import os
import tempfile

import numpy as np
import tensorflow as tf

from tf_robust.saved_models import formats, loading
from tf_robust.saved_models.export import Deployable
from tf_robust.saved_models.interface import OUTPUTS
from tf_robust.testing.samples import expect, tiny_network, tiny_source

_SHAPE = (16, 16, 1)


def check_format(entry: formats.Format, path: str | os.PathLike | None = None) -> None:
    """Checks the contract of a format: its reader, its writer if it has one, and what it says about gradients and graphs.

    A model that is read takes any number of images and gives each the same finite scores in every batch and each time. Scores of a
    written network are its logits: within 1e-4, or, if the format has fewer digits, within 10 % of the largest.

    Args:
        entry: of `FORMATS`.
        path: a model in this format, or NAME of a format of PREFIX:NAME; None: a network is written with the entry's writer.

    Raises:
        AssertionError: the contract is broken.

    Examples:
        >>> from tf_robust import testing
        >>> from tf_robust.saved_models.formats import FORMATS
        >>> testing.check_format(FORMATS["keras"])
        >>> testing.check_format(FORMATS["hdf5"])
        Traceback (most recent call last):
        AssertionError: Expected path=, a model in the format hdf5, which has no writer and file. Received: path=None
    """
    name = next((name for name, one in formats.FORMATS.items() if one is entry), None)
    expect(name is not None, "an entry of FORMATS", entry)
    expect(entry.suffixes or entry.marker or entry.prefix, f"a suffix, a marker or a prefix of {name}", "none")
    if path is not None:
        _check_reader(entry, name, os.fspath(path))
        return
    if entry.writer is None or not entry.file:
        raise AssertionError(f"Expected path=, a model in the format {name}, which has no writer and file. Received: path=None")
    source = tiny_source()
    images, network = source.images.astype(np.float32) / 255, tiny_network(_SHAPE)
    with tempfile.TemporaryDirectory() as folder:
        written = os.path.join(folder, entry.file)
        entry.writer(name, Deployable(loading.classifier_of(network), _SHAPE), written, {}, images, None)
        known = formats.format_of(written)
        expect(known and known.reader is entry.reader, f"a file {entry.file} that the reader of {name} takes", known)
        logits = network(images[:3])["logits"].numpy()
        difference = np.abs(_check_reader(entry, name, written, images[:3]) - logits).max()
    allowed = 1e-4 if entry.float32 else 0.1 * np.abs(logits).max()
    expect(difference <= allowed, f"logits of a written and read network in {name} within {allowed:.2g}", f"a difference of {difference}")


def _check_reader(entry, name, path, images=None):
    """Checks a model that is read; returns the scores of the images."""
    available, _ = entry.reader(path, False)
    expect("serving_default" in available, f"a signature serving_default from the reader of {name}", [*available])
    signature = available["serving_default"].channels_last()
    expect(not signature.misfit(), f"a signature of {name} that takes a batch of images", f"one that {signature.misfit()}")
    expect(signature.has_graph or not entry.graph, f"graph=False of {name}, whose signature has no graph", "graph=True")
    ((argument, spec),) = signature.inputs.items()
    if images is None:
        shape = [known or given for known, given in zip(spec.shape[1:], (32, 32, 3))]
        images = np.random.RandomState(0).uniform(size=[3, *shape])

    def scores(batch):
        found = signature.call(**{argument: tf.cast(batch, spec.dtype)})
        return next(found[one] for one in (*OUTPUTS, *found) if one in found)

    results = scores(images).numpy()
    expect(results.ndim == 2 and len(results) == 3, f"scores [N, classes] of {name}", f"shape {results.shape}")
    expect(np.isfinite(results).all(), f"finite scores of {name}", results)
    largest = np.abs(results).max()
    for what, other in (("again", scores(images)), ("alone", np.concatenate([scores(image[None]) for image in images]))):
        difference = np.abs(other - results).max()
        expect(difference <= 1e-4 * largest + 1e-6, f"the same scores of images in {name} {what}", f"a difference of {difference}")
    if entry.gradients:
        _check_gradients(scores, name, tf.cast(images, tf.float32))
    return results


def _check_gradients(scores, name, images):
    with tf.GradientTape() as tape:
        tape.watch(images)
        try:
            score = tf.reduce_sum(scores(images)[:, 0])
        except (ValueError, TypeError) as error:
            raise AssertionError(f"Expected scores of {name} in a GradientTape. Received: {error}") from error
    gradient = tape.gradient(score, images)
    found = gradient is not None and np.isfinite(gradient).all() and np.any(gradient)
    expect(found, f"gradients of {name} with respect to images, or gradients=False", "none")
