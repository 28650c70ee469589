"""Writes corrupted copies of the images of a folder, at a chosen severity.

    python examples/corrupt_a_folder.py
    python examples/corrupt_a_folder.py photos --out=photos_fog --corruptions fog snow --severity=3

Without a folder, it writes a few images into a temporary one first. `tf-robust corrupt` writes complete data sets in the layout of
CIFAR-10-C instead.
"""

import argparse
import pathlib
import tempfile

import keras
import numpy as np
from sklearn.datasets import load_sample_images

import tf_robust as tfr

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("folder", nargs="?", type=pathlib.Path, help="with PNG or JPEG files; default: two photographs of scikit-learn")
parser.add_argument("--out", type=pathlib.Path, help="default: a temporary folder")
parser.add_argument("--corruptions", nargs="+", default=("gaussian_noise", "fog", "motion_blur"), choices=tfr.corruptions.CORRUPTIONS)
parser.add_argument("--severity", type=int, default=3, choices=range(1, 6))
options = parser.parse_args()

folder, out = options.folder or pathlib.Path(tempfile.mkdtemp()), options.out or pathlib.Path(tempfile.mkdtemp())
out.mkdir(parents=True, exist_ok=True)
if not options.folder:
    for name, photograph in zip(("temple", "flower"), load_sample_images().images):
        keras.utils.save_img(folder / f"{name}.png", photograph[:224, :224])

paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".png", ".jpg", ".jpeg"))
for index, path in enumerate(paths):  # what happens to an image depends on the seed and its index alone
    image = keras.utils.img_to_array(keras.utils.load_img(path))[np.newaxis] / 255.0  # float32 [1, H, W, 3] in [0, 1]
    for name in options.corruptions:
        corrupted = tfr.corruptions.corrupt(image, name, options.severity, seed=0, indices=[index])
        keras.utils.save_img(out / f"{path.stem}_{name}.png", 255 * corrupted[0], scale=False)
        print(out / f"{path.stem}_{name}.png")
