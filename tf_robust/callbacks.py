"""What is written while a method trains: TensorBoard, and the history of epochs as JSON."""

import os

import keras
import tensorflow as tf

from tf_robust.files import read_json, write_json


class History(keras.callbacks.Callback):
    """Appends each epoch's logs to a JSON list; an interrupted run goes on where it was.

    Args:
        path: of the file, [{"epoch": 0, "total": ...}, ...].
    """

    def __init__(self, path):
        super().__init__()
        self.path = path

    def on_epoch_end(self, epoch, logs=None):
        earlier = [e for e in read_json(self.path) if e["epoch"] < epoch] if os.path.exists(self.path) else []
        write_json(self.path, [*earlier, {"epoch": epoch, **logs}])


class TensorBoard(keras.callbacks.Callback):
    """Scalars of every loss term and metric by epoch, an augmented batch as pictures, the flags as text.

    Keras' own callback does not know the terms of a method by step, nor pictures and text.

    Args:
        folder: of the event files. batch: a `Batch` to show, or None. text: shown as it is, or "".
    """

    def __init__(self, folder, batch=None, text=""):
        super().__init__()
        self.writer = tf.summary.create_file_writer(folder)
        with self.writer.as_default(step=0):
            if batch is not None:
                for position, view in enumerate(batch.views):
                    tf.summary.image(f"augmented batch/view {position}", view, max_outputs=16)
            if text:
                tf.summary.text("flags", f"```\n{text}\n```")

    def on_epoch_end(self, epoch, logs=None):
        step = self.model.optimizer.iterations
        with self.writer.as_default(step=int(step)):
            for name, value in logs.items():
                validation = name.startswith("val_")
                tf.summary.scalar(f"{'validation' if validation else 'training'}/{name.removeprefix('val_')}", value)
            tf.summary.scalar("training/learning_rate", self.model.optimizer.learning_rate)
        self.writer.flush()

    def show(self, name, picture_path):
        """Adds a PNG file."""
        with self.writer.as_default(step=int(self.model.optimizer.iterations)):
            tf.summary.image(name, tf.io.decode_png(tf.io.read_file(picture_path), channels=3)[None])
        self.writer.flush()
