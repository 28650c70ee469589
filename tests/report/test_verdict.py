"""The verdict's numbers against SciPy, and that it claims no more than the intervals allow."""

import numpy as np
import pytest
import scipy.stats

from tf_robust.report import tables
from tf_robust.report.verdict import verdict, verdict_sentences

IMAGES = 200


def per_image(values):
    """Like `evaluation.PerImage`, from {(row, measure): values}."""
    return lambda evaluation, measure: ("same", values[evaluation["row"], measure]) if (evaluation["row"], measure) in values else None


@pytest.fixture
def one_seed(evaluate):
    """Function {row: {measure: number of correct ones of 200 images}} -> table with per-image results of one seed.

    Rows differ on the first images only, so paired intervals are short.
    """

    def table(counts):
        values = {(row, measure): np.arange(IMAGES) < count for row, measures in counts.items() for measure, count in measures.items()}
        runs = [evaluate(row, 0, {measure: count / IMAGES for measure, count in measures.items()}) for row, measures in counts.items()]
        return tables.aggregate(runs, per_image=per_image(values))

    return table


def interval_of(first, second, comparisons=1):
    """SciPy's interval of the difference of two counts, in points, at the level of one of several comparisons."""
    first, second = (np.arange(IMAGES) < count for count in (first, second))
    low, high = scipy.stats.ttest_rel(first.astype(float), second.astype(float)).confidence_interval(1 - 0.05 / comparisons)
    return f"[{100 * low:.1f}, {100 * high:.1f}]"


def test_over_seeds_the_gain_has_the_paired_interval(three_seeds):
    low, high = scipy.stats.ttest_rel([0.60, 0.65, 0.70], [0.40, 0.35, 0.45]).confidence_interval()
    assert verdict_sentences(tables.aggregate(three_seeds)) == [
        f"fcl classifies 65.0% of images with uniform noise correctly, 25.0 points more than xe [{100 * low:.1f}, {100 * high:.1f}].",
        "The cost: no significant change on clean images (+0.0 points [-2.5, 2.5]) and the same training time.",
        "100 images, 3 seeds; in brackets paired 95% intervals over the seeds.",
    ]


def test_with_one_seed_the_interval_is_over_the_images(one_seed):
    table = one_seed({"xe": {"clean": 190, "corruptions/mean15": 120}, "noisymix": {"clean": 191, "corruptions/mean15": 150}})
    table["training_ratios"] = {"xe": 1.0, "noisymix": 2.94}
    assert verdict_sentences(table) == [
        f"noisymix classifies 75.0% of corrupted images correctly, 15.0 points more than xe {interval_of(150, 120)}.",
        f"The cost: no measurable loss on clean images (+0.5 points {interval_of(191, 190)}) and 2.9 times the training time.",
        "100 images, 1 seed; in brackets paired 95% intervals over the images; other seeds may differ.",
    ]


def test_where_interval_and_exact_test_disagree_the_p_value_is_shown(one_seed):
    text = verdict(one_seed({"xe": {"clean": 190, "un": 120}, "fcl": {"clean": 190, "un": 125}}))
    p = scipy.stats.binomtest(5, 5).pvalue  # McNemar's exact test: 0.0625
    assert f"not separated from xe (+2.5 points {interval_of(125, 120)}, p = {p:.2g} over the images)" in text


def test_an_interval_across_zero_is_not_separated(one_seed):
    text = verdict(one_seed({"xe": {"clean": 190, "un": 120}, "fcl": {"clean": 150, "un": 122}}))
    assert f"61.0% of images with uniform noise correctly, not separated from xe (+1.0 points {interval_of(122, 120)})" in text
    assert " more than xe" not in text
    assert f"The cost: 20.0 points on clean images {interval_of(190, 150)}" in text


def test_a_wide_interval_is_not_called_no_measurable_loss(evaluate):
    runs = [
        evaluate(row, seed, {"clean": clean, "un": un})
        for row, values in (("xe", ((0.9, 0.4), (0.8, 0.41), (0.9, 0.4))), ("fcl", ((0.8, 0.6), (0.9, 0.61), (0.89, 0.6))))
        for seed, (clean, un) in enumerate(values)
    ]
    assert "The cost: no significant change on clean images (-0.3 points [" in verdict(tables.aggregate(runs))


def test_gains_on_clean_images_and_other_losses_are_named(one_seed):
    text = verdict(one_seed({"xe": {"clean": 100, "un": 100, "nun": 150}, "fcl": {"clean": 120, "un": 150, "nun": 100}}))
    assert f"On clean images fcl gains +10.0 points {interval_of(120, 100)}." in text
    assert text.index("On clean") < text.index("The cost: 25.0")
    assert f"25.0 points on images with non-uniform noise {interval_of(150, 100)}" in text


