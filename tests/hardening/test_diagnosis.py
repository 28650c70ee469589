"""The diagnosis against loops over images; its sentences and its table; small changes against SciPy, Pillow and colorsys."""

import colorsys
import dataclasses
import io

import numpy as np
import pytest
import scipy.ndimage
import scipy.stats
import tensorflow as tf
from PIL import Image

from tests.conftest import sweep
from tests.rounding import tolerance
from tf_robust import attacks, corruptions, metrics
from tf_robust.hardening import diagnosis, target
from tf_robust.hardening.diagnosis import SMALL_CHANGES, ClassRow, Diagnosis, Row, change, diagnose
from tf_robust.hardening.target import LabeledImages, ValidationSet, pairs_of

NAMES = ("cat", "dog", "owl")


@pytest.fixture(scope="module")
def images():
    """Images of three classes: the brightest third. Classes of other sizes and contrasts."""
    random = np.random.RandomState(0)
    labels = np.repeat([0, 1, 2], [60, 40, 20])
    values = 0.3 * random.rand(120, 12, 12, 3)
    for image, label in zip(values, labels):
        image[4 * label : 4 * label + 4] += (0.03, 0.06, 0.1)[label]
    return values.astype(np.float32), labels


def predict(images):
    """Logits: a pixel's worth of each third, so that noise decides many."""
    return 20 * tf.reduce_mean(tf.reshape(images[:, :, 3:5], [-1, 3, 4 * 2 * 3]), axis=2)


@pytest.fixture
def short(monkeypatch):
    """The noise sets and one small change alone."""
    monkeypatch.setattr(diagnosis, "GROUPS", ())
    monkeypatch.setattr(diagnosis, "SMALL_CHANGES", {"translation": diagnosis.translation})


def validation_of(images, labels, **options):
    attack = attacks.ProjectedGradientDescent(norm="linf", radius=0.1, steps=1)
    return ValidationSet(images, labels, (), attack=attack, **options)


@pytest.fixture(scope="module")
def found(images):
    return diagnose(predict, validation_of(*images), NAMES, radius=8 / 255)


def classify(image):
    return int(np.argmax(predict(image[None])[0]))


def row_of(found, name):
    return next(row for row in found.rows if row.name == name)


def test_unchanged_images_and_calibration(found, images):
    clean = np.array([classify(image) == label for image, label in zip(*images)])
    assert found.clean == pytest.approx(clean.mean()) and found.count == 120 and 0.5 < found.clean < 1
    confidences = [tf.nn.softmax(predict(image[None])[0]).numpy().max() for image in images[0]]
    assert found.calibration == pytest.approx(metrics.rms_calibration_error(confidences, clean), abs=1e-5)


@pytest.mark.parametrize("group", sweep(["noise", "blur", "weather", "digital"], quick=("noise", "digital")))
def test_each_image_has_one_corruption_of_a_family(found, images, group):
    pairs = pairs_of(f"{group}_corruptions")
    order = np.random.default_rng(target.SEED).permutation(len(pairs))
    correct = []
    for i, (image, label) in enumerate(zip(*images)):
        name, severity = pairs[order[i % len(pairs)]]
        correct.append(classify(corruptions.corrupt(image, name, severity, target.SEED, i).numpy()) == label)
    assert row_of(found, f"{group} corruptions").accuracy == pytest.approx(np.mean(correct), abs=1.01 / 120)


def test_noise_sets(found, images):
    std = images[0].std(axis=0).mean(axis=-1)
    probabilities = corruptions.nonuniform_probabilities(std)
    for name, options in (("uniform_noise", {}), ("nonuniform_noise", {"probabilities": probabilities})):
        noisy = [corruptions.corrupt(image, name, 1, target.SEED, i, **options).numpy() for i, image in enumerate(images[0])]
        correct = [classify(image) == label for image, label in zip(noisy, images[1])]
        row = row_of(found, name.replace("_", " ").replace("nonuniform", "non-uniform"))
        assert row.accuracy == pytest.approx(np.mean(correct), abs=1.01 / 120)


def test_differences_are_paired(found, images):
    row, moved = row_of(found, "translation"), change(images[0], "translation")
    clean, changed = (np.array([classify(image) == label for image, label in zip(one, images[1])], float) for one in (images[0], moved))
    differences = changed - clean
    half = scipy.stats.t.ppf(0.975, 119) * differences.std(ddof=1) / np.sqrt(120)
    assert row.difference == pytest.approx(differences.mean())
    assert (row.low, row.high) == pytest.approx((differences.mean() - half, differences.mean() + half))


