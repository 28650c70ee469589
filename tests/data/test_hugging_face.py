"""Data sets of the package `datasets`: one image shape in every split and subset, subsets of corrupted sets, missing and odd images."""

import importlib.util

import numpy as np
import pytest
from PIL import Image

from tf_robust import corrupted_datasets, data
from tf_robust.corrupted_datasets import reader
from tf_robust.data import hugging_face

NAMES = ["cat", "dog", "owl"]


def test_gray_images_of_16_bits_keep_their_upper_8():
    levels = np.arange(0, 65536, 1024, dtype=np.uint16).reshape(8, 8)
    for channels in (1, 3):
        pixels = hugging_face._pixels(Image.fromarray(levels), channels)
        np.testing.assert_array_equal(pixels, np.repeat((levels // 256)[..., None], channels, axis=2))


def _hugging_face_folder(path, **tables):
    import datasets

    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)})
    rows = {name: {"image": images, "label": [i % 3 for i in range(len(images))]} for name, images in tables.items()}
    made = {name: datasets.Dataset.from_dict(table, features=features) for name, table in rows.items()}
    (made["all"] if "all" in made else datasets.DatasetDict(made)).save_to_disk(path)
    return f"hf:{path}"


@pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="needs the extra datasets")
def test_hugging_face_images_have_one_shape_in_every_split_and_subset(tmp_path):
    gray, color = np.full((8, 8), 90, np.uint8), np.full((8, 8, 3), 90, np.uint8)
    large = Image.fromarray(np.full((12, 16, 3), 90, np.uint8))
    small, of_gray = [Image.fromarray(color)] * 7, [Image.fromarray(gray)] * 6
    varying = _hugging_face_folder(tmp_path / "varying", all=[*small, large])
    assert {data.open_source(varying, "all", examples=count).image_shape for count in (0, 3, 8)} == {(224, 224, 3)}
    split = _hugging_face_folder(tmp_path / "split", train=of_gray, test=[*of_gray, large])
    assert [data.open_source(split, name).image_shape for name in ("train", "test")] == [(8, 8, 1)] * 2
    turned = small[0].resize((16, 12))
    turned.info["exif"] = (exif := Image.Exif()).tobytes()
    exif[0x0112] = 6
    turned.save(tmp_path / "turned.jpg", exif=exif)
    rotated = _hugging_face_folder(tmp_path / "turned", all=[{"path": str(tmp_path / "turned.jpg"), "bytes": None}] * 3)
    assert data.open_source(rotated, "all").image_shape == (16, 12, 3)
    for images, message in (
        ([*small, None], r"Expected an image in every row of hf:.* \(train\). Received: none in row 7"),
        ([Image.fromarray(gray.astype(np.float32) / 255)] * 3, "Received: floating-point values in row 0"),
    ):
        with pytest.raises(ValueError, match=message):
            data.open_source(_hugging_face_folder(tmp_path / f"bad{len(images)}", all=images), "all")


@pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="needs the extra datasets")
def test_subsets_of_hugging_face_sets_take_the_corrupted_set_of_all_images(tmp_path):
    images = [Image.fromarray(image) for image in np.random.RandomState(0).randint(0, 256, (12, 16, 16, 3)).astype(np.uint8)]
    name = _hugging_face_folder(tmp_path / "photos", all=images)
    writing = corrupted_datasets.WriterConfig(corruptions=("contrast",))
    corrupted_datasets.write(lambda: data.open_source(name, "all"), str(tmp_path / "c"), writing, corrupted_datasets.CorruptionConfig())
    few = data.open_source(name, "all", examples=6)
    assert len(reader.open_corrupted(str(tmp_path / "c"), few, "contrast", 3)) == 6
    other = _hugging_face_folder(tmp_path / "others", all=images[::-1])
    with pytest.raises(ValueError, match="Expected a corrupted set of the images of hf:"):
        reader.open_corrupted(str(tmp_path / "c"), data.open_source(other, "all", examples=6), "contrast", 3)
