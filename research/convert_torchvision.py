"""Converts torchvision's classifiers, with random weights, to Keras models and back, and records what differs.

    python -m research.convert_torchvision results/conversion

It needs the extra `torch`, and writes OUT.json and OUT.md: nodes of the ONNX graph, difference of the scores of the Keras model from ONNX
Runtime's, relative to the largest, the same of a file that the user exported with `dynamo=True` for any number of images, weights that are
constants, and, after every weight was changed, the difference of the module with the `state_dict` that is written.
"""

import json
import os
import sys
import tempfile
import types

import numpy as np
import torch

from tf_robust.conversion import converted, torch_files
from tf_robust.utils import environment

NAMES = (
    *("resnet18", "resnet50", "vgg11_bn", "densenet121", "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0", "shufflenet_v2_x1_0"),
    *("regnet_y_400mf", "convnext_tiny", "mnasnet1_0", "vit_b_16", "swin_t"),
)
SIZE = 224
IMAGES = np.random.RandomState(0).normal(size=(2, SIZE, SIZE, 3)).astype(np.float32)


def architectures():
    """The module `torchvision.models`, also where torchvision's compiled operations, which no classifier needs, do not fit PyTorch."""
    try:
        import torchvision
    except RuntimeError:
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        sys.modules["torchvision._meta_registrations"] = types.ModuleType("torchvision._meta_registrations")
        import torchvision
    return torchvision.models


def with_random_weights(module):
    """A module in inference mode whose batch normalization and last layer are random, too: zeros would hide what is wrong."""
    random = torch.Generator().manual_seed(0)
    for key, value in module.state_dict().items():
        if key.endswith("running_var") or value.ndim == 1 and key.endswith("weight"):
            value.copy_(0.5 + torch.rand(value.shape, generator=random))
        elif value.is_floating_point() and (value.ndim == 1 or not value.any()):
            value.copy_(0.1 * torch.randn(value.shape, generator=random))
    return module.eval()


def row_of(name, module):
    """One line of the table."""
    row = {"row": name, "parameters": sum(parameter.numel() for parameter in module.parameters())}
    try:
        found = converted.convert(module, images=IMAGES)
    except ValueError as error:
        return {**row, "error": str(error)}
    row["difference_dynamo"] = of_dynamo_file(module)
    random = np.random.RandomState(0)
    for variable in found.model.weights:
        variable.assign(np.asarray(variable) * random.uniform(0.95, 1.05, variable.shape))
    scores, expected = torch_files.scores(found.module(), IMAGES), np.asarray(found.model(IMAGES))
    return {
        **row,
        "nodes": len(found._found.graph.nodes),
        "difference": found.difference,
        "untrained": list(found.untrained),
        "difference_back": float(np.abs(scores - expected).max() / np.abs(expected).max()),
    }


def of_dynamo_file(module):
    """Difference of the scores of a file that the newer exporter writes, or why it is not converted."""
    images = torch.from_numpy(np.ascontiguousarray(IMAGES.transpose(0, 3, 1, 2)))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.onnx")
        torch.onnx.export(module, (images,), path, dynamo=True, dynamic_shapes=({0: torch.export.Dim("batch")},), verbose=False)
        try:
            return converted.convert(path, images=IMAGES).difference
        except ValueError as error:
            return str(error)


def main(out):
    models, rows = architectures(), []
    for name in NAMES:
        torch.manual_seed(0)
        rows.append(row_of(name, with_random_weights(getattr(models, name)(weights=None))))
        print(rows[-1], flush=True)
        command = f"python -m research.convert_torchvision {out}"
        content = {"command": command, "commit": environment.commit(), "versions": environment.describe(), "cpu": environment.cpu_model()}
        content |= {"versions": {**content["versions"], "torch": torch.__version__}, "rows": rows}
        with open(f"{out}.json", "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
    lines = [
        "# Conversion of torchvision's classifiers",
        "",
        f"`{command}` at commit {content['commit']}: random weights, {SIZE}-pixel images. Differences of the scores, relative to the",
        "largest: of the Keras model from ONNX Runtime's; the same of an ONNX file by `torch.onnx.export(..., dynamo=True)`; and of the",
        "module with the weights that came back from the Keras model, after all were changed.",
        "",
        "| architecture | parameters | nodes | difference | of a `dynamo` file | after the way back | constants that are not trained |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if "error" in row:
            lines.append(f"| {row['row']} | {row['parameters']:,} | not converted: {row['error']} | | | | |")
        else:
            differences = (row[name] for name in ("difference", "difference_dynamo", "difference_back"))
            numbers = [one if isinstance(one, str) else f"{one:.1g}" for one in differences]
            values = (f"{row['nodes']:,}", *numbers, str(len(row["untrained"])))
            lines.append(f"| {row['row']} | {row['parameters']:,} | {' | '.join(values)} |")
    with open(f"{out}.md", "w", encoding="utf-8") as file:
        file.write("\n".join([*lines, ""]))


if __name__ == "__main__":
    main(*sys.argv[1:])
