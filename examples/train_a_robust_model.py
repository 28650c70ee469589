"""Trains a model plainly and with a robust method, and prints what was gained on noisy images at what cost on clean ones.

    python examples/train_a_robust_model.py
    python examples/train_a_robust_model.py --data=folder:photos --model=resnet20 --epochs=50 --workdir=runs/photos

docs/choose_a_method.md names a method for other kinds of image degradation.
"""

import argparse
import tempfile

import tf_robust as tfr

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--data", default="synthetic_digits", help="a data set, or folder:DIR with one subfolder of images per class")
parser.add_argument("--model", default="lenet", help="a network of `tf-robust list models`")
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--workdir", default=None, help="folder for the models and their evaluations; default: a temporary folder")
options = parser.parse_args()

methods = {
    "plain": {"method": "cross_entropy"},
    # cross-entropy on each image and on a noisy copy of it
    "robust": {"method": "gaussian", "gaussian_sigma": 0.5, "gaussian_weight": 1.0},
}
folder = options.workdir or tempfile.mkdtemp()
common = {"data": options.data, "model": options.model, "epochs": options.epochs, "evaluations": "clean,noise"}

# a finished run is not repeated, an interrupted one is resumed
results = {name: tfr.train(f"{folder}/{name}", **arguments, **common) for name, arguments in methods.items()}
for name, result in results.items():
    clean = result.values.get("clean", result.values.get("bal"))  # "bal" on the balanced corner digits
    print(f"{name:6} clean {clean:.3f}  uniform noise {result.values['un']:.3f}  {result.folder}/saved_model")
