"""Harden a PyTorch model.

Trains a small network on digits, makes it more robust against attacks, and evaluates both networks in PyTorch.

    python examples/harden_a_pytorch_model.py

It needs the extra `torch`: pip install 'tf_robust[torch]'.
"""

import argparse

import numpy as np
import sklearn.datasets
import torch

import tf_robust as tfr

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--budget", default="240steps", help="of the search: training steps, or a time such as 5m")
options = parser.parse_args()

torch.manual_seed(0)
digits, targets = sklearn.datasets.load_digits(return_X_y=True)
digits = (digits.reshape(-1, 8, 8, 1).repeat(2, axis=1).repeat(2, axis=2) / 16).astype(np.float32)  # [N, 16, 16, 1] in [0, 1]
images, labels, tests, classes = digits[:1300], targets[:1300], digits[1300:], targets[1300:]


def to_torch(values):
    return torch.from_numpy(np.ascontiguousarray(values.transpose(0, 3, 1, 2)))


network = torch.nn.Sequential(
    *(torch.nn.Conv2d(1, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.MaxPool2d(2)),
    *(torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU(), torch.nn.MaxPool2d(2)),
    *(torch.nn.Flatten(), torch.nn.Linear(32 * 4 * 4, 10)),
)
optimizer = torch.optim.Adam(network.parameters(), 1e-3)
for _ in range(8):
    for rows in torch.randperm(len(images)).split(50):
        loss = torch.nn.functional.cross_entropy(network(to_torch(images[rows])), torch.from_numpy(labels[rows]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
network.eval()

attack = {"norm": "linf", "radius": 0.1}
hardened = tfr.harden(
    network,
    data=(images, labels),
    target="adversarial",
    attack_norm=attack["norm"],
    attack_radius=attack["radius"],
    budget=options.budget,
    max_clean_loss=0.05,
    evaluations="clean,adversarial",
    attack_radii=f"{attack['norm']}_{attack['radius']}",
    attack_subset=50,  # test images, for AutoAttack
)
hardened.save("hardened.pt")
robust = hardened.module  # a copy with the new weights, as network.load_state_dict(torch.load("hardened.pt", weights_only=True)) gives it

for name, module in (("initial", network), ("hardened", robust)):
    attacked = tfr.attack(module, tests, classes, "pgd", **attack).numpy()
    accuracies = [np.mean(module.eval()(to_torch(values)).argmax(dim=1).numpy() == classes) for values in (tests, attacked)]
    print(f"{name:<9} clean {accuracies[0]:.3f}  PGD {accuracies[1]:.3f}")
