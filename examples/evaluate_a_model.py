"""Find out what breaks a model.

Evaluates two small classifiers of digits, one trained plainly and one with AugMix, on clean images, on corrupted ones and under attack.
The figure has the accuracy for each corruption and severity; the printed summary compares the models image by image.

Run it with `python examples/evaluate_a_model.py [FOLDER]`. It writes evaluate_a_model.png.
"""

import os
import sys

from PIL import Image

import tf_robust as tfr

folder = sys.argv[1] if len(sys.argv) > 1 else "."
path = os.path.join(folder, "evaluate_a_model.png")
settings = {
    "data": "digits",  # embedded; or (images, labels), a folder of images, a tf.data.Dataset
    "evaluations": "clean,corruptions,adversarial",
    "corruptions": "gaussian_noise,glass_blur,motion_blur,fog,elastic_transform,checkerboard_cutout,inverse_sparkles,sparkles",
    "attack": "pgd",
    "attack_radii": "linf_0.1",  # on the [0, 1] pixel scale
    "attack_checks": False,
    "attack_subset": 100,  # images
}
results = {name: tfr.evaluate(f"zoo:digits/lenet_{name}", **settings) for name in ("cross_entropy", "augmix")}

values = results["cross_entropy"].values
print(f"{'clean':30} {values['clean']:.3f}")
names = [name for name in values if name.startswith("robust/pgd/") or name.count("/") == 2 and name.startswith("corruptions/")]
for name in sorted(names, key=values.get)[:5]:
    print(f"{name:30} {values[name]:.3f}")
print(tfr.compare(**results))

charts = {chart.name: chart for chart in tfr.charts(*results.values())}
charts["corruptions"].save(path, scale_factor=2)
Image.open(path).convert("RGB").quantize(256, kmeans=3).save(path)  # 256 colors: a smaller file
