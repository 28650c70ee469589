import re

import pytest

from tf_robust.hardening.config import HardenConfig


def test_a_shift_names_its_data():
    assert HardenConfig(target="noise").shift == "" and HardenConfig(target="shift=npz:a=b.npz").shift == "npz:a=b.npz"


@pytest.mark.parametrize(
    "target, named",
    [
        *((name, name) for name in ("corruption", "shift", "shift=", "fogg", "speckle_noise", "fog,fog", "noise,adversarial", "")),
        *(("fog,shift=folder:night", "folder:night"), ("fog:0", "'0'"), ("fog:x", "'x'"), ("fog:21", "'21'")),
    ],
)
def test_other_targets_are_refused(target, named):
    with pytest.raises(ValueError, match=f"(Expected|Unknown).*{re.escape(named)}"):
        HardenConfig(target=target)


@pytest.mark.parametrize("name, value", [("budget", "soon"), ("max_clean_loss", 2.0), ("max_class_loss", -0.1)])
def test_values_that_cannot_be_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name}.*{value}"):
        HardenConfig(**{name: value})


def test_adapt_needs_a_shift():
    with pytest.raises(ValueError, match="adapt.*target=noise"):
        HardenConfig(target="noise", adapt=True)