def test_every_kind_of_images_has_its_best_model(one_seed):
    table = one_seed(
        {
            "xe": {"clean": 190, "corruptions/mean15": 100, "un": 100, "robust/l2_0.5": 10},
            "augmix": {"clean": 190, "corruptions/mean15": 160, "un": 140, "robust/l2_0.5": 12},
            "trades": {"clean": 150, "corruptions/mean15": 90, "un": 110, "robust/l2_0.5": 90},
        }
    )
    first, second, *costs, _ = verdict_sentences(table)
    assert first == (
        "Under corruptions and noise, augmix ranks first of 3 models: it classifies 80.0% of corrupted images correctly, 30.0 points "
        f"more than xe {interval_of(160, 100, 2)} and 70.0% of images with uniform noise (+20.0 {interval_of(140, 100, 2)})."
    )
    assert second.startswith("Under attacks, trades ranks first of 3 models: it classifies 45.0% of images changed by AutoAttack,")
    assert costs == [
        f"The cost of augmix: no measurable loss on clean images (+0.0 points {interval_of(190, 190)}) and the same training time.",
        f"The cost of trades: 20.0 points on clean images {interval_of(190, 150, 2)} and the same training time.",
    ]


def test_a_better_baseline_is_named(one_seed):
    text = verdict(one_seed({"xe": {"un": 150}, "one": {"un": 100}, "two": {"un": 120}}))
    assert text.startswith("Under noise, no model is better than xe; two comes closest and classifies 60.0% of images")
    assert f"15.0 points less than xe {interval_of(150, 120, 2)}" in text


def test_a_separated_loss_beside_the_headlines_is_a_cost(one_seed):
    rows = {"xe": {"clean": 190, "corruptions/mean15": 120, "corruptions/weather": 150}}
    rows["fcl"] = {"clean": 190, "corruptions/mean15": 150, "corruptions/weather": 120}
    text = verdict(one_seed(rows))
    assert f"15.0 points on images with weather corruptions {interval_of(150, 120)}" in text


def test_a_model_level_with_the_baseline_is_not_first(one_seed):
    text = verdict(one_seed({"xe": {"un": 150}, "one": {"un": 100}, "two": {"un": 150}}))
    assert text.startswith("Under noise, no model is better than xe; two is level and classifies 75.0% of images")


def test_close_followers_are_named(evaluate):
    runs = [evaluate(row, 0, {"un": value}) for row, value in (("xe", 0.4), ("fcl", 0.6), ("close", 0.595), ("far", 0.5))]
    text = verdict(tables.aggregate(runs))
    assert "Under noise, fcl ranks first of 4 models, before close (59.5%): it" in text
    assert "20.0 points more than xe." in text and "without per-image results, models are separated if their 95% intervals" in text


def test_the_best_separated_gain_is_named_before_a_larger_mean(evaluate):
    values = {"xe": (0.4, 0.41, 0.42), "steady": (0.44, 0.45, 0.461), "varying": (0.3, 0.46, 0.62)}
    runs = [evaluate(row, seed, {"un": value}) for row, all_of_row in values.items() for seed, value in enumerate(all_of_row)]
    low, high = scipy.stats.ttest_rel(values["steady"], values["xe"]).confidence_interval(1 - 0.05 / 2)
    assert verdict(tables.aggregate(runs)).startswith(
        "Under noise, steady has the largest separated gain of 2 models (varying: 46.0%, not separated): it classifies 45.0% of images "
        f"with uniform noise correctly, 4.0 points more than xe [{100 * low:.1f}, {100 * high:.1f}]."
    )


def test_first_in_one_kind_is_not_said_of_another(evaluate):
    values = {
        "xe": ((0.4, 0.3), (0.41, 0.31), (0.42, 0.32)),
        "steady": ((0.44, 0.5), (0.45, 0.51), (0.461, 0.522)),
        "varying": ((0.3, 0.4), (0.46, 0.41), (0.62, 0.42)),
    }
    runs = [
        evaluate(row, seed, {"un": un, "corruptions/mean15": mean})
        for row, of_row in values.items()
        for seed, (un, mean) in enumerate(of_row)
    ]
    text = verdict(tables.aggregate(runs))
    assert "Under noise, steady has the largest separated gain of 2 models (varying: 46.0%, not separated)" in text
    assert "Under corruptions, steady ranks first of 3 models: it" in text


def test_equal_models_are_level(evaluate):
    runs = [evaluate(row, 0, {"un": value}) for row, value in (("xe", 0.4), ("fcl", 0.6), ("same", 0.6))]
    assert verdict(tables.aggregate(runs)).startswith("Under noise, fcl ranks first of 3 models, level with same: it classifies 60.0%")


