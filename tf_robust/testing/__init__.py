"""Contract tests for methods, corruptions, attacks and formats, also a user's own.

Each function raises AssertionError, which names what was expected and what came, if an entry breaks the contract of its kind. A test of
your own is one call and takes a few seconds:

    from tf_robust import testing

    def test_my_method():
        testing.check_method(MyMethod)

The tests of this package call them for every entry of `METHODS`, `CORRUPTIONS`, `ATTACKS` and `FORMATS`.
"""

from tf_robust.testing.attacks import check_attack
from tf_robust.testing.corruptions import check_corruption
from tf_robust.testing.formats import check_format
from tf_robust.testing.methods import check_method