def test_the_attack_is_on_a_stratified_part(found, images):
    row = found.rows[-1]
    assert row.name == "PGD (linf 8/255)" and row.kind == "attack" and row.count == 100
    assert row.difference < 0 and 0 <= row.accuracy < 1
    clean = row.accuracy - row.difference  # of the same 100 images
    assert clean == pytest.approx(found.clean, abs=0.1) and clean * 100 == pytest.approx(round(clean * 100))


def test_classes_under_the_worst_change(found, images):
    worst = min((row for row in found.rows if row.kind != "attack"), key=lambda row: row.difference)
    assert found.worst == worst.name
    assert {row.name: row.count for row in found.classes} == {"cat": 60, "dog": 40, "owl": 20}
    falls = [row.accuracy - row.clean for row in found.classes]
    assert falls == sorted(falls) and falls[0] < falls[-1]
    for row in found.classes:
        members = [image for image, label in zip(*images) if NAMES[label] == row.name]
        assert row.clean == pytest.approx(np.mean([classify(image) == NAMES.index(row.name) for image in members]))
    total = sum(row.accuracy * row.count for row in found.classes) / 120
    assert total == pytest.approx(worst.accuracy)


@pytest.mark.usefixtures("short")
def test_a_rare_class_is_left_out(images):
    kept = np.r_[0:60, 60:69]
    found = diagnose(predict, validation_of(images[0][kept], images[1][kept]), NAMES)
    assert [row.name for row in found.classes] == ["cat"] and found.count == 69


def test_the_number_of_images_and_of_passes_is_limited(images, monkeypatch):
    monkeypatch.setattr(diagnosis, "ATTACKED_IMAGES", 6)
    monkeypatch.setattr(target, "BATCH", 30)
    passes = []

    def counted(batch):
        if not tf.is_symbolic_tensor(batch):
            passes.append(len(batch))
        return predict(batch)

    found = diagnose(counted, validation_of(*images), NAMES, max_images=30)
    assert found.count == 30 and {row.name: row.count for row in found.classes} == {"cat": 15, "dog": 10}  # 5 owls: too few
    assert found.rows[-1].count == 6 and sum(passes) <= (12 + 1) * 30 + 2 * 6


@pytest.mark.usefixtures("short")
def test_images_of_new_conditions_are_compared_without_pairs(images):
    shift = LabeledImages(images[0][::3] * 0.2, images[1][::3])
    found = diagnose(predict, validation_of(*images, shift=shift), NAMES)
    row = found.rows[-1]
    correct = [classify(image) == label for image, label in zip(shift.images, shift.labels)]
    assert "new conditions are other images" in found.section().caption
    assert row.name == "new conditions" and row.count == 40 and row.accuracy == pytest.approx(np.mean(correct))
    assert row.difference == pytest.approx(np.mean(correct) - found.clean)
    first, second = (
        [k / n, *scipy.stats.binomtest(k, n).proportion_ci(method="wilson")]
        for k, n in ((sum(correct), 40), (round(120 * found.clean), 120))
    )
    assert (row.low, row.high) == pytest.approx(metrics.newcombe_interval(first, second))


@pytest.mark.usefixtures("short")
def test_masked_columns_do_not_compete(images):
    labels = np.where(images[1] == 0, 0, 1)
    with_third = diagnose(predict, validation_of(images[0], labels), NAMES)
    masked = diagnose(predict, validation_of(images[0], labels, class_mask=(0, 1)), NAMES, norm="l2", radius=0.25)
    expected = [np.argmax(predict(image[None])[0, :2]) == label for image, label in zip(images[0], labels)]
    assert masked.clean == pytest.approx(np.mean(expected)) and masked.clean != with_third.clean
    assert masked.rows[-1].name == "PGD (l2 0.25)"  # no gray level


