import numpy as np
import pytest
import scipy.stats

from tests.report.conftest import per_image
from tf_robust import report
from tf_robust.report import sections, summary, tables
from tf_robust.report.tables import kinds_of_robustness

PAPER = {"xe": {"un": [0.41, 0.02]}, "unknown": {"un": [0.5, None]}}


def test_mean_std_and_interval_over_seeds(three_seeds):
    entry = tables.aggregate(three_seeds)["cells"]["xe", "un"]
    values = [0.40, 0.35, 0.45]
    expected = scipy.stats.t.interval(0.95, 2, np.mean(values), scipy.stats.sem(values))
    assert entry["values"] == values and entry["seeds"] == [0, 1, 2]
    np.testing.assert_allclose([entry["mean"], entry["std"]], [0.40, 0.05])
    np.testing.assert_allclose([entry["low"], entry["high"]], expected)


def test_difference_uses_common_seeds_only(three_seeds, evaluate):
    table = tables.aggregate([*three_seeds[:3], evaluate("fcl", 7, {"un": 0.0})])
    difference = table["cells"]["fcl", "un"]["difference"]
    assert difference["pairs"] == 1 and difference["low"] is None and difference["baseline"] == "xe"
    np.testing.assert_allclose(difference["mean"], 0.20)


def test_one_seed_keeps_the_binomial_interval(three_seeds):
    entry = tables.aggregate(three_seeds[:1])["cells"]["xe", "bal"]
    assert entry["std"] is None and entry["difference"] is None
    np.testing.assert_allclose([entry["low"], entry["high"]], [0.89, 0.91])


def test_order_paper_and_missing_metrics(evaluate):
    table = tables.aggregate([evaluate("fcl", 0, {"nun": 0.2}), evaluate("xe", 0, {"nun": 0.1, "un": 0.4})], PAPER)
    assert table["order"] == ["fcl", "xe"] and table["metrics"] == ["nun", "un"] and table["baseline"] == "xe"
    entries = table["cells"]
    assert ("fcl", "un") not in entries and entries["fcl", "nun"]["paper"] is None
    assert entries["xe", "un"]["paper"] == [0.41, 0.02]


def test_baseline_is_chosen_or_the_first(evaluate):
    runs = [evaluate("a", 0, {"un": 0.1}), evaluate("b", 0, {"un": 0.2})]
    assert tables.aggregate(runs)["baseline"] == "a"
    assert tables.aggregate(runs, baseline="b")["baseline"] == "b"
    with pytest.raises(ValueError, match="'c'"):
        tables.aggregate(runs, baseline="c")


def test_bad_input_is_named(three_seeds):
    with pytest.raises(ValueError, match="Expected evaluations"):
        tables.aggregate([])
    with pytest.raises(ValueError, match="row 'xe', seed 0"):
        tables.aggregate([three_seeds[0], *three_seeds])


def with_card(evaluation, **corruptions):
    return {**evaluation, "card": {"data": {"fingerprint": "a"}, "corruptions": corruptions}}


def test_different_cards_are_refused(evaluate):
    one = with_card(evaluate("xe", 0, {"clean": 0.9, "corruptions/mean15": 0.5}), protocol="cifar_c")
    other = with_card(evaluate("fcl", 0, {"corruptions/mean15": 0.6}), protocol="float")
    with pytest.raises(ValueError, match=r"'corruptions/mean15'.*'xe', seed 0.*'fcl', seed 0.*corruptions.protocol \(cifar_c and float\)"):
        tables.aggregate([one, other])
    clean = with_card(evaluate("fcl", 0, {"clean": 0.8}), protocol="float")
    assert tables.aggregate([one, clean])["metrics"] == ["clean", "corruptions/mean15"]  # clean depends on no protocol
    tables.aggregate([one, evaluate("old", 0, {"corruptions/mean15": 0.6})])  # without a card: nothing to compare


