import json

import numpy as np
import pytest

from tf_robust.utils.arrays import decoded, encoded


@pytest.mark.parametrize("array", [np.arange(5, dtype=np.uint8), np.array([0.1, -np.inf], np.float32), np.zeros(0, np.uint16)])
def test_arrays_survive_json(array):
    restored = decoded(json.loads(json.dumps(encoded(array))), array.dtype)
    assert restored.dtype == array.dtype
    np.testing.assert_array_equal(restored, array)


def test_the_text_is_base64_of_the_rows():
    assert encoded(np.array([[1, 2], [3, 4]], np.uint8)) == "AQIDBA=="
