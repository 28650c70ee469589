"""Callbacks: TensorBoard, and the history of epochs as JSON."""

import os
from collections.abc import Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf
from tensorboard.plugins import projector
from tensorboard.plugins.hparams import api as hp

from tf_robust.data.pipeline import Batch
from tf_robust.utils.files import read_json, write_json

_SPRITE_SIDE = 32  # pixels of an image in the projector


def _number(text):
    """Returns a text as a float if it is a number, else the text."""
    try:
        return float(text)
    except ValueError:
        return text


def read_history(path: str) -> list[dict]:
    """Reads a file of `History`: [{"epoch": 0, "total": ...}, ...]."""
    epoch = {"type": "object", "required": ["epoch"], "additionalProperties": {"type": "number"}}
    return read_json(path, {"type": "array", "items": epoch})


class History(keras.callbacks.Callback):
    """Appends each epoch's logs to a JSON list; a resumed run continues it.

    Args:
        path: path of the file, [{"epoch": 0, "total": ...}, ...].
    """

    def __init__(self, path: str):
        super().__init__()
        self.path = path

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        earlier = [e for e in read_history(self.path) if e["epoch"] < epoch] if os.path.exists(self.path) else []
        write_json(self.path, [*earlier, {"epoch": epoch, **(logs or {})}])


class TensorBoard(keras.callbacks.Callback):
    """Writes scalars of every loss term and metric by epoch, an augmented batch as images, the flags as text.

    Keras' own callback writes no images, no text and no terms of a method by step.

    Args:
        folder: of the event files.
        text: the flags, or "".
        profile: profile the second and third call of the steps' graph.
    """

    def __init__(self, folder: str, text: str = "", profile: bool = False):
        super().__init__()
        self.folder, self.profile, self.calls = folder, profile, 0
        self.writer = tf.summary.create_file_writer(folder)
        with self.writer.as_default(step=0):
            if text:
                tf.summary.text("flags", f"```\n{text}\n```")

    def show_batch(self, batch: Batch) -> None:
        """Writes the views of an augmented batch as images."""
        with self.writer.as_default(step=0):
            for position, view in enumerate(batch.views):
                tf.summary.image(f"augmented batch/view {position}", view, max_outputs=16)

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self.calls += 1
        if self.profile and self.calls == 1:  # when graphs are built
            tf.profiler.experimental.start(self.folder)
        if self.profile and self.calls == 3:
            self._end_profile()

    def on_train_end(self, logs: dict | None = None) -> None:
        if self.profile and 0 < self.calls < 3:
            self._end_profile()

    def _end_profile(self):
        tf.profiler.experimental.stop()
        self.profile = False

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        with self.writer.as_default(step=int(self.model.optimizer.iterations.numpy())):
            for name, value in (logs or {}).items():
                validation = name.startswith("val_")
                tf.summary.scalar(f"{'validation' if validation else 'training'}/{name.removeprefix('val_')}", value)
            tf.summary.scalar("training/learning_rate", keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
        self.writer.flush()

    def compare(self, flags: Mapping[str, str], rows: Sequence[Mapping]) -> None:
        """Writes a run's flags and results for the comparison of runs in TensorBoard's HParams.

        Args:
            flags: {name: value as text}.
            rows: [{"metric": name, "value": number}].
        """
        with self.writer.as_default(step=0):
            hp.hparams({name: _number(text) for name, text in flags.items()}, trial_id=os.path.abspath(self.folder))
            for row in rows:
                tf.summary.scalar(f"measured/{row['metric']}", row["value"])
        self.writer.flush()

    def show(self, name: str, image_path: str) -> None:
        """Adds a PNG file as an image."""
        with self.writer.as_default(step=int(self.model.optimizer.iterations.numpy())):
            tf.summary.image(name, tf.io.decode_png(tf.io.read_file(image_path), channels=3)[None])
        self.writer.flush()

    def map_embeddings(self, embeddings: np.ndarray, labels: np.ndarray, class_names: Sequence[str], images: np.ndarray) -> None:
        """Writes embeddings for TensorBoard's projector, which shows each as its image.

        Args:
            embeddings: [N, E].
            labels: int [N], indices of class_names.
            class_names: names of the classes.
            images: [N, H, W, C] in [0, 1].
        """
        folder, side = os.path.join(self.folder, "embeddings"), int(np.ceil(np.sqrt(len(images))))
        os.makedirs(folder, exist_ok=True)
        np.savetxt(os.path.join(folder, "vectors.tsv"), embeddings, fmt="%.5g", delimiter="\t")
        with open(os.path.join(folder, "classes.tsv"), "w", encoding="utf-8") as file:
            file.write("".join(f"{class_names[label]}\n" for label in labels))
        small = tf.image.resize(images, [_SPRITE_SIDE, _SPRITE_SIDE], antialias=True)
        small = tf.pad(small, [[0, side * side - len(images)], [0, 0], [0, 0], [0, 0]])
        sheet = tf.reshape(small, [side, side, _SPRITE_SIDE, _SPRITE_SIDE, images.shape[-1]])
        sheet = tf.reshape(tf.transpose(sheet, [0, 2, 1, 3, 4]), [side * _SPRITE_SIDE, side * _SPRITE_SIDE, images.shape[-1]])
        png = tf.io.encode_png(tf.image.convert_image_dtype(tf.clip_by_value(sheet, 0.0, 1.0), tf.uint8))
        tf.io.write_file(os.path.join(folder, "images.png"), png)
        config = projector.ProjectorConfig()
        entry = config.embeddings.add()
        entry.tensor_name, entry.tensor_path = "embedding", os.path.join("embeddings", "vectors.tsv")
        entry.metadata_path = os.path.join("embeddings", "classes.tsv")
        entry.sprite.image_path = os.path.join("embeddings", "images.png")
        entry.sprite.single_image_dim.extend([_SPRITE_SIDE, _SPRITE_SIDE])
        projector.visualize_embeddings(self.folder, config)
