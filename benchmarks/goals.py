"""Goals of the benchmarks, the same on every CPU."""

# time of a method's training step relative to a cross-entropy step, at most
TRAIN_STEP = {
    "lenet": {"fcl": 3.6, "puzzlemix": 3.0},
    "resnet20": {
        "fcl": 3.45,
        "augmix": 3.15,
        "noisymix": 3.5,
        "mixup": 1.08,
        "cutmix": 1.08,
        "manifold_mixup": 1.08,
        "nfm": 1.2,
        "puzzlemix": 1.5,
        "input_gradient": 2.5,
        "input_gradient, finite difference": 2.6,
        "simclr": 2.1,
        "moco": 1.3,
        "cross_entropy, mixed precision": 0.6,  # where the CPU multiplies matrices of bfloat16
    },
    "preact_resnet18": {"cross_entropy, mixed precision": 0.6},
}
AUGMIX = {"32": 3.5, "224": 1.5}  # speed relative to Pillow, by image size, at least
CORRUPTIONS = {"mean": {"32": 8.0, "224": 4.0}, "smallest": {"32": 2.5, "224": 1.2}}  # speed relative to imagecorruptions, at least
ATTACK_SPEED = {"l2": 3.0, "linf": 4.0}  # of PGD relative to foolbox, at least
ATTACKS = {"accuracy": 0.005, "l2": 1.05, "linf": 1.05, "l1": 1.10, "l0": 1.10}  # above foolbox; distances relative to foolbox's, at most
END_TO_END = {
    "training/resnet20": 1.1,  # throughput relative to PyTorch, at least
    "training/resnet20, channels last": 1.0,
    "training/preact_resnet18": 1.2,
    "evaluation/resnet20": 1.05,  # time relative to the forward passes, at most
    "quick_start": 45.0,  # seconds, at most
    "quick_start_memory": 1.3,  # million KiB, at most
}