def test_two_seeds_are_said_to_be_few(evaluate):
    def text(seeds):
        rows = ("xe", 0.4, 0.01), ("fcl", 0.6, 0.012)
        return verdict(tables.aggregate([evaluate(row, seed, {"un": mean + slope * seed}) for row, mean, slope in rows for seed in seeds]))

    spans = [scipy.stats.t.ppf(0.975, freedom) for freedom in (1, 2)]
    assert f"Over two seeds such an interval spans {spans[0]:.1f} standard errors on each side, over three {spans[1]:.1f}" in text((0, 1))
    assert "two seeds" not in text((0, 1, 2))


def test_the_end_of_a_separated_interval_is_not_printed_as_zero(evaluate):
    gains = np.array([0.02, 0.03, 0.0418])
    runs = [
        evaluate(row, seed, {"un": 0.4 + gain}) for row, of_row in (("xe", 0 * gains), ("fcl", gains)) for seed, gain in enumerate(of_row)
    ]
    low, high = (100 * end for end in scipy.stats.ttest_1samp(gains, 0).confidence_interval())
    assert 0 < low < 0.4 and f"[{low:.1f}, {high:.1f}]" in verdict(tables.aggregate(runs))
    gains -= low / 100 - 0.0002
    runs = [
        evaluate(row, seed, {"un": 0.4 + gain}) for row, of_row in (("xe", 0 * gains), ("fcl", gains)) for seed, gain in enumerate(of_row)
    ]
    assert "more than xe [0.02, 5." in verdict(tables.aggregate(runs))


def test_other_measures_keep_their_unit(evaluate):
    runs = [evaluate(row, 0, {"flips/mean": value}) for row, value in (("xe", 0.5), ("fcl", 0.1))]
    assert verdict(tables.aggregate(runs)).startswith("fcl has a mean flip probability (mFP) of 0.100, 0.400 less than xe.")


def test_names_of_measures_have_their_article(evaluate):
    names = ("calibration/rms", "calibration/ece", "calibration/brier", "flips/mean")
    for name, expected in zip(names, ("an RMS calib", "an expected calib", "a Brier score", "a mean flip")):
        runs = [evaluate(row, 0, {name: value}) for row, value in (("xe", 0.5), ("fcl", 0.1))]
        assert verdict(tables.aggregate(runs)).startswith(f"fcl has {expected}")


def test_clean_accuracy_of_fractions_of_the_labels_is_not_the_cost(evaluate):
    runs = [
        evaluate(row, seed, {"label_fraction_0.1/clean": part + seed / 1000, "clean": clean + seed / 1000})
        for row, part, clean in (("xe", 0.4, 0.9), ("simclr", 0.5, 0.8))
        for seed in range(3)
    ]
    first, cost, _ = verdict_sentences(tables.aggregate(runs))
    assert "50.1% of clean images after training with 10% of the labels correctly, not separated from xe (+10.0 points" in first
    assert cost.startswith("The cost: no significant change on clean images (-10.0 points [-10.0, -10.0])")  # equal in all seeds


def test_times_of_pretrained_and_resumed_trainings_are_not_compared(evaluate):
    def ratios(**changed):
        runs = [evaluate("xe", 0, {"un": 0.4}), {**evaluate("fcl", 0, {"un": 0.6}), **changed}]
        return tables.aggregate(runs)["training_ratios"].get("fcl")

    assert ratios(training={"steps": 5, "seconds": 60.0}) == 2.0
    assert ratios(training={"steps": 6, "seconds": 60.0}) is None
    assert ratios(training={"steps": 5, "seconds": 0.001}) is None
    short = [{**evaluate(row, 0, {"un": 0.4}), "training": {"steps": 5, "seconds": time}} for row, time in (("xe", 5.0), ("fcl", 40.0))]
    assert tables.aggregate(short)["training_ratios"] == {}  # of building graphs
    assert ratios(method="linear_probe") is None


def test_one_model_falls_most_where_it_is_worst(evaluate):
    measures = {
        "clean": 0.95,
        "un": 0.7,
        "nun": 0.8,
        "corruptions/mean15": 0.75,
        "corruptions/noise": 0.6,
        "corruptions/blur": 0.8,
        "corruptions/fog": 0.5,
        "robust/l2_0.5": 0.1,
    }
    sentence, certainty = verdict_sentences(tables.aggregate([evaluate("mine", 0, measures)]))
    assert sentence == (
        "mine classifies 95.0% [94.0, 96.0] of clean images correctly. The accuracy falls to 10.0% [9.0, 11.0] on images changed by "
        "AutoAttack, L2 radius 0.5 (85.0 points less), to 50.0% [49.0, 51.0] on images corrupted by fog (45.0 points less), to 60.0% "
        "[59.0, 61.0] on images with noise corruptions (35.0 points less), and to 70.0% [69.0, 71.0] on images with uniform noise "
        "(25.0 points less)."
    )
    assert certainty == "100 images, 1 seed; in brackets 95% intervals over the images."


