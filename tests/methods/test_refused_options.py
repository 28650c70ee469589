"""Options and views that a method cannot use are refused by name."""

import pytest

from tests.conftest import tiny_network
from tests.methods.common import build
from tf_robust import methods

NAN = float("nan")
REFUSED = [  # method, {option: values}
    ("cross_entropy", {"weight_decay": [-1.0], "label_smoothing": [1.0], "class_weights": ["balanced", {3: 1.0}, (1.0, 2.0)]}),
    ("gaussian", {"sigma": [-0.1], "batch_norm": ["moving"]}),
    ("contrastive_gaussian", {"temperature": [0.0]}),
    ("fcl", {"k": [257, -1], "sigma": [0.0], "temperature": [-1.0], "form": ["hinge"]}),
    ("fcl", {"reduction": ["max"], "start_step": [-1], "batch_norm": ["moving"]}),
    ("noisymix", {"alpha": [0.0], "additive_noise": [-0.1], "sparsity": [1.0], "noise": ["loud"]}),
    ("noisymix", {"stages": [(0, 2), (1, 1)], "jsd_weight": [-1.0]}),
    ("cutmix", {"alpha": [-1.0], "probability": [0.0]}),
    ("puzzlemix", {"alpha": [0.0], "labels": [1], "beta": [-1.0], "gamma": [-0.5], "eta": [NAN], "neighbourhood": [0]}),
    ("puzzlemix", {"transport_size": [-1], "transport_epsilon": [-0.1], "block_counts": [(), (4, 1), (3, 5)]}),
    ("puzzlemix", {"adversarial_probability": [1.1], "adversarial_radius": [-0.1, 10.0], "loss": ["hinge"]}),
    ("augmax", {"steps": [0], "step_size": [0.0], "jsd_weight": [0.0]}),
    ("adversarial", {"radius": [1.5, -0.5]}),
    ("trades", {"radius": [1.5], "beta": [-1.0]}),
    ("input_gradient", {"weight": [-1.0], "form": ["other"], "loss": ["other"], "difference": [0.0]}),
    ("asam", {"radius": [0.0, NAN], "offset": [-1.0]}),
    ("simclr", {"temperature": [0.0], "gradient_weight": [-1.0], "projection_layers": [-1]}),
    ("simclr", {"layer_weights": [(1.0, 2.0), (-1.0,)], "layer_gradient_weights": [(1.0,)]}),
    ("moco", {"temperature": [0.0], "momentum": [1.0], "queue": [0], "batch_norm_groups": [0]}),
    ("instdis", {"temperature": [0.0], "momentum": [1.0], "negatives": [0], "examples": [0]}),
    ("pirl", {"weight": [2.0]}),
    ("linear_probe", {"solver": ["adam"]}),
    ("finetune", {"frozen_stages": [2], "head_width": [-1]}),
    ("l2_sp", {"alpha": [-1.0]}),
    ("similarity", {"weight": [-1.0], "form": ["cosine"]}),
]


@pytest.mark.parametrize("name, options", REFUSED)
def test_options(name, options):
    network = tiny_network()
    for option, values in options.items():
        for value in values:
            with pytest.raises(ValueError, match=rf"\b{option.replace('_', '[_ ]')}\b"):
                build(name, network, **{option: value})


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("noisymix", {"additive_noise": 0.0, "multiplicative_noise": 0.0}, "one of them > 0"),
        ("puzzlemix", {"loss": "binary_cross_entropy", "label_smoothing": 0.1}, "loss='cross_entropy' with label_smoothing"),
        ("linear_probe", {"solver": "lbfgs", "label_smoothing": 0.1}, "solver='sgd' with label_smoothing"),
        ("simclr", {"gradient_weight": 1.0, "layer_weights": (1.0,), "layer_gradient_weights": (1.0,)}, "Received: both"),
    ],
)
def test_options_together(name, options, message):
    with pytest.raises(ValueError, match=message):
        build(name, tiny_network(), **options)


CHAINS = ("clean", "augmix_chain", "augmix_chain", "augmix_chain", "augmix")


@pytest.mark.parametrize(
    "name, options, taken, refused",
    [
        ("augmax", {}, [CHAINS, ("clean", "augmix_chain", "augmix")], [("clean",), ("clean", "augmix"), CHAINS[1:], CHAINS[:-1], ()]),
        ("augmax", {}, [], [("clean", "augmix", "augmix"), CHAINS + ("clean",)]),
        ("noisymix", {}, [("clean", "augmix", "augmix")], [("clean",)]),
        ("noisymix", {"jsd_weight": 0.0}, [("augmix",)], [("clean", "augmix")]),
        ("simclr", {}, [("simclr", "simclr")], [("simclr",), ("clean", "simclr", "simclr")]),
        ("moco", {}, [("moco_v2", "moco_v2")], [("moco_v2",)]),
        ("instdis", {}, [("clean",)], [("clean", "clean")]),
        ("pirl", {}, [("clean", "clean")], [("clean",)]),
    ],
)
def test_views(name, options, taken, refused):
    method = methods.METHODS[name](tiny_network(), **{"examples": 48, **options})
    for views in taken:
        method.check_views(views)
    for views in refused:
        with pytest.raises(ValueError, match="views="):
            method.check_views(views)
