"""Short trainings end with the recorded weights: neither randomness nor arithmetic has changed.

After an intended change: `python -m tests.training.test_recorded_weights` records anew.
"""

import json
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.conftest import tiny_network, tiny_source
from tests.methods.common import build, views
from tf_robust.training import loop

RECORDED = pathlib.Path(__file__).with_name("recorded_weights.json")
METHODS = ("cross_entropy", "fcl", "noisymix")


def summary(name):
    """Mean, standard deviation and nine values of every variable after four steps in float64, to seven decimals."""
    keras.config.set_dtype_policy("float64")
    tf.config.run_functions_eagerly(True)  # a graph takes longer to build than four steps
    try:
        method = build(name, tiny_network(), **({"weight": 0.001} if name == "fcl" else {}))
        loop.fit(method, tiny_source(), epochs=1, batch_size=12, views=views(name))
    finally:
        keras.config.set_dtype_policy("float32")
        tf.config.run_functions_eagerly(False)
    values = [variable.numpy().astype(np.float64).ravel() for variable in method.classifier.variables]
    return [np.round([v.mean(), v.std(), *v[np.linspace(0, len(v) - 1, 9).astype(int)]], 7).tolist() for v in values]


@pytest.mark.parametrize("name", METHODS)
def test_a_short_training_ends_with_the_recorded_weights(name):
    recorded = json.loads(RECORDED.read_text("utf-8"))[name]
    np.testing.assert_allclose(summary(name), recorded, rtol=0, atol=1e-5)


if __name__ == "__main__":
    rows = {name: ",\n  ".join(map(json.dumps, summary(name))) for name in METHODS}
    RECORDED.write_text("{\n" + ",\n".join(f' "{name}": [\n  {row}\n ]' for name, row in rows.items()) + "\n}\n", "utf-8")
