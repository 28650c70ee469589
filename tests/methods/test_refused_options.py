"""Options and views that a method cannot use are refused by name."""

import pytest

from tests.conftest import tiny_network
from tests.methods.common import build
from tf_robust import methods

NAN = float("nan")
REFUSED = {  # method: (options, the message)
    "cross_entropy": [({"weight_decay": -1.0}, "weight_decay")],
    "gaussian": [({"sigma": -0.1}, "sigma"), ({"batch_norm": "moving"}, "batch_norm in .*moving")],
    "contrastive_gaussian": [({"temperature": 0.0}, "temperature")],
    "fcl": [
        *[({"k": k}, r"k in 1\.\.256") for k in (257, -1)],
        *[({"sigma": 0.0}, "sigma"), ({"temperature": -1.0}, "temperature"), ({"form": "hinge"}, "form")],
        *[({"reduction": "max"}, "reduction"), ({"start_step": -1}, "start_step"), ({"batch_norm": "moving"}, "batch_norm")],
    ],
    "noisymix": [
        *[({"alpha": 0.0}, "alpha"), ({"additive_noise": -0.1}, "additive_noise and multiplicative_noise >= 0")],
        *[({"additive_noise": 0.0, "multiplicative_noise": 0.0}, "one of them > 0"), ({"sparsity": 1.0}, "sparsity")],
        *[({"noise": "loud"}, "noise"), ({"stages": (0, 2)}, r"stages in 0\.\.1"), ({"stages": (1, 1)}, "each once")],
        ({"jsd_weight": -1.0}, "jsd_weight"),
    ],
    "cutmix": [({"alpha": -1.0}, "alpha"), ({"probability": 0.0}, "probability")],
    "puzzlemix": [
        *[
            ({"alpha": 0.0}, "alpha"),
            ({"labels": 1}, "labels"),
            ({"beta": -1.0}, "beta"),
            ({"gamma": -0.5}, "gamma"),
            ({"eta": NAN}, "eta"),
        ],
        *[({"neighbourhood": 0}, "neighbourhood"), ({"transport_size": -1}, "transport_size"), ({"loss": "hinge"}, "hinge")],
        *[({"transport_epsilon": -0.1}, "transport_epsilon"), ({"block_counts": ()}, "block_counts of at least 2")],
        *[({"block_counts": (4, 1)}, "at least 2"), ({"block_counts": (3, 5)}, "sides, 16 and 16")],
        *[({"adversarial_probability": 1.1}, "adversarial_probability"), ({"adversarial_radius": -0.1}, "adversarial_radius")],
        ({"adversarial_radius": 10.0}, "adversarial_radius"),
    ],
    "augmax": [({"steps": 0}, "steps"), ({"step_size": 0.0}, "step_size"), ({"jsd_weight": 0.0}, "jsd_weight")],
    "adversarial": [({"radius": 1.5}, "radius"), ({"norm": "l2", "radius": -0.5}, "radius")],
    "trades": [({"radius": 1.5}, "radius"), ({"beta": -1.0}, "beta")],
    "input_gradient": [
        ({"weight": -1.0}, "weight"),
        ({"form": "other"}, "form"),
        ({"loss": "other"}, "loss"),
        ({"difference": 0.0}, "difference"),
    ],
    "asam": [({"radius": 0.0}, "radius"), ({"radius": NAN}, "radius"), ({"offset": -1.0}, "offset")],
    "simclr": [
        *[
            ({"temperature": 0.0}, "temperature"),
            ({"gradient_weight": -1.0}, "gradient_weight"),
            ({"layer_weights": (1.0, 2.0)}, "1 layer_weights"),
        ],
        *[({"layer_weights": (-1.0,)}, "layer weights >= 0"), ({"layer_gradient_weights": (1.0,)}, "as many")],
        ({"projection_layers": -1}, "projection_layers"),
        ({"gradient_weight": 1.0, "layer_weights": (1.0,), "layer_gradient_weights": (1.0,)}, "Received: both"),
    ],
    "moco": [
        *[({"temperature": 0.0}, "temperature"), ({"momentum": 1.0}, "momentum"), ({"queue": 0}, "at least one row")],
        ({"batch_norm_groups": 0}, "batch_norm_groups"),
    ],
    "instdis": [
        *[({"temperature": 0.0}, "temperature"), ({"momentum": 1.0}, "momentum"), ({"negatives": 0}, "negatives")],
        ({"examples": 0}, "at least one row"),
    ],
    "pirl": [({"weight": 2.0}, "weight")],
    "linear_probe": [({"solver": "adam"}, "solver")],
    "finetune": [({"frozen_stages": 2}, r"frozen_stages in 0\.\.1"), ({"head_width": -1}, "head_width")],
    "l2_sp": [({"alpha": -1.0}, "alpha")],
    "similarity": [({"weight": -1.0}, "weight"), ({"form": "cosine"}, "form")],
}


@pytest.mark.parametrize("name", REFUSED)
def test_options(name):
    network = tiny_network()
    for options, message in REFUSED[name]:
        with pytest.raises(ValueError, match=message):
            build(name, network, **options)


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
        with pytest.raises(ValueError, match="Expected (the views clean|at least 2|one view|two views)"):
            method.check_views(views)


def test_batches():
    with pytest.raises(ValueError, match="moco_queue of at least the batch, 4"):
        build("moco", tiny_network(), queue=3).check_batch(4)