def test_single_corruptions_are_details_unless_there_is_nothing_else(evaluate):
    main = ["clean", "corruptions/mean15", "corruptions/noise", "corruptions/calibration_rms"]
    details = ["corruptions/fog", "corruptions/fog/3", "flips/tilt"]
    table = tables.aggregate([evaluate("xe", 0, dict.fromkeys([*main[:2], *details, *main[2:]], 0.5))])
    assert table["metrics"] == main and table["details"] == details
    assert tables.aggregate([evaluate("xe", 0, {"flips/tilt": 0.1})])["metrics"] == ["flips/tilt"]


def test_a_corruption_without_a_mean_is_a_main_metric(evaluate):
    """As of a corrupted set on disk that has some corruptions alone."""
    part = {"clean": 0.9, "class/a": 0.9, "corruptions/fog": 0.6, "corruptions/fog/3": 0.6, "corruptions_bar/ripple/2": 0.5}
    table = tables.aggregate([evaluate("xe", 0, part), evaluate("fcl", 0, {**part, "corruptions/fog": 0.1})])
    assert table["headlines"] == table["metrics"] == ["clean", "corruptions/fog", "corruptions_bar/ripple/2"]
    assert kinds_of_robustness(table)["corruptions"] == "corruptions/fog"
    noise = {**part, "corruptions/noise": 0.5, "corruptions/shot_noise": 0.4}
    table = tables.aggregate([evaluate("xe", 0, noise)])
    assert table["metrics"] == ["clean", "corruptions/fog", "corruptions/noise", "corruptions_bar/ripple/2"]
    assert table["details"] == ["class/a", "corruptions/fog/3", "corruptions/shot_noise"]


def test_measures_of_a_family_stand_together_and_shared_ones_are_compared(evaluate):
    """The second model has no gradients: another attack, which comes last among its own metrics."""
    white = {"clean": 0.9, "robust/l2_0.5": 0.3, "robust/transfer/l2_0.5": 0.4, "corruptions/mean15": 0.8}
    black = {"clean": 0.9, "corruptions/mean15": 0.7, "robust/transfer/l2_0.5": 0.5, "robust/square/l2_0.5": 0.6}
    table = tables.aggregate([evaluate("xe", 0, white), evaluate("int8", 0, black)])
    assert table["metrics"] == ["clean", "robust/l2_0.5", "robust/transfer/l2_0.5", "robust/square/l2_0.5", "corruptions/mean15"]
    assert kinds_of_robustness(table) == {"corruptions": "corruptions/mean15", "attacks": "robust/transfer/l2_0.5"}
    assert kinds_of_robustness(tables.aggregate([evaluate("xe", 0, white)]))["attacks"] == "robust/l2_0.5"
    stronger = {**black, "robust/transfer/l2_0.5": 0.2, "robust/square/linf_0.1": 0.1}
    rows = [evaluate("int8", 0, stronger), evaluate("other", 0, stronger)]
    assert kinds_of_robustness(tables.aggregate(rows))["attacks"] == "robust/transfer/l2_0.5"  # lower than Square in the same ball
    assert [*sections.differences(table).metrics.values()] == ["clean", "robust/transfer/l2_0.5", "corruptions/mean15"]


def test_a_frame_has_one_row_for_every_run_and_metric(evaluate):
    frame = tables.to_frame([evaluate("xe", 0, {"un": 0.5, "bal": 0.6}), evaluate("xe", 1, {"un": 0.7})])
    assert frame.groupby("metric")["value"].mean().to_dict() == {"bal": 0.6, "un": pytest.approx(0.6)} and len(frame) == 3
    assert {"row", "seed", "metric", "value", "low", "high", "count", "data", "model"} <= set(frame.columns)


def test_headlines_come_first(evaluate):
    headlines = [
        "calibration/rms",
        "label_fraction_0.1/corruptions/mean15",
        "label_fraction_0.5/corruptions/noise",
        "flips/mean_without_noise",
        "robust/l2_0.5",
        "clean",
        "corruptions/mean19",
    ]
    names = ["calibration/ece", headlines[0], "label_fraction_0.1/corruptions/noise", *headlines[1:4], "flips/tilt", *headlines[4:]]
    runs = [evaluate(row, 0, dict.fromkeys(names, 0.5)) for row in ("xe", "fcl")]
    table = tables.aggregate(runs, paper={"fcl": {"corruptions/mean19": [0.6, None]}})
    assert table["headlines"] == headlines
    assert table["metrics"] == [*headlines, "calibration/ece", "label_fraction_0.1/corruptions/noise"]
    assert table["details"] == ["flips/tilt"]


