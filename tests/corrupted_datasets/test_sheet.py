import os

import numpy as np
import pytest
from PIL import Image

from tf_robust.corrupted_datasets import job


@pytest.fixture(params=[(16, 24, 3), (8, 8, 1)])
def folder(request, tmp_path):
    """Writes two corruptions of two images: pixels of the first image at severity s are 10 * s, or 100 + 10 * s."""
    for name, base in (("fog", 0), ("snow", 100)):
        values = np.repeat(np.arange(1, 6) * 10 + base, 2).astype(np.uint8)
        values[1::2] = 255
        np.save(tmp_path / f"{name}.npy", np.zeros((10, *request.param), np.uint8) + values[:, None, None, None])
    np.save(tmp_path / "labels.npy", np.zeros(10, np.int64))
    return tmp_path


def test_a_sheet_shows_the_first_image_of_every_corruption_and_severity(folder, draw_sheet, monkeypatch):
    figures, save_figure = [], job.save_figure
    monkeypatch.setattr(job, "save_figure", lambda figure, path: figures.append(figure) or save_figure(figure, path))
    shape = np.load(folder / "fog.npy").shape[1:]
    path = draw_sheet(str(folder / "new" / "sheet.png"), str(folder), ["snow", "fog"], np.full(shape, 5, np.uint8), "a title")
    (axes,) = figures[0].axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["clean", "1", "2", "3", "4", "5"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["snow", "fog"]
    mosaic = np.asarray(axes.images[0].get_array())
    centers = mosaic[np.round(axes.get_yticks()).astype(int)][:, np.round(axes.get_xticks()).astype(int)]
    assert centers[..., 0].tolist() == [[5, 110, 120, 130, 140, 150], [5, 10, 20, 30, 40, 50]]
    assert (mosaic == 255).any() and figures[0].get_suptitle() == "a title"
    with Image.open(path) as sample_image:
        assert sample_image.format == "PNG" and sample_image.width > 300
    assert os.listdir(folder / "new") == ["sheet.png"]
