"""The lines of Python that train a chosen recipe without the search."""

import os
import typing
from collections.abc import Mapping

from tf_robust import methods, metrics
from tf_robust.hardening.candidates import Candidate
from tf_robust.hardening.choice import Point
from tf_robust.hardening.training import MOMENTUM

_HEAD = """\
import keras
import tensorflow as tf
import tf_robust as tfr
from tf_robust.hardening.interpolation import average, interpolate
from tf_robust.hardening.training import fine_tuning

# images and labels: your training images, with the pixel values and the size that the model takes
{model}
start = model.get_weights()
dataset = tf.data.Dataset.from_tensor_slices((images.astype("float32"), labels))
dataset = dataset.shuffle(len(images), seed={seed}).repeat().batch({batch_size})
ends = []
"""
_FLIP = """\
flip = keras.Sequential([keras.layers.RandomTranslation(0.1, 0.1, fill_mode="constant"), keras.layers.RandomFlip("horizontal")])
"""
_EXTRA = f"""\
extra_corruptions = tfr.layers.RandomCorruption({metrics.EXTRA!r}).augment
"""
_MEMBER = """
# {name}
model.set_weights(start)
method = tfr.methods.{method}(
    {arguments},
)
rate = keras.optimizers.schedules.CosineDecay({rate:g}, {steps})
with fine_tuning(model, {layers!r}):
    method.compile(optimizer=keras.optimizers.SGD(rate, momentum={momentum}))
    method.fit({dataset}, steps_per_epoch={steps})
ends.append(model.get_weights())
"""
_INTERPOLATION = """
model.set_weights(interpolate(start, average(ends), {coefficient:g}))
"""
_TAIL = """\
{reestimation}model.save("robust.keras")
"""
_REESTIMATION = """
from tf_robust.hardening.batch_statistics import BATCHES, reestimated

low, high = {input_range}
augment = tfr.layers.AugMix()
augmix = (augment((x - low) / (high - low)) for x, _ in dataset.take(BATCHES))
reestimated(model, tfr.methods.CrossEntropy({arguments}).network, model.get_weights(), augmix)
"""


def lines_of(point: Point, path: str, *, batch_size: int, seed: int, options: Mapping[str, typing.Any]) -> str:
    """Returns lines of Python that fine-tune a model as a point of the frontier was, and interpolate its weights.

    The order of the images and the draws differ from those of the search, so that the results are alike, not equal.

    Args:
        point: not the initial model.
        path: of the Keras file of the initial model.
        batch_size: examples per step.
        seed: of training.
        options: arguments of all methods, such as `input_range`.
    """
    model = f"model = keras.saving.load_model({path!r}, compile=False)" if os.path.isfile(path) else "# model: the one before the search"
    reestimation = ""
    if point.reestimated:
        reestimation = _REESTIMATION.format(arguments=_arguments({}, options), input_range=options.get("input_range", (0.0, 1.0)))
    return "".join(
        [
            _HEAD.format(model=model, batch_size=batch_size, seed=seed),
            _FLIP if any(member.candidate.augmentations for member in point.members) else "",
            _EXTRA if any("extra_corruptions" in member.candidate.views for member in point.members) else "",
            *(_member(candidate, steps, {"seed": seed, **options}) for candidate, steps, _ in point.members),
            _INTERPOLATION.format(coefficient=point.coefficient) if point.members else "",
            _TAIL.format(reestimation=reestimation),
        ]
    )


def _member(candidate: Candidate, steps: int, options: Mapping[str, typing.Any]) -> str:
    views = {"views": _Views(candidate.views)} if candidate.views != methods.METHODS[candidate.method].default_views else {}
    return _MEMBER.format(
        name=f"{candidate.name}, {steps:,} steps",
        method=methods.METHODS[candidate.method].__name__,
        arguments=_arguments({**candidate.settings, **views}, options, ",\n    "),
        rate=candidate.learning_rate,
        steps=steps,
        layers=candidate.layers,
        momentum=MOMENTUM,
        dataset="dataset.map(lambda x, y: (flip(x, training=True), y))" if candidate.augmentations else "dataset",
    )


class _Views(tuple):
    """Names of views; its `repr` is Python code."""

    def __repr__(self) -> str:
        names = ", ".join(name if name == "extra_corruptions" else repr(name) for name in self)
        return f"({names},)"


def _arguments(settings, options, separator=", "):
    return separator.join(["model", *(f"{name}={value!r}" for name, value in {**settings, **options}.items())])
