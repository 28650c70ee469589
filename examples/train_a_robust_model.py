"""Trains a model plainly and with AugMix and its stability loss, and prints what was gained on corrupted images.

python examples/train_a_robust_model.py
python examples/train_a_robust_model.py --data=folder:photos --model=resnet20 --epochs=50 --workdir=runs/photos
"""

import argparse
import tempfile

import tf_robust as tfr

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--data", default="digits", help="a data set, or folder:DIR with one subfolder of images per class")
parser.add_argument("--model", default="lenet", help="a network of `tf-robust list`")
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--workdir", default=None, help="folder for the models and their evaluations; default: a temporary folder")
options = parser.parse_args()

methods = {
    "plain": {"method": "cross_entropy"},
    "augmix": {"method": "noisymix", "noisymix_mixing": False, "noisymix_noise": "none", "views": "clean,augmix,augmix"},
}
folder = options.workdir or tempfile.mkdtemp()
common = {"data": options.data, "model": options.model, "epochs": options.epochs, "evaluations": "clean,corruptions", "subset": 100}

# a finished run is not repeated, an interrupted one is resumed
results = {name: tfr.train(f"{folder}/{name}", **arguments, **common) for name, arguments in methods.items()}
for name, result in results.items():
    print(f"{name:8} clean {result.values['clean']:.3f}  corrupted {result.values['corruptions/mean15']:.3f}  {result.folder}/saved_model")
