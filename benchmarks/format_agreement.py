"""Trains a network by plain Keras and one by plain PyTorch, exports each to the formats of its framework, and compares the evaluations.

    pip install -e '.[torch,onnx,tflite]' onnx tf2onnx
    python benchmarks/format_agreement.py       # 5 minutes; writes results/format_agreement.{json,md}

The images are scikit-learn's digits in color at 32 pixels. Goal: accuracy on clean and corrupted images, and under PGD where there are
gradients, agrees with that of the framework itself to 0.002.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import json
import pathlib
import sys
import tempfile
import warnings
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf
import torch
from absl import app, flags
from sklearn import datasets

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import tf_robust as tfr
from benchmarks import torch_networks
from benchmarks.timing import provenance
from tf_robust.utils.files import atomic_file

FLAGS = flags.FLAGS

GOAL = 0.002
MEASURES = ("clean", "corruptions/mean15", "robust/pgd/linf_0.01")
SETTINGS = {"severities": (1, 3, 5), "attack": "pgd", "attack_radii": "linf_0.01", "attack_subset": 100, "attack_checks": False}
WITHOUT_GRADIENTS = (".tflite", ".onnx")


def colored_digits() -> tuple[np.ndarray, np.ndarray]:
    """Returns digits on a background of a random color: float32 [N, 32, 32, 3] in [0, 1] and int64 [N]."""
    digits, labels = datasets.load_digits(return_X_y=True)
    random = np.random.RandomState(0)
    background = random.uniform(0.2, 0.6, [len(digits), 1, 1, 3])
    images = tf.image.resize(background + (1 - background) * digits.reshape(-1, 8, 8, 1) / 16, (32, 32)).numpy()
    order = random.permutation(len(images))
    return images[order].astype(np.float32), labels[order]


def train_keras(images: np.ndarray, labels: np.ndarray, epochs: int) -> keras.Model:
    """Returns a convolutional network with batch norm and softmax, by plain Keras."""
    keras.utils.set_random_seed(0)
    layers = [keras.Input((32, 32, 3), name="images")]
    for filters in (16, 32, 64):
        layers += [keras.layers.Conv2D(filters, 3, 2, padding="same", use_bias=False), keras.layers.BatchNormalization(momentum=0.9)]
        layers += [keras.layers.ReLU()]
    model = keras.Sequential([*layers, keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(10, activation="softmax")])
    model.compile(keras.optimizers.Adam(0.005), "sparse_categorical_crossentropy")
    model.fit(images, labels, batch_size=32, epochs=2 * epochs, verbose=0)
    return model


def train_torch(images: np.ndarray, labels: np.ndarray, epochs: int) -> torch.nn.Module:
    """Returns a ResNet-20, by plain PyTorch."""
    torch.manual_seed(0)
    network = torch_networks.resnet20(10)
    optimizer = torch.optim.Adam(network.parameters(), 0.003)
    x, y = torch.tensor(images).permute(0, 3, 1, 2), torch.tensor(labels)
    for epoch in range(epochs):
        for batch in torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch)).split(64):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(x[batch]), y[batch]).backward()
            optimizer.step()
    return network.eval()


def keras_files(model: keras.Model, folder: str) -> Iterator[tuple[str, str]]:
    """Yields (format, path) of a Keras model."""
    for suffix in (".keras", ".h5"):
        model.save(os.path.join(folder, f"keras{suffix}"))
        yield suffix, os.path.join(folder, f"keras{suffix}")
    model.export(os.path.join(folder, "exported"), verbose=False)
    yield "SavedModel (export)", os.path.join(folder, "exported")
    tf.saved_model.save(model, os.path.join(folder, "saved"))
    yield "SavedModel (tf.saved_model.save)", os.path.join(folder, "saved")
    path = os.path.join(folder, "keras.tflite")
    pathlib.Path(path).write_bytes(tf.lite.TFLiteConverter.from_saved_model(os.path.join(folder, "exported")).convert())
    yield ".tflite", path
    try:
        import tf2onnx
    except ImportError:
        print("tf2onnx is not installed: the Keras model is not exported to ONNX.")
        return
    path = os.path.join(folder, "keras.onnx")
    signature = [tf.TensorSpec([None, 32, 32, 3], tf.float32, name="images")]
    function = tf.function(lambda images: {"probabilities": model(images, training=False)}, input_signature=signature)
    tf2onnx.convert.from_function(function, input_signature=signature, output_path=path)
    yield ".onnx", path


def torch_files(network: torch.nn.Module, folder: str) -> Iterator[tuple[str, str]]:
    """Yields (format, path) of a Torch network."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice to use torch.export
        torch.jit.script(network).save(os.path.join(folder, "torch.pt"))
        yield "TorchScript", os.path.join(folder, "torch.pt")
        path, sample = os.path.join(folder, "torch.onnx"), (torch.zeros(2, 3, 32, 32),)
        torch.onnx.export(network, sample, path, input_names=["images"], dynamic_axes={"images": {0: "n"}}, dynamo=False)
    yield ".onnx", path


