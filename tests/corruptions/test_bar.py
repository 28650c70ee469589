"""C-bar: its two sets, constants, spectra, severities, and its place in evaluations. (Oracles: test_parity.)"""

import numpy as np
import pytest

from tests.corruptions.oracles import sample_images
from tf_robust import corruptions, evaluation, metrics
from tf_robust.corrupted_datasets import reader
from tf_robust.corruptions import bar_noise, severities
from tf_robust.corruptions.suite import named
from tf_robust.evaluation.scoring import encoded
from tf_robust.evaluation.values import metrics_of

PAIRS = [(bar, name) for bar, names in metrics.BAR.items() for name in names]


def test_sets_are_those_with_constants():
    of_bar = severities.CONSTANTS.keys() - {*metrics.MEANS["mean19"]}
    for bar, names in metrics.BAR.items():
        assert len(names) == 10 and set(names) == {name for name in of_bar if bar in severities.CONSTANTS[name]}
    assert set(of_bar) == {name for _, name in PAIRS} and not set(of_bar) & {name for mean in metrics.MEANS.values() for name in mean}


def test_a_missing_set_of_constants_is_that_of_the_nearest_size():
    for name, size, expected in (("ripple", 224, 5.5), ("perlin_noise", 32, 4.6), ("sparkles", 64, 0.7), ("sparkles", 224, 1)):
        assert named(name).constants(1, (size, size)) == (expected,)
    assert named("sparkles").constants(1, (32, 32), "imagenet") == (1,)
    assert named("sparkles").constants(1, (224, 224), "tiny_imagenet") == (0.7,)


@pytest.mark.parametrize("bar, name", PAIRS)
def test_images_change_more_at_higher_severities(bar, name):
    images = sample_images(48, 48, 3, 24)
    changes = [abs(corruptions.corrupt(images, name, severity, constants=bar) - images).numpy().mean() for severity in (1, 3, 5)]
    assert changes[0] < changes[1] < changes[2]


@pytest.mark.parametrize("name, slope", [("blue_noise_sample", 1), ("brownish_noise", -2)])
def test_amplitudes_of_noise_follow_a_power_of_the_frequency(name, slope):
    phases = named(name).drawn(np.zeros([64, 64, 64, 3], np.float32), 1, 0, None, (1,))["phases"]
    frequency = bar_noise.cycles(64, 64)
    noise = bar_noise.spectral_noise(phases, frequency if slope == 1 else 1 / (frequency**2 + 1)).numpy()
    np.testing.assert_allclose(noise.std(axis=(1, 2)), 1, rtol=1e-5)
    power = (abs(np.fft.fft2(noise, axes=(1, 2))) ** 2).mean(axis=(0, 3))
    bands = [(frequency >= low) & (frequency < low + 1) for low in range(5, 30)]
    fit = np.polyfit(np.log([frequency[band].mean() for band in bands]), np.log([power[band].mean() for band in bands]), 1)
    assert fit[0] / 2 == pytest.approx(slope, abs=0.05)


@pytest.mark.parametrize("side, constants, bar", [(32, "auto", "cifar"), (224, "auto", "imagenet"), (224, "cifar", "cifar")])
def test_the_evaluation_has_the_ten_of_the_image_size(side, constants, bar):
    assert evaluation.EvalConfig(evaluations=("corruptions_bar",), corruption_constants=constants).bar_set((side, side, 3)) == bar


def record(family, name, severity, correct):
    name = f"{family}/{name}/{severity}"
    bits = encoded(np.packbits(correct))
    return {"kind": "accuracy", "set": name, "correct": int(correct.sum()), "count": len(correct), "which": bits}


def test_means_are_over_the_ten_and_leave_the_others_alone():
    random = np.random.RandomState(0)
    which = {(name, severity): random.rand(50) < 1 - severity / 10 for name in metrics.BAR["cifar"] for severity in (1, 5)}
    records = [record("corruptions_bar", *key, correct) for key, correct in which.items()]
    config = evaluation.EvalConfig(evaluations=("corruptions_bar",), severities=(1, 5))
    values = {str(metric): metric for metric in metrics_of(records, config)}
    assert values["corruptions_bar/mean"].value == pytest.approx(np.mean(list(which.values())))
    assert values["corruptions_bar/ripple"].value == pytest.approx(np.mean([which["ripple", s] for s in (1, 5)]))
    assert values["corruptions_bar/ripple/5"].value == pytest.approx(which["ripple", 5].mean())
    assert len(values) == 1 + 10 + 20 and all(name.startswith("corruptions_bar/") for name in values)
    assert "corruptions_bar/mean" not in {str(metric) for metric in metrics_of(records[:-1], config)}
    assert [str(m) for m in values.values() if not m.is_member] == ["corruptions_bar/mean"]


def test_files_of_the_published_set_may_have_its_spelling(tmp_path):
    images = np.random.RandomState(0).randint(0, 256, [10, 8, 8, 3], np.uint8)
    np.save(tmp_path / "transverse_chromatic_abberation.npy", images)
    np.save(tmp_path / "labels.npy", np.tile([0, 1], 5))
    name = "transverse_chromatic_aberration"
    assert reader.available(str(tmp_path)) == [(name, severity) for severity in range(1, 6)]
    corrupted = reader.open_corrupted(str(tmp_path), None, name, 2)
    assert len(corrupted) == 2 and name in corrupted.name
