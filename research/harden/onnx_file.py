"""Writes a Keras model as an ONNX file. Needs `pip install onnx tf2onnx`.

python -m research.harden.onnx_file --start=start.keras --output=start.onnx
"""

import keras
from absl import app, flags


def main(_) -> None:
    model = keras.models.load_model(flags.FLAGS.start)
    model(keras.ops.zeros((1, *model.input_shape[1:])))  # Keras exports a model that was called
    model.export(flags.FLAGS.output, format="onnx")


if __name__ == "__main__":
    flags.DEFINE_string("start", "", "Keras file.")
    flags.DEFINE_string("output", "", "ONNX file to write.")
    app.run(main)
