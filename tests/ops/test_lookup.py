import numpy as np

from tf_robust.ops.lookup import lookup


def test_lookup_is_numpy_indexing():
    random = np.random.default_rng(0)
    table, rows, positions = random.random(50, np.float32), random.random([50, 3], np.float32), random.integers(0, 50, [4, 5])
    np.testing.assert_array_equal(lookup(table, positions), table[positions])
    np.testing.assert_array_equal(lookup(rows, positions), rows[positions])
    assert lookup(table, positions[:0]).shape == (0, 5)
