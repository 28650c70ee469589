"""Flags that an earlier version recorded in a workdir keep their effect."""

import pytest

from tf_robust.experiments import workdir

EARLIER_FCL = {"data": "cifar10", "method": "fcl", "image_size": "224", "fcl_update_statistics": "False", "fcl_k": "20"}


def written(folder, flags):
    folder.mkdir(exist_ok=True)
    (folder / "flags.txt").write_text("".join(f"--{name}={text}\n" for name, text in flags.items()))
    return str(folder / "flags.txt")


@pytest.mark.parametrize(
    "earlier, present",
    [
        (EARLIER_FCL, {"data": "cifar10", "method": "fcl", "fcl_k": "20", "fcl_batch_norm": "own"}),
        ({"method": "gaussian"}, {"method": "gaussian"}),
        ({"method": "augmax"}, {"method": "augmax", "augmax_dual_batch_norm": "False"}),
        ({"data": "folder:x", "image_size": "224"}, {"data": "folder:x", "image_size": "224"}),
        ({"data": "imagenet2012", "image_size": "128"}, {"data": "imagenet2012", "image_size": "128"}),
        (
            {"data": "cifar10", "image_size": "224", "image_fit": "crop", "method": "fcl", "fcl_batch_norm": "auto"},
            {"data": "cifar10", "image_size": "224", "image_fit": "crop", "method": "fcl", "fcl_batch_norm": "auto"},
        ),
    ],
)
def test_flags_of_earlier_versions_are_translated(earlier, present, tmp_path):
    assert workdir.recorded_flags(written(tmp_path, earlier)) == present


def test_a_run_of_an_earlier_version_is_resumed_with_equivalent_flags(tmp_path):
    written(tmp_path, EARLIER_FCL)
    (tmp_path / "environment.json").write_text("{}")
    defaults = {"image_size": "0", "fcl_batch_norm": "auto"}
    flags = {"data": "cifar10", "method": "fcl", "fcl_k": "20", "image_size": "0", "fcl_batch_norm": "own"}
    with workdir.claim(str(tmp_path), flags, defaults):
        pass
    with (
        pytest.raises(ValueError, match="--fcl_batch_norm: own then, auto now"),
        workdir.claim(str(tmp_path), {**flags, "fcl_batch_norm": "auto"}, defaults),
    ):
        pass