def test_one_model_whose_intervals_overlap_does_not_fall(evaluate):
    text = verdict(tables.aggregate([evaluate("mine", 0, {"clean": 0.95, "un": 0.94})]))
    assert "No change of the images lowers that significantly; the lowest accuracy is 94.0%" in text
    runs = [evaluate("mine", seed, {"clean": 0.95 + seed / 10, "un": 0.94 + seed / 10}) for seed in range(-2, 1)]
    assert "falls to 84.0%" in verdict(tables.aggregate(runs))  # paired over seeds, although the intervals are wide


def test_nothing_to_compare(three_seeds, evaluate):
    assert verdict(tables.aggregate(three_seeds[:1])).startswith("xe classifies 90.0% [89.0, 91.0] of clean images correctly.")
    assert verdict(tables.aggregate([evaluate("xe", 0, {"aurra": 0.5})])).startswith(
        "One model, xe. Accuracy when abstaining (AURRA): 0.500 [0.490, 0.510]."
    )
    text = verdict(tables.aggregate([three_seeds[0], evaluate("fcl", 5, {"un": 0.6})]))
    assert text == "No row shares a measure and a seed with xe: there is nothing to compare."


def test_the_falls_of_one_model_are_paired_over_the_images(one_seed):
    falls = one_seed({"mine": {"clean": 190, "un": 186}})
    assert "The accuracy falls to 93.0%" in verdict(falls)  # although the two intervals overlap
    low, high = (falls["falls"]["un"][end] for end in ("low", "high"))
    assert f"[{100 * low:.1f}, {100 * high:.1f}]" == interval_of(186, 190)
    assert "No change of the images lowers that significantly" in verdict(one_seed({"mine": {"clean": 190, "un": 189}}))


def test_corruptions_in_an_order_of_their_own_are_not_paired_with_the_clean_images(evaluate):
    values = {"clean": ("one", np.arange(IMAGES) < 190), "corruptions/fog/1": ("two in another order", np.arange(IMAGES)[::-1] < 186)}
    run = evaluate("mine", 0, {measure: correct.mean() for measure, (_, correct) in values.items()})
    assert tables.aggregate([run], per_image=lambda _, measure: values[measure])["falls"] == {}


def test_one_model_that_abstains(evaluate):
    values = {"clean": 0.9, "corruptions/mean15": 0.5}
    for name, coverage, accuracy in (("", 0.92, 0.967), ("severity_1/", 0.8, 0.9), ("severity_5/", 0.77, 0.521)):
        values |= {f"abstention/{name}coverage": coverage, f"abstention/{name}accuracy": accuracy}
    assert (
        "With its threshold of abstention it answers 92.0% of clean images with an accuracy of 96.7% and 77.0% of corrupted images of "
        "severity 5 with an accuracy of 52.1%."
    ) in verdict(tables.aggregate([evaluate("a", 0, values)]))


def test_size_and_latency_are_not_compared(evaluate):
    rows = [evaluate(name, 0, {"clean": clean, "deployed/bytes": size}) for name, clean, size in (("float", 0.9, 4.0), ("int8", 0.8, 1.0))]
    text = verdict(tables.aggregate(rows))
    assert "int8 classifies 80.0% of clean images correctly" in text and "size" not in text


def test_the_best_of_many_rows_without_differences_is_rarely_called_better(evaluate):
    """Unadjusted intervals claim a gain in about one of five tables with 12 rows."""
    random, claims = np.random.default_rng(0), 0
    for _ in range(60):
        images = {(f"row_{i}", "un"): random.random(IMAGES) < 0.5 for i in range(13)}
        runs = [evaluate(row, 0, {"un": correct.mean()}) for (row, _), correct in images.items()]
        text = verdict(tables.aggregate(runs, baseline="row_0", per_image=per_image(images)))
        claims += " more than row_0" in text
    assert claims <= 60 * 0.05 + 3 * np.sqrt(60 * 0.05 * 0.95)


def test_equal_differences_in_all_seeds_are_not_significant_by_themselves(evaluate):
    runs = [evaluate(row, seed, {"un": value}) for row, value in (("xe", 0.4), ("fcl", 0.45)) for seed in range(2)]
    assert "not separated from xe (+5.0 points" in verdict(tables.aggregate(runs))
    images = {("xe", "un"): np.arange(IMAGES) < 80, ("fcl", "un"): np.arange(IMAGES) < 90}
    assert "5.0 points more than xe" in verdict(tables.aggregate(runs, per_image=per_image(images)))
