import json

import numpy as np
import pytest
import tensorflow as tf

from tf_robust.utils.files import decoded, encoded, storable


@pytest.mark.parametrize("array", [np.arange(5, dtype=np.uint8), np.array([0.1, -np.inf], np.float32), np.zeros(0, np.uint16)])
def test_arrays_survive_json(array):
    restored = decoded(json.loads(json.dumps(encoded(array))), array.dtype)
    assert restored.dtype == array.dtype
    np.testing.assert_array_equal(restored, array)


def test_the_text_is_base64_of_the_rows():
    assert encoded(np.array([[1, 2], [3, 4]], np.uint8)) == "AQIDBA=="


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float16", "int64", "bool"])
def test_a_file_holds_the_values_of_every_type(dtype, tmp_path):
    dtype = tf.as_dtype(dtype).as_numpy_dtype
    array = np.array([0, 1, 0.75, -3]).astype(dtype)
    np.savez(tmp_path / "a.npz", array=storable(array))
    with np.load(tmp_path / "a.npz") as file:
        assert file["array"].astype(dtype).tolist() == array.tolist()
