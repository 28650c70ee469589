"""Configuration of hardening: targets, and messages for those that do not exist."""

import pytest

from tf_robust.hardening.config import HardenConfig


@pytest.mark.parametrize("name", ["corruptions", "blur_corruptions", "noise", "adversarial"])
def test_targets_by_name(name):
    assert HardenConfig(target=name).shift == ""


@pytest.mark.parametrize("data", ["night", "folder:photos/night", "csv:night.csv", "cifar10_1", "npz:a=b.npz"])
def test_a_shift_names_its_data(data):
    assert HardenConfig(target=f"shift={data}").shift == data


@pytest.mark.parametrize(
    "name, hint", [("corruption", "Did you mean 'corruptions'"), ("shift", "shift=DATA"), ("shift=", "shift=DATA"), ("nois", "'noise'")]
)
def test_unknown_targets(name, hint):
    with pytest.raises(ValueError, match=f"Unknown target: '{name}'.*{hint}"):
        HardenConfig(target=name)


def test_adapt_needs_a_shift():
    with pytest.raises(ValueError, match="Expected target=shift=DATA with adapt, images to train on. Received: target=noise"):
        HardenConfig(target="noise", adapt=True)
