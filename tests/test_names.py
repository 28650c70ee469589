"""Names of earlier versions: they give what they gave, with a warning that has the new name."""

import importlib

import pytest

import tf_robust


@pytest.mark.parametrize("old, new", sorted(tf_robust._MOVED.items()))
def test_a_moved_name_works_with_a_warning(old, new):
    with pytest.warns(DeprecationWarning, match=rf"tf_robust\.{old} is now tf_robust\.{new}\."):
        assert getattr(tf_robust, old) is importlib.import_module(f"tf_robust.{new}")


def test_other_names_do_not_exist():
    with pytest.raises(AttributeError, match="module 'tf_robust' has no attribute 'trainig'"):
        tf_robust.trainig