def test_lines_have_the_largest_fall_first_and_the_table_the_order_of_measurement():
    rows = (
        Row("crop", "small change", 0.71, 500, 0.0, -0.02, 0.02),
        Row("noise corruptions", "corruptions", 0.4, 500, -0.31, -0.36, -0.26),
        Row("PGD (linf 1/255)", "attack", 0.5, 100, -0.2, -0.3, -0.1),
    )
    example = Diagnosis(0.71, 500, 0.083, rows, "noise corruptions", (ClassRow("dog", 0.71, 0.22, 50), ClassRow("cat", 0.7, 0.5, 40)))
    lines, section = example.lines(), example.section()
    assert lines[2:5] == [
        "  noise corruptions    0.400  -0.310 [-0.360, -0.260]  500 images",
        "  PGD (linf 1/255)     0.500  -0.200 [-0.300, -0.100]  100 images",
        "  crop                 0.710  +0.000 [-0.020, +0.020]  500 images",
    ]
    assert "cat, 0.70 (40 images)" in lines[5] and "dog 0.71 -> 0.22, cat 0.70 -> 0.50" in lines[6]
    assert dataclasses.replace(example, classes=()).lines() == lines[:5]
    assert [*section.frame.index] == ["unchanged", "crop", "noise corruptions", "PGD (linf 1/255)"]
    assert [str(cell) for cell in section.frame.iloc[2]] == ["500", "0.400", "-0.310 [-0.360, -0.260]"]
    assert lines[6] in section.caption and "0.083" in section.caption


def images_of(count, height=20, width=34, channels=3):
    random = np.random.RandomState(0).rand(count, height, width, channels)
    smooth = scipy.ndimage.gaussian_filter(random, (0, 2, 2, 0))
    return ((smooth - smooth.min()) / np.ptp(smooth)).astype(np.float32)


def test_translation_moves_by_a_sixteenth_of_the_side():
    images = images_of(8)
    moved = change(images, "translation")
    for i, (image, result) in enumerate(zip(images, moved)):
        down, right = [(0, 2), (1, 0), (0, -2), (-1, 0)][i % 4]  # 20 x 34 pixels: 1 and 2
        padded = np.pad(image, [(2, 2), (2, 2), (0, 0)], mode="symmetric")
        np.testing.assert_allclose(result, padded[2 + down : 22 + down, 2 + right : 36 + right], atol=1e-6)


def test_translation_moves_small_images_by_one_pixel():
    images = images_of(1, 8, 8, 1)
    np.testing.assert_allclose(change(images, "translation")[0, :, :7], images[0, :, 1:], atol=1e-6)


def test_rotation_turns_by_five_degrees_in_both_directions():
    images = images_of(4)
    turned = change(images, "rotation")
    y, x = np.indices([20, 34])
    for i, (image, result) in enumerate(zip(images, turned)):
        angle = np.deg2rad(5) * (-1) ** i
        down, right = y - 9.5, x - 16.5
        rows, columns = 9.5 + np.sin(angle) * right + np.cos(angle) * down, 16.5 + np.cos(angle) * right - np.sin(angle) * down
        for channel in range(3):
            expected = scipy.ndimage.map_coordinates(image[..., channel], [rows, columns], order=1, mode="reflect")
            np.testing.assert_allclose(result[..., channel], expected, atol=1e-4)


def test_crop_enlarges_the_center():
    images = images_of(2, 32, 32)
    for image, result in zip(images, change(images, "crop")):
        expected = scipy.ndimage.zoom(image[2:30, 2:30], (32 / 28, 32 / 28, 1), order=1)
        np.testing.assert_allclose(result, expected, atol=1e-4)


def test_jpeg_equals_pillow():
    images = images_of(2)
    for image, result in zip(images, change(images, "jpeg")):
        file = io.BytesIO()
        Image.fromarray(np.round(255 * image).astype(np.uint8)).save(file, "jpeg", quality=75)
        np.testing.assert_allclose(result, np.asarray(Image.open(file)) / 255, atol=1e-6)


def test_brightness_changes_the_value_by_a_tenth_up_and_down():
    images = images_of(2, 6, 6)
    results = change(images, "brightness")
    for i, (image, result) in enumerate(zip(images, results)):
        for pixel, found in zip(image.reshape(-1, 3), result.reshape(-1, 3)):
            hue, saturation, value = colorsys.rgb_to_hsv(*pixel.tolist())
            expected = colorsys.hsv_to_rgb(hue, saturation, min(max(value + 0.1 * (-1) ** i, 0), 1))
            np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("name", SMALL_CHANGES)
@pytest.mark.parametrize("channels", [1, 3])
def test_a_change_is_a_function_of_image_and_position(name, channels):
    images = images_of(130, 8, 9, channels)
    results = change(images, name)
    assert results.shape == images.shape and results.dtype == np.float32 and 0 <= results.min() <= results.max() <= 1
    assert 0 < np.abs(results - images).mean() < 0.2
    np.testing.assert_allclose(results[:108], change(images[:108], name), rtol=0, atol=tolerance(16, size=9))  # positions within 9 pixels
