"""AutoAttack here and in the authors' code, on the same weights and images: robust accuracy, images that differ, CPU time.

    git clone https://github.com/fra31/auto-attack REFERENCE
    taskset -c 0 python benchmarks/autoattack.py --reference=REFERENCE --data_dir=DIR --models=NAME=PATH,... --workdir=WORKDIR

Needs benchmarks/requirements_torch.txt. A model is a ResNet-8, the workdir of a run or zoo:NAME, whose weights are carried over to PyTorch.
The ensemble, and each member by itself, attack the same test images in chunks. The result of a chunk is kept in the workdir, so that an
interrupted benchmark resumes. `square_rescaled` is Square beside the authors' Square with its schedule scaled to the number of queries, as
here; their AutoAttack uses the schedule of 10,000 queries. Time is CPU time of all threads without the first two images of each attack,
which trace our graphs.

INPUT_GRADIENT in the recorded commands is the workdir of

    tf-robust train --data=cifar10 --data_dir=DIR --validation_fraction=0.1 --augmentations=crop_flip --model=resnet8 \\
        --method=input_gradient --input_gradient_weight=0.3 --init_from=zoo:cifar10/resnet8_cross_entropy --train_examples=8000 \\
        --epochs=2 --batch_size=128 --optimizer=sgd --momentum=0.9 --learning_rate=0.02 --schedule=cosine --evaluations=none \\
        --workdir=INPUT_GRADIENT
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import pathlib
import sys
import time

import numpy as np
from absl import app, flags

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.timing import provenance, sources, with_earlier_rows
from tf_robust import attacks, data, models
from tf_robust.configs.evaluation import parse_threat
from tf_robust.data.subsets import stratified_subset
from tf_robust.saved_models import zoo
from tf_robust.utils.files import atomic_file, read_json, write_json

ENSEMBLE = "ensemble"
MEMBERS = {"apgd_ce": "apgd-ce", "apgd_t": "apgd-t", "fab_t": "fab-t", "square": "square"}
RESCALED = "_rescaled"
SIDES = ("ours", "reference")
CLASSES = 10
COLUMNS = {  # of the table, and their formats
    "ours": "{:.3f}",
    "reference": "{:.3f}",
    "only ours robust": "{}",
    "only reference robust": "{}",
    "our seconds": "{:.0f}",
    "time ratio": "{:.2f}",
}
flags.DEFINE_string("reference", None, "folder of the authors' code.", required=True)
flags.DEFINE_string("data_dir", None, "folder of TFDS' CIFAR-10.")
flags.DEFINE_list("models", ["plain=zoo:cifar10/resnet8_cross_entropy", "pgd=zoo:cifar10/resnet8_adversarial"], "NAME=PATH of each model.")
flags.DEFINE_list("threats", ["l2_0.5", "linf_8/255"], "norm and radius, as in --attack_radii.")
flags.DEFINE_list("attacks", [ENSEMBLE, *MEMBERS, f"square{RESCALED}"], "what attacks the images.")
flags.DEFINE_integer("images", 500, "test images, a stratified subset.")
flags.DEFINE_integer("chunk", 50, "images per chunk.")
flags.DEFINE_string("workdir", None, "folder of the chunks' results.", required=True)
flags.DEFINE_string("output", "", "folder for autoattack.json and autoattack.md; empty: print only.")
FLAGS = flags.FLAGS


def load(path):
    """Returns a ResNet-8 with the weights of a run or a model of the zoo."""
    model = models.build("resnet8", (32, 32, 3), CLASSES)
    models.load_encoder(model, zoo.folder_of(path.removeprefix("zoo:")) if path.startswith("zoo:") else path, head=True)
    return model


def carried_over(model):
    """Returns a function of images [N, H, W, C] and one of images [N, C, H, W], both the model in PyTorch."""
    import torch

    from benchmarks import torch_networks

    def layers(kind):  # in the order in which they were made
        found = [layer for layer in model.layers if type(layer).__name__ == kind]
        return sorted(found, key=lambda layer: int("0" + layer.name.rpartition("_")[2]) if layer.name[-1].isdigit() else 0)

    network = torch_networks.NETWORKS["resnet8"](CLASSES).eval()
    convolutions = [layer.get_weights()[0] for layer in layers("Conv2D")]
    norms = [layer.get_weights() for layer in layers("BatchNormalization")]
    torch_networks.carry_over(network, convolutions, norms, layers("Dense")[0].get_weights())
    for parameter in network.parameters():
        parameter.requires_grad_(False)

    def logits(x):
        return network(x * 2.0 - 1.0)  # the normalization of the model

    def of_images(images):
        with torch.no_grad():
            return logits(torch.from_numpy(images.transpose(0, 3, 1, 2).copy())).numpy()

    return of_images, logits


def our_attack(name, norm, radius, model):
    attack = attacks.AutoAttack(norm=norm, radius=radius)
    attack = attack if name == ENSEMBLE else attack.members(CLASSES)[name.removesuffix(RESCALED)]
    return lambda images, labels: attack(model, images, labels).numpy()


def reference_attack(name, norm, radius, logits):
    import torch
    from autoattack import AutoAttack

    attack = AutoAttack(logits, norm={"l2": "L2", "linf": "Linf"}[norm], eps=radius, device="cpu", verbose=False, seed=0)
    attack.attacks_to_run = list(MEMBERS.values()) if name == ENSEMBLE else [MEMBERS[name.removesuffix(RESCALED)]]
    attack.square.rescale_schedule = name.endswith(RESCALED)

    def run(images, labels):
        x = torch.from_numpy(images.transpose(0, 3, 1, 2).copy())
        return attack.run_standard_evaluation(x, torch.from_numpy(labels), bs=FLAGS.chunk).numpy().transpose(0, 2, 3, 1)

    return run


def measured(side, name, threat, model_name, path, images, labels):
    """Returns {"robust": [0 or 1 per image], "seconds"}; chunks with results are not attacked again."""
    folder = os.path.join(FLAGS.workdir, model_name, threat.replace("/", "_over_"), name)
    files = [os.path.join(folder, f"{side}_{start}_{FLAGS.chunk}.json") for start in range(0, len(images), FLAGS.chunk)]
    if not all(map(os.path.exists, files)):
        norm, radius = parse_threat(threat)
        model = load(path)
        of_images, logits = carried_over(model)
        predict = (lambda x: model(x, training=False)["logits"].numpy()) if side == "ours" else of_images
        attack = our_attack(name, norm, radius, model) if side == "ours" else reference_attack(name, norm, radius, logits)
        difference = np.abs(of_images(images[:50]) - np.asarray(model(images[:50], training=False)["logits"])).max()
        if difference > 1e-3:
            sys.exit(f"Expected the same logits on both sides. Received: a difference of {difference} for {path}")
        attack(images[:2], labels[:2])
    for number, file in enumerate(files):
        if os.path.exists(file):
            continue
        chunk = slice(number * FLAGS.chunk, (number + 1) * FLAGS.chunk)
        start = time.process_time()
        attacked = attack(images[chunk], labels[chunk])
        seconds = time.process_time() - start
        sizes = np.linalg.norm((attacked - images[chunk]).reshape(len(attacked), -1), 2 if norm == "l2" else np.inf, axis=1)
        if sizes.max() > radius * (1 + 1e-4) or attacked.min() < 0 or attacked.max() > 1:
            sys.exit(f"Expected perturbations of size {radius} at most in [0, 1]. Received: {sizes.max()}")
        robust = predict(attacked).argmax(axis=1) == labels[chunk]
        os.makedirs(folder, exist_ok=True)
        write_json(file, {"robust": robust.astype(int).tolist(), "seconds": seconds})
        print(f"{model_name} {threat} {name} {side} {number + 1}/{len(files)}: {robust.mean():.3f}, {seconds:.1f} s", flush=True)
    results = [read_json(file) for file in files]
    return {"robust": sum((result["robust"] for result in results), []), "seconds": sum(result["seconds"] for result in results)}


def row(model_name, path, threat, name, images, labels):
    """Returns one row of the table."""
    ours, reference = (measured(side, name, threat, model_name, path, images, labels) for side in SIDES)
    one, other = (np.array(side["robust"], bool) for side in (ours, reference))
    return {
        "model": model_name,
        "threat": threat,
        "attack": name,
        "images": len(images),
        "ours": float(one.mean()),
        "reference": float(other.mean()),
        "only ours robust": int((one & ~other).sum()),
        "only reference robust": int((other & ~one).sum()),
        "our seconds": ours["seconds"],
        "time ratio": ours["seconds"] / reference["seconds"],
    }


def table(rows):
    """Returns the lines of the table."""
    columns = ("model", "threat", "attack", "images", *COLUMNS)
    lines = [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    return lines + [f"| {' | '.join(COLUMNS.get(name, '{}').format(row[name]) for name in columns)} |" for row in rows]


def main(_):
    sys.path.insert(0, FLAGS.reference)  # before the folder of this file, which has the same name as their package
    source = stratified_subset(data.open_source("cifar10", "test", data_dir=FLAGS.data_dir), FLAGS.images)
    batches = list(data.evaluation_batches(source, FLAGS.images).as_numpy_iterator())
    images, labels = batches[0][0], batches[0][1].astype(np.int64)
    rows = []
    for entry in FLAGS.models:
        model_name, _, path = entry.partition("=")
        rows += [row(model_name, path, threat, name, images, labels) for threat in FLAGS.threats for name in FLAGS.attacks]
    print("\n".join(table(rows)))
    if FLAGS.output:
        path, key = os.path.join(FLAGS.output, "autoattack"), ("model", "threat", "attack")
        rows = with_earlier_rows(f"{path}.json", rows, provenance("torch"), key)
        write_json(f"{path}.json", {"rows": rows})
        with atomic_file(f"{path}.md") as file:
            file.write(
                "# AutoAttack compared with the authors' code\n\nAccuracy under attack on CIFAR-10's test images, images that only one "
                "side left classified correctly, and CPU time of all threads (ours, and divided by the reference's)\n\n"
                + "\n".join(table(rows))
                + f"\n\n{sources(rows, key)}"
            )


if __name__ == "__main__":
    app.run(main)