def test_one_seed_is_compared_image_by_image(evaluate):
    """1,500 images, 0.033 apart: the intervals overlap, but the difference is significant."""
    images = np.arange(1500)
    xe, fcl = images < 1100, (images >= 249) & (images < 1299)  # 249 lost, 199 gained
    runs = [evaluate(row, 0, {"bal": values.mean()}) for row, values in (("xe", xe), ("fcl", fcl))]
    for run in runs:
        run["rows"][0].update(low=run["rows"][0]["value"] - 0.022, high=run["rows"][0]["value"] + 0.022)
    before = tables.aggregate(runs)
    assert before["cells"]["fcl", "bal"]["difference"]["images"] is None
    table = tables.aggregate(runs, per_image=per_image({("xe", 0): {"bal": xe}, ("fcl", 0): {"bal": fcl}}))
    difference = table["cells"]["fcl", "bal"]["difference"]
    assert difference["images"]["p"] == pytest.approx(scipy.stats.binomtest(199, 448).pvalue)
    assert table["differences"]["fcl", "bal"].significant
    assert difference["images"]["mean"] == pytest.approx(difference["mean"]) == pytest.approx(-50 / 1500)
    captions = [sections.differences(one).caption for one in (table, before)]
    assert "paired over the images" in captions[0] and "Newcombe" in captions[1]


def test_a_difference_is_significant_if_and_only_if_its_interval_excludes_0(table_per_image):
    """Of 7 images that one model alone classifies correctly and 1 of the other: the exact test has p = 0.07, the interval excludes 0."""
    xe, fcl = np.arange(40) == 7, np.arange(40) < 7
    table = table_per_image({("xe", 0): {"bal": xe}, ("fcl", 0): {"bal": fcl}})
    assert table["cells"]["fcl", "bal"]["difference"]["images"]["p"] == pytest.approx(0.0703, abs=1e-4)
    _, low, high, significant, *_ = table["differences"]["fcl", "bal"]
    expected = scipy.stats.ttest_rel(fcl, xe * 1.0).confidence_interval()
    assert (low, high) == pytest.approx((expected.low, expected.high)) and low > 0 and significant
    cell = sections.differences(table).frame.iloc[0, 0]
    assert cell.text == "▲ +0.150" and cell.uncertainty == f"[+{low:.3f}, +{high:.3f}]"
    assert "significant." in summary.summary_lines(table)[0] and "not significant" not in summary.summary_lines(table)[0]


def test_other_images_are_not_paired(evaluate):
    runs = [evaluate("xe", 0, {"un": 0.5}), evaluate("fcl", 0, {"un": 0.6})]
    for of_fcl in (("others", np.arange(100) < 60), None):
        values = {"xe": ("these", np.arange(100) < 50), "fcl": of_fcl}
        table = tables.aggregate(runs, per_image=lambda evaluation, _: values[evaluation["row"]])
        assert table["cells"]["fcl", "un"]["difference"]["images"] is None


def test_intervals_over_several_seeds_have_the_variation_over_the_images_too(three_seeds):
    random = np.random.RandomState(0)
    values = {("xe", seed): {"bal": random.rand(50) < 0.91, "un": random.rand(50) < 0.4} for seed in range(3)}
    values |= {("fcl", seed): {"bal": random.rand(50) < 0.91, "un": random.rand(50) < 0.65} for seed in range(3)}
    table = tables.aggregate(three_seeds, per_image=per_image(values))
    entry = table["cells"]["fcl", "un"]
    means = {row: np.mean([values[row, seed]["un"] for seed in range(3)], axis=0) for row in ("xe", "fcl")}
    over_images = scipy.stats.ttest_rel(means["fcl"], means["xe"])
    assert entry["difference"]["images"]["p"] == pytest.approx(over_images.pvalue)
    over_seeds = scipy.stats.ttest_rel([0.60, 0.65, 0.70], [0.40, 0.35, 0.45])
    widths = [result.confidence_interval().high - result.confidence_interval().low for result in (over_seeds, over_images)]
    _, low, high, significant, *_ = table["differences"]["fcl", "un"]
    assert (low + high) / 2 == pytest.approx(0.25) and high - low == pytest.approx(np.hypot(*widths)) and significant == (low > 0)
    assert "paired over the seeds and the images" in sections.differences(table).caption
    assert not table["differences"]["fcl", "bal"].significant