def torch_function(network: torch.nn.Module):
    """Returns a function from images [N, H, W, C] to logits that calls Torch itself, without gradients in TensorFlow."""

    def logits(images):
        with torch.no_grad():
            return network(torch.tensor(images).permute(0, 3, 1, 2)).numpy()

    def predict(images):
        scores = tf.numpy_function(logits, [images], tf.float32)
        scores.set_shape([None, 10])
        return scores

    return predict


def evaluate(model, data: tuple[np.ndarray, np.ndarray], gradients: bool, outputs: str) -> dict[str, float]:
    """Returns the values of `MEASURES`; those under attack only with gradients."""
    evaluations = ("clean", "corruptions", *(("adversarial",) if gradients else ()))
    settings = SETTINGS if gradients else {"severities": SETTINGS["severities"]}
    values = tfr.evaluate(model, data=data, evaluations=evaluations, outputs=outputs, **settings).values
    return {name: values[name] for name in MEASURES if name in values}


def measure(images: int, epochs: int) -> list[dict]:
    """Returns one row per framework and format: its values and their largest difference to those of the framework itself.

    Args:
        images: number of images to evaluate on; the others are trained on.
        epochs: of training.
    """
    x, y = colored_digits()
    data, training = (x[:images], y[:images]), (x[images:], y[images:])
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        network, model = train_torch(*training, epochs), train_keras(*training, epochs)
        for framework, files, own, outputs in (
            ("Keras", keras_files(model, folder), model, "probabilities"),
            ("PyTorch", torch_files(network, folder), torch_function(network), "logits"),
        ):
            reference = evaluate(own, data, framework == "Keras", outputs)
            rows.append({"framework": framework, "format": "in memory", "values": reference, "difference": 0.0})
            for name, path in files:
                values = evaluate(path, data, not path.endswith(WITHOUT_GRADIENTS), outputs)
                difference = max(abs(values[key] - reference[key]) for key in values.keys() & reference.keys())
                rows.append({"framework": framework, "format": name, "values": values, "difference": difference})
    return rows


def to_markdown(rows: list[dict]) -> str:
    """Returns the table of the rows."""
    head = ["framework", "format", *MEASURES, "largest difference"]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for row in rows:
        values = [f"{row['values'][name]:.4f}" if name in row["values"] else "–" for name in MEASURES]
        lines.append("| " + " | ".join([row["framework"], row["format"], *values, f"{row['difference']:.4f}"]) + " |")
    return "\n".join(lines)


def main(_) -> None:
    rows = measure(FLAGS.images, FLAGS.epochs)
    largest = max(row["difference"] for row in rows)
    with atomic_file(f"{FLAGS.output}.json") as file:
        json.dump({**provenance(), "goal": GOAL, "rows": rows}, file, indent=1)
    text = (
        f"# Agreement of model formats\n\nOne network by plain Keras and one by plain PyTorch (ResNet-20), on {FLAGS.images} colored "
        "digits at 32 px, each exported to the formats of its framework; corruptions at severities 1, 3 and 5, PGD on 100 images. Largest "
        f"difference to the network in memory: {largest:.4f} (goal {GOAL}). `in memory` for PyTorch calls Torch itself; TensorFlow Lite "
        f"and ONNX have no gradients.\n\n{to_markdown(rows)}\n\n`python benchmarks/format_agreement.py`\n"
    )
    with atomic_file(f"{FLAGS.output}.md") as file:
        file.write(text)
    print(text)


if __name__ == "__main__":
    flags.DEFINE_integer("images", 300, "images to evaluate on.")
    flags.DEFINE_integer("epochs", 4, "epochs of training.")
    flags.DEFINE_string("output", str(ROOT / "results" / "format_agreement"), "files to write, without their suffix.")
    app.run(main)
