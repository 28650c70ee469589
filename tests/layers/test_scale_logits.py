"""The layer of calibrated logits: values, files, errors."""

import keras
import numpy as np
import pytest

from tf_robust.layers import ScaleLogits

LOGITS = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)


@pytest.mark.parametrize("scale, bias", [(0.5, 0.0), ([1.0, 2.0, 3.0], [0.5, 0.0, -1.0])])
def test_logits_are_scaled_and_shifted_also_after_saving(tmp_path, scale, bias):
    images = keras.Input((3,))
    model = keras.Model(images, ScaleLogits(scale, bias)(images))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for one in (model, loaded):
        np.testing.assert_allclose(one(LOGITS), LOGITS * np.array(scale) + np.array(bias), rtol=1e-6)


def test_impossible_parameters_are_refused():
    with pytest.raises(ValueError, match="scale"):
        ScaleLogits(0.0)
    with pytest.raises(ValueError, match="each class"):
        ScaleLogits(np.ones((2, 2)))
    with pytest.raises(ValueError, match="4 classes"):
        ScaleLogits([1.0] * 4)(LOGITS)