@pytest.mark.parametrize("scales", [(0.03, 0.0, 0.0), (0.0, 0.5, 0.0), (0.0, 0.0, 0.5), (0.02, 0.3, 0.3)], ids=str)
def test_intervals_cover_the_true_difference(table_per_image, scales):
    """Standard deviations over seeds, over images and of both together. Without the images the second one covers it in 0 %."""
    random, covered = np.random.default_rng(0), 0
    for _ in range(200):
        of_seeds, of_images, of_both = (scale * random.standard_normal(shape) for scale, shape in zip(scales, ((3, 1), (1, 200), (3, 200))))
        noise = 0.1 + of_seeds + of_images + of_both
        values = {("xe", seed): {"un": np.zeros(200)} for seed in range(3)} | {("fcl", seed): {"un": noise[seed]} for seed in range(3)}
        found = table_per_image(values)["differences"]["fcl", "un"]
        covered += found.low <= 0.1 <= found.high
    assert covered >= scipy.stats.binom.ppf(0.001, 200, 0.95)


def test_intervals_hold_for_all_rows_at_once(three_seeds, evaluate):
    runs = [*three_seeds, *(evaluate("nfm", seed, {"un": value}) for seed, value in enumerate((0.5, 0.4, 0.6)))]
    found = tables.aggregate(runs)["differences"]["fcl", "un"]
    expected = scipy.stats.ttest_rel([0.60, 0.65, 0.70], [0.40, 0.35, 0.45]).confidence_interval(1 - 0.05 / 2)
    assert found[1:3] == pytest.approx((expected.low, expected.high))


def test_unverified_flip_rates_are_marked(evaluate):
    values = {"flips/mean": 0.1, "flips/mfr": 0.6, "flips/mfr_without_noise": 0.5, "flips/tilt": 0.05, "flips/rate/tilt": 0.7}
    part = {"verified": False, "source": "recalled"}
    runs = [{**evaluate(row, 0, values), "card": {"data": {}, "flips": {}, "flip_rates": part}} for row in ("xe", "fcl")]
    table = tables.aggregate(runs, {"xe": {"flips/mfr": [0.58, None], "flips/rate/tilt": [0.569, None]}})
    assert table["metrics"][:2] == ["flips/mean", "flips/mfr"] and table["details"] == ["flips/tilt", "flips/rate/tilt"]
    assert table["unverified"] == dict.fromkeys(["flips/mfr", "flips/mfr_without_noise", "flips/rate/tilt"], "recalled")
    text = report.to_markdown(table, "T")
    assert "| Mean flip rate (mFR) † |" in text and "| Flip rate, tilt † | 0.700 [0.690, 0.710] (paper 0.569) |" in text
    assert "| Mean flip probability (mFP) |" in text
    assert "† Divided by a reference network's numbers that were not verified (recalled)." in text
    assert "(mFR) †" in report.to_text(table) and report.to_text(table).endswith("(recalled).")
    page = report.to_html(table, "t")
    assert "Flip rate, tilt †</th>" in page and "0.700 <small>[0.690,\xa00.710]</small> <small>paper 0.569</small>" in page
    assert r"(mFR) \dag{}" in report.to_latex(table, "t")
    recorded = {(row["row"], row["metric"]): row for row in tables.results(table, "c", "x", {}, "")["rows"]}
    assert recorded["xe", "flips/mfr"]["unverified_reference"] and "unverified_reference" not in recorded["xe", "flips/mean"]
    verified = [{**run, "card": {"data": {}, "flips": {}, "flip_rates": {**part, "verified": True}}} for run in runs]
    assert not tables.aggregate(verified)["unverified"] and "†" not in report.to_markdown(tables.aggregate(verified), "T")
