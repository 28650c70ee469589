"""Builds the parts of a run from its configuration: data and method."""

import contextlib
from collections.abc import Iterator, Mapping

import keras
import tensorflow as tf

from tf_robust import data, methods, models
from tf_robust.configs.train import TrainConfig
from tf_robust.data.source import Source
from tf_robust.methods.base import Method
from tf_robust.saved_models import zoo
from tf_robust.training import distribution, optimizers
from tf_robust.utils import environment
from tf_robust.utils.progress import print_note


def build_method(config: TrainConfig, hyperparameters: Mapping, source: Source, *, seed: int, init_path: str) -> Method:
    """Returns the compiled method of a run with a new classifier.

    Args:
        config: names the method, the model and the optimizer.
        hyperparameters: keyword arguments of the method.
        source: training data.
        seed: of the initial weights and of the method.
        init_path: workdir or SavedModel with the initial encoder; empty: random weights.

    Raises:
        ValueError: incompatible settings, or settings that the method rejects.
    """
    if config.init_from_row and not init_path:
        raise ValueError(
            f"Expected tf-robust suite or --init_from=DIR for a run that starts from the row {config.init_from_row!r}. Received: neither"
        )
    if config.init_head and hyperparameters.get("head_width"):
        raise ValueError(f"Expected init_head or {config.method}_head_width, whose logits start at random. Received: both")
    if config.synchronize_batch_norm and config.jit_compile:
        raise ValueError("Expected jit_compile=false with synchronize_batch_norm, which gathers across devices. Received: true")
    if config.mixed_precision and not tf.config.list_physical_devices("GPU") and environment.has_bfloat16() is False:
        print_note("this CPU has no instructions for bfloat16: with mixed_precision a step may take twice as long as without.")
    weights = models.PRETRAINED if init_path == models.PRETRAINED else None
    with _precision(config.mixed_precision), distribution.strategy(config.strategy).scope():
        classifier = models.build(config.model, source.image_shape, source.num_classes, seed=seed, resize=config.resize, weights=weights)
        if init_path and not weights:
            path = zoo.folder_of(init_path.removeprefix("zoo:")) if init_path.startswith("zoo:") else init_path
            models.load_encoder(classifier, path, head=config.init_head)
        method = methods.METHODS[config.method](
            classifier,
            seed=seed,
            examples=len(source),
            weight_decay=config.weight_decay,
            label_smoothing=config.label_smoothing,
            class_weights=data.class_weights(config.class_weights, source),
            **hyperparameters,
        )
        _check_epoch_options(config, method)
        if config.synchronize_batch_norm:
            distribution.synchronize_batch_norm(method)
        method.check_views(config.views)
        method.check_batch(config.batch_size)
        steps = 1 if method.closed_form else data.steps_per_epoch(source, config.batch_size)
        method.compile(_optimizer(config, steps), jit_compile=config.jit_compile)
    return method


def _check_epoch_options(config, method):
    """Raises ValueError for options of training in epochs with a method that is solved without, or that needs every image once."""
    given = [name for name in ("ema", "global_clipnorm", "select", "early_stopping") if getattr(config, name)]
    if method.closed_form and given:
        raise ValueError(f"Expected a method trained in epochs with {', '.join(given)}. Received: {config.method} with solver=lbfgs")
    if method.needs_positions and config.sampling == "balanced":
        raise ValueError(f"Expected sampling=shuffled with {config.method}, which remembers each image. Received: balanced")


def _optimizer(config: TrainConfig, steps_per_epoch: int) -> keras.optimizers.Optimizer:
    schedule = optimizers.learning_rate_schedule(
        config.schedule,
        config.learning_rate,
        steps_per_epoch=steps_per_epoch,
        epochs=config.epochs,
        warmup_epochs=config.learning_rate_warmup_epochs,
        decay_rate=config.decay_rate,
        decay_epochs=config.decay_epochs,
        decay_factor=config.decay_factor,
    )
    options = {name: getattr(config, name) for name in ("momentum", "nesterov", "ema", "global_clipnorm")}
    return optimizers.build(config.optimizer, schedule, **options)


@contextlib.contextmanager
def _precision(mixed: bool) -> Iterator[None]:
    before = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16" if mixed else "float32")
    try:
        yield
    finally:
        keras.mixed_precision.set_dtype_policy(before)
