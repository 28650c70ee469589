"""One of the two workers in TF_CONFIG: trains methods for eight steps in float64; the first worker saves their arrays.

python -m tests.training.worker_steps FOLDER METHOD,METHOD,...
"""

import sys

import keras
import numpy as np

from tests.methods import replicas
from tf_robust.training import distribution


def main(folder, names):
    strategy = distribution.strategy("multi_worker")
    keras.config.set_dtype_policy("float64")
    for name in names:
        arrays = replicas.state(replicas.trained(name, strategy))
        if distribution.is_chief(strategy):
            np.savez(f"{folder}/{name}.npz", *arrays)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2].split(","))
