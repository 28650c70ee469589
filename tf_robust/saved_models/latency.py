"""Measures the time that a model takes for one image with one thread, by the runtime of its format, in a process of its own.

`python -m tf_robust.saved_models.latency PATH HEIGHT WIDTH CHANNELS TRUST` prints it as JSON.
"""

import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from tf_robust.saved_models.formats import format_of

_ONE_THREAD = {
    **dict.fromkeys(("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"), "1"),
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "-1",
}
_ROOT = str(pathlib.Path(__file__).resolve().parents[2])
WARM_UP, MIN_CALLS, MAX_CALLS, SECONDS = 10, 5, 500, 3.0  # calls, and the time after which no further one starts


def milliseconds(path: str, shape: tuple[int, ...], trust: bool = False) -> tuple[float, int]:
    """Returns the median time of a call with one image of shape (H, W, C), and the number of calls. trust: as in `ModelInterface`."""
    command = [sys.executable, "-m", __name__, path, *map(str, shape), str(int(trust))]
    paths = os.pathsep.join(filter(None, [_ROOT, os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(command, env={**os.environ, **_ONE_THREAD, "PYTHONPATH": paths}, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"Expected the latency of {path}. Received: {done.stderr[-500:]}")
    seconds = json.loads(done.stdout.splitlines()[-1])
    return 1000 * float(np.median(seconds)), len(seconds)


def measure(path: str, shape: tuple[int, ...], trust: bool) -> list[float]:
    """Returns the seconds of each call in the runtime of the format, after some that warm up."""
    image, found = np.full([1, *shape], 0.5, np.float32), format_of(path)
    call = found.runtime(path, image) if found and found.runtime else _tensorflow(path, image, trust)
    for _ in range(WARM_UP):
        call()
    seconds: list[float] = []
    while len(seconds) < MIN_CALLS or (len(seconds) < MAX_CALLS and sum(seconds) < SECONDS):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds


def _tensorflow(path, image, trust):
    import tensorflow as tf

    from tf_robust.saved_models.loading import ModelInterface, load_classifier

    classifier, tensor = load_classifier(path, ModelInterface(trust=trust)), tf.constant(image)
    function = tf.function(lambda images: classifier(images))
    return lambda: function(tensor).numpy()


def litert(path: str, image: np.ndarray) -> Callable[[], object]:
    """Returns a function that computes the scores of an image by TensorFlow Lite."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=path, num_threads=1)
    (given,), (returned,) = interpreter.get_input_details(), interpreter.get_output_details()
    interpreter.resize_tensor_input(given["index"], image.shape)
    interpreter.allocate_tensors()
    image = image.astype(given["dtype"])

    def call():
        interpreter.set_tensor(given["index"], image)
        interpreter.invoke()
        return interpreter.get_tensor(returned["index"])

    return call


def onnx(path: str, image: np.ndarray) -> Callable[[], object]:
    """Returns a function that computes the scores of an image by ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    name, image = given.name, image.astype(np.uint8 if given.type == "tensor(uint8)" else np.float32)
    return lambda: session.run(None, {name: image})


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], tuple(map(int, sys.argv[2:5])), bool(int(sys.argv[5])))))
