"""What is written while a method trains: TensorBoard, and the history of epochs as JSON."""

import os

import keras
import numpy as np
import tensorflow as tf
from tensorboard.plugins import projector
from tensorboard.plugins.hparams import api as hp

from tf_robust.utils.files import read_json, write_json

_MAP_SIDE = 32  # pixels of an image in the map of embeddings


def _number(text):
    """A text as the number that it is, if it is one."""
    try:
        return float(text)
    except ValueError:
        return text


def read_history(path):
    """What `History` wrote: [{"epoch": 0, "total": ...}, ...]."""
    epoch = {"type": "object", "required": ["epoch"], "additionalProperties": {"type": "number"}}
    return read_json(path, {"type": "array", "items": epoch})


class History(keras.callbacks.Callback):
    """Appends each epoch's logs to a JSON list; an interrupted run goes on where it was.

    Args:
        path: of the file, [{"epoch": 0, "total": ...}, ...].
    """

    def __init__(self, path):
        super().__init__()
        self.path = path

    def on_epoch_end(self, epoch, logs=None):
        earlier = [e for e in read_history(self.path) if e["epoch"] < epoch] if os.path.exists(self.path) else []
        write_json(self.path, [*earlier, {"epoch": epoch, **logs}])


class TensorBoard(keras.callbacks.Callback):
    """Scalars of every loss term and metric by epoch, an augmented batch as images, the flags as text.

    Keras' own callback does not know the terms of a method by step, nor images and text.

    Args:
        folder: of the event files. batch: a `Batch` to show, or None. text: shown as it is, or "".
        profile: record where the time goes, in the second and third call of the steps' graph.
    """

    def __init__(self, folder, batch=None, text="", profile=False):
        super().__init__()
        self.folder, self.profile, self.calls = folder, profile, 0
        self.writer = tf.summary.create_file_writer(folder)
        with self.writer.as_default(step=0):
            if batch is not None:
                for position, view in enumerate(batch.views):
                    tf.summary.image(f"augmented batch/view {position}", view, max_outputs=16)
            if text:
                tf.summary.text("flags", f"```\n{text}\n```")

    def on_train_batch_end(self, batch, logs=None):
        self.calls += 1
        if self.profile and self.calls == 1:  # when graphs are built
            tf.profiler.experimental.start(self.folder)
        if self.profile and self.calls == 3:
            self._end_profile()

    def on_train_end(self, logs=None):
        if self.profile and 0 < self.calls < 3:
            self._end_profile()

    def _end_profile(self):
        tf.profiler.experimental.stop()
        self.profile = False

    def on_epoch_end(self, epoch, logs=None):
        with self.writer.as_default(step=int(self.model.optimizer.iterations.numpy())):
            for name, value in logs.items():
                validation = name.startswith("val_")
                tf.summary.scalar(f"{'validation' if validation else 'training'}/{name.removeprefix('val_')}", value)
            tf.summary.scalar("training/learning_rate", keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
        self.writer.flush()

    def compare(self, told, rows):
        """Lets TensorBoard's HParams compare runs: told, {flag: text}, and measured rows."""
        with self.writer.as_default(step=0):
            hp.hparams({name: _number(text) for name, text in told.items()}, trial_id=os.path.abspath(self.folder))
            for row in rows:
                tf.summary.scalar(f"measured/{row['measure']}", row["value"])
        self.writer.flush()

    def show(self, name, image_path):
        """Adds a PNG file."""
        with self.writer.as_default(step=int(self.model.optimizer.iterations.numpy())):
            tf.summary.image(name, tf.io.decode_png(tf.io.read_file(image_path), channels=3)[None])
        self.writer.flush()

    def map_embeddings(self, embeddings, labels, class_names, images):
        """Lets TensorBoard's projector draw embeddings [N, E] as a map of small images, images [N, H, W, C] in [0, 1].

        labels: int [N], places in class_names.
        """
        folder, side = os.path.join(self.folder, "embeddings"), int(np.ceil(np.sqrt(len(images))))
        os.makedirs(folder, exist_ok=True)
        np.savetxt(os.path.join(folder, "vectors.tsv"), embeddings, fmt="%.5g", delimiter="\t")
        with open(os.path.join(folder, "classes.tsv"), "w", encoding="utf-8") as file:
            file.write("".join(f"{class_names[label]}\n" for label in labels))
        small = tf.image.resize(images, [_MAP_SIDE, _MAP_SIDE], antialias=True)
        small = tf.pad(small, [[0, side * side - len(images)], [0, 0], [0, 0], [0, 0]])
        sheet = tf.reshape(small, [side, side, _MAP_SIDE, _MAP_SIDE, images.shape[-1]])
        sheet = tf.reshape(tf.transpose(sheet, [0, 2, 1, 3, 4]), [side * _MAP_SIDE, side * _MAP_SIDE, images.shape[-1]])
        png = tf.io.encode_png(tf.image.convert_image_dtype(tf.clip_by_value(sheet, 0.0, 1.0), tf.uint8))
        tf.io.write_file(os.path.join(folder, "images.png"), png)
        config = projector.ProjectorConfig()
        entry = config.embeddings.add()
        entry.tensor_name, entry.tensor_path = "embedding", os.path.join("embeddings", "vectors.tsv")
        entry.metadata_path = os.path.join("embeddings", "classes.tsv")
        entry.sprite.image_path = os.path.join("embeddings", "images.png")
        entry.sprite.single_image_dim.extend([_MAP_SIDE, _MAP_SIDE])
        projector.visualize_embeddings(self.folder, config)
