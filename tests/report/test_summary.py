"""The numbers of the summary against SciPy, and that it claims no more than the intervals allow; notes on what the metrics depend on."""

import types

import numpy as np
import pytest
import scipy.stats

from tf_robust import evaluation, report
from tf_robust.report import summary, tables

IMAGES = 200
CLEAN = "Clean accuracy"


def lines_of(table):
    return dict(summary.summarize(table))


@pytest.fixture
def one_seed(table_per_image):
    """Function {row: {metric: number of correct ones of 200 images}} -> table with results per image of one seed.

    Rows differ on the first images only, so paired intervals are short.
    """

    def table(counts):
        return table_per_image(
            {(row, 0): {metric: np.arange(IMAGES) < count for metric, count in of_row.items()} for row, of_row in counts.items()}
        )

    return table


def interval_of(first, second, comparisons=1):
    """SciPy's interval of the difference of two counts, in points, at the level of one of several comparisons."""
    first, second = (np.arange(IMAGES) < count for count in (first, second))
    low, high = scipy.stats.ttest_rel(first.astype(float), second.astype(float)).confidence_interval(1 - 0.05 / comparisons)
    return f"[{100 * low:.1f}, {100 * high:.1f}]"


def test_over_seeds_the_gain_has_the_paired_interval(three_seeds):
    low, high = scipy.stats.ttest_rel([0.60, 0.65, 0.70], [0.40, 0.35, 0.45]).confidence_interval()
    assert summary.summarize(tables.aggregate(three_seeds)) == [
        ("Uniform noise (UN)", f"best fcl 65.0%, +25.0 points [{100 * low:.1f}, {100 * high:.1f}] vs xe, significant"),
        ("Clean accuracy (BAL)", "fcl 91.0%, +0.0 points [-2.5, 2.5] vs xe, not significant"),
        ("Training time", "fcl 1.0 times that of xe"),
        ("Measured on", "100 images, 3 seeds; 95% intervals: paired over the seeds"),
    ]


def test_with_one_seed_the_interval_is_over_the_images(one_seed):
    table = one_seed({"xe": {"clean": 190, "corruptions/mean15": 120}, "noisymix": {"clean": 191, "corruptions/mean15": 150}})
    table["training_ratios"] = {"xe": 1.0, "noisymix": 2.94}
    assert summary.summarize(table) == [
        ("Mean over 15 corruptions", f"best noisymix 75.0%, +15.0 points {interval_of(150, 120)} vs xe, significant"),
        (CLEAN, f"noisymix 95.5%, +0.5 points {interval_of(191, 190)} vs xe, not significant"),
        ("Training time", "noisymix 2.9 times that of xe"),
        ("Measured on", "100 images, 1 seed; 95% intervals: paired over the images"),
    ]


def test_without_results_per_image_the_interval_is_newcombes(evaluate):
    runs = [evaluate(row, 0, {"un": value}) for row, value in (("xe", 0.4), ("fcl", 0.6))]
    lines = lines_of(tables.aggregate(runs))
    half = 100 * np.hypot(0.01, 0.01)
    assert lines["Uniform noise (UN)"] == f"best fcl 60.0%, +20.0 points [{20 - half:.1f}, {20 + half:.1f}] vs xe, significant"
    assert lines["Measured on"] == "100 images, 1 seed; 95% intervals: unpaired (Newcombe's)"


def test_every_kind_of_images_has_its_best_model_and_each_of_these_its_clean_accuracy(one_seed):
    table = one_seed(
        {
            "xe": {"clean": 190, "corruptions/mean15": 100, "un": 100, "robust/l2_0.5": 10},
            "augmix": {"clean": 190, "corruptions/mean15": 160, "un": 140, "robust/l2_0.5": 12},
            "trades": {"clean": 150, "corruptions/mean15": 90, "un": 110, "robust/l2_0.5": 90},
        }
    )
    lines, noise, attacks = lines_of(table), "Uniform noise (UN)", "AutoAttack, L2 radius 0.5"
    assert list(lines) == ["Mean over 15 corruptions", noise, attacks, CLEAN, "Training time", "Measured on"]
    assert lines[noise] == f"best augmix 70.0%, +20.0 points {interval_of(140, 100, 2)} vs xe, significant"
    assert lines[attacks] == f"best trades 45.0%, +40.0 points {interval_of(90, 10, 2)} vs xe, significant"
    assert lines["Measured on"].endswith("; for 2 models at once")
    assert [numbers.split()[0] for label, numbers in summary.summarize(table) if label == CLEAN] == ["augmix", "trades"]


def test_without_a_mean_every_single_corruption_is_compared(one_seed):
    rows = {"xe": {"corruptions/fog": 100, "corruptions/snow": 90}, "fcl": {"corruptions/fog": 101, "corruptions/snow": 120}}
    lines = lines_of(one_seed(rows))
    assert lines["Fog"].endswith("not significant") and lines["Snow"].endswith(", significant")


def test_a_better_baseline_is_named(one_seed):
    lines = lines_of(one_seed({"xe": {"un": 150}, "one": {"un": 100}, "two": {"un": 120}}))
    expected = f"best xe (the baseline) 75.0%; next two 60.0%, -15.0 points {interval_of(120, 150, 2)} vs xe, significant"
    assert lines["Uniform noise (UN)"] == expected


def test_of_two_models_the_significant_losses_of_other_metrics_and_of_single_corruptions_are_named(one_seed):
    names = ("clean", "corruptions/mean15", "corruptions/weather", "corruptions/fog", "corruptions/fog/5")
    rows = {"xe": dict(zip(names, (190, 150, 150, 150, 150))), "fcl": dict(zip(names, (190, 140, 120, 100, 90)))}
    first, second = lines_of(one_seed(rows))["Significantly worse"].split("; ")
    assert first.startswith("fcl: ") and first.endswith(f" -15.0 points {interval_of(120, 150)}")
    assert second == f"Fog -25.0 points {interval_of(100, 150)}"


def test_metrics_without_any_interval(evaluate):
    runs = [evaluate(row, 0, {"calibration/rms": value}) for row, value in (("xe", 0.2), ("fcl", 0.1))]
    for run in runs:
        run["rows"][0].update(low=None, high=None)
    assert lines_of(tables.aggregate(runs))["RMS calibration error"] == "best fcl 0.100, -0.100 vs xe, no interval"


def test_a_significant_gain_is_named_beside_a_larger_mean(evaluate):
    values = {"xe": (0.4, 0.41, 0.42), "steady": (0.44, 0.45, 0.461), "varying": (0.3, 0.46, 0.62)}
    runs = [evaluate(row, seed, {"un": value}) for row, all_of_row in values.items() for seed, value in enumerate(all_of_row)]
    low, high = scipy.stats.ttest_rel(values["steady"], values["xe"]).confidence_interval(1 - 0.05 / 2)
    (_, best), (_, gain), *_ = summary.summarize(tables.aggregate(runs))
    assert best.startswith("best varying 46.0%, +5.0 points [") and best.endswith("not significant")
    assert gain == f"steady 45.0%, +4.0 points [{100 * low:.1f}, {100 * high:.1f}] vs xe, significant"


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


def test_one_model_has_its_accuracies_and_differences_to_clean_images(evaluate):
    metrics = {"clean": 0.95, "un": 0.7, "nun": 0.8, "corruptions/mean15": 0.75, "corruptions/noise": 0.6, "corruptions/fog": 0.5}
    half = 100 * np.hypot(0.01, 0.01)
    table = tables.aggregate([evaluate("mine", 0, {**metrics, "robust/l2_0.5": 0.1})])
    assert summary.summarize(table) == [
        (CLEAN, "mine 95.0% [94.0, 96.0]"),
        *(
            (label, f"{value:.1f}% [{value - 1:.1f}, {value + 1:.1f}], {change:.1f} points [{change - half:.1f}, {change + half:.1f}] "
             "vs clean, significant")
            for label, value, change in (
                ("Mean over 15 corruptions", 75, -20),
                ("Uniform noise (UN)", 70, -25),
                ("AutoAttack, L2 radius 0.5", 10, -85),
                ("Fog, the lowest of the corruptions", 50, -45),
            )
        ),
        ("Measured on", "100 images, 1 seed; 95% intervals"),
    ]  # fmt: skip


def test_one_model_without_a_difference(evaluate):
    assert lines_of(tables.aggregate([evaluate("mine", 0, {"clean": 0.95, "un": 0.94})]))["Uniform noise (UN)"].endswith(
        ", -1.0 points [-2.4, 0.4] vs clean, not significant"
    )
    runs = [evaluate("mine", seed, {"clean": 0.95 + seed / 10, "un": 0.94 + seed / 10 + seed**2 / 1e4}) for seed in range(-2, 1)]
    assert lines_of(tables.aggregate(runs))["Uniform noise (UN)"].endswith("vs clean, significant")  # paired over seeds


def test_the_differences_of_one_model_are_paired_over_the_images(one_seed):
    line = lines_of(one_seed({"mine": {"clean": 190, "un": 180}}))["Uniform noise (UN)"]
    assert line.endswith(f"-5.0 points {interval_of(180, 190)} vs clean, significant")


def test_nothing_to_compare(three_seeds, evaluate):
    assert lines_of(tables.aggregate(three_seeds[:1]))["Clean accuracy (BAL)"] == "xe 90.0% [89.0, 91.0]"
    assert lines_of(tables.aggregate([evaluate("xe", 0, {"aurra": 0.5})]))["Accuracy when abstaining (AURRA)"] == "xe 0.500 [0.490, 0.510]"
    text = summary.summary_lines(tables.aggregate([three_seeds[0], evaluate("fcl", 5, {"un": 0.6})]))
    assert text == ["Comparison: no row shares a metric and a seed with xe."]


def test_corruptions_in_an_order_of_their_own_are_not_paired_with_the_clean_images(evaluate):
    values = {"clean": ("one", np.arange(IMAGES) < 190), "corruptions/fog/1": ("two in another order", np.arange(IMAGES)[::-1] < 186)}
    run = evaluate("mine", 0, {metric: correct.mean() for metric, (_, correct) in values.items()})
    assert tables.aggregate([run], per_image=lambda _, metric: values[metric])["falls"] == {}


def test_one_model_that_abstains(evaluate):
    values = {"clean": 0.9, "corruptions/mean15": 0.5}
    for name, coverage, accuracy in (("", 0.92, 0.967), ("severity_1/", 0.8, 0.9), ("severity_5/", 0.77, 0.521)):
        values |= {f"abstention/{name}coverage": coverage, f"abstention/{name}accuracy": accuracy}
    lines = lines_of(tables.aggregate([evaluate("a", 0, values)]))
    assert lines["Abstention, clean images"] == "92.0% answered, accuracy 96.7%"
    assert lines["Abstention, corrupted images of severity 5"] == "77.0% answered, accuracy 52.1%"


def test_size_and_latency_are_not_compared(evaluate):
    rows = [evaluate(name, 0, {"clean": clean, "deployed/bytes": size}) for name, clean, size in (("float", 0.9, 4.0), ("int8", 0.8, 1.0))]
    assert [label for label, _ in summary.summarize(tables.aggregate(rows))] == [CLEAN, "Training time", "Measured on"]


def test_the_best_of_many_rows_without_differences_is_rarely_called_better(table_per_image):
    """Unadjusted intervals claim a gain in about one of five tables with 12 rows."""
    random, claims = np.random.default_rng(0), 0
    for _ in range(60):
        table = table_per_image({(f"row_{i}", 0): {"un": random.random(IMAGES) < 0.5} for i in range(13)}, baseline="row_0")
        lines = summary.summarize(table)
        claims += any(", significant" in numbers and "+" in numbers for _, numbers in lines)
    assert claims <= 60 * 0.05 + 3 * np.sqrt(60 * 0.05 * 0.95)


def test_equal_differences_in_all_seeds_are_not_significant_by_themselves(evaluate, table_per_image):
    runs = [evaluate(row, seed, {"un": value}) for row, value in (("xe", 0.4), ("fcl", 0.45)) for seed in range(2)]
    assert lines_of(tables.aggregate(runs))["Uniform noise (UN)"].endswith("vs xe, not significant")
    counts = {"xe": 80, "fcl": 90}
    table = table_per_image({(row, seed): {"un": np.arange(IMAGES) < count} for row, count in counts.items() for seed in range(2)})
    assert lines_of(table)["Uniform noise (UN)"] == f"best fcl 45.0%, +5.0 points {interval_of(90, 80)} vs xe, significant"


# --- notes


def test_a_certificate_is_reported_with_its_noise_and_its_largest_radius(evaluate):
    part = {"sigma": 0.25, "selection": 100, "samples": 1000, "alpha": 0.001}
    run = {**evaluate("noised", 0, {"certified/l2_0.25": 0.6}), "card": {"data": {}, "certified": part}}
    (note,) = report.evaluation_notes([run, run])
    largest = 0.25 * scipy.stats.norm.ppf(0.001 ** (1 / 1000))  # all copies of the selected class
    assert note.startswith("noised: certified accuracy") and f"no l2 radius above {largest:.2f} " in note
    assert all(text in note for text in ("standard deviation 0.25", "confidence 0.999", "100 noisy copies", "1,000 to bound"))


def test_means_over_other_severities_are_named(evaluate):
    run = {**evaluate("a", 0, {"corruptions/mean15": 0.6}), "card": {"corruption_means": {"means_over_severities": [1, 3, 5]}}}
    other = {**evaluate("b", 0, {"corruptions/mean15": 0.6}), "card": {}}
    assert report.evaluation_notes([run, other]) == ["a: means over corruptions are of severity 1, 3, 5 alone."]


def test_few_bins_of_the_calibration_error_are_named(evaluate):
    few, many = ({**evaluate(row, 0, {"calibration/rms": 0.02}), "card": {}} for row in ("few", "many"))
    few["rows"][0]["count"], many["rows"][0]["count"] = 160, 500
    (note,) = report.evaluation_notes([few, many])
    assert note.startswith("few: RMS calibration error: 160 images in bins of 100, ")
    few["rows"][0]["metric"] = "adapted/calibration/rms"
    assert report.evaluation_notes([few]) == [note]


def sized(evaluation_of_run, corrupted_at, model_input, **more):
    sizes = {"corrupted_at": [corrupted_at] * 2, "model_input": [model_input] * 2}
    return {**evaluation_of_run, "card": {"data": more.pop("data", {}), "sizes": sizes}}


def test_each_kind_of_resizing_is_stated(evaluate):
    metrics = {"clean": 0.9, "corruptions/mean15": 0.5}
    same, enlarged, also = (sized(evaluate(row, 0, metrics), 32, side) for row, side in (("a", 32), ("b", 224), ("c", 224)))
    assert report.evaluation_notes([same, evaluate("old", 0, metrics)]) == []
    assert report.evaluation_notes([same, enlarged, also]) == [
        "b, c: corruptions applied at 32x32 pixels, resized to 224x224 for the network."
    ]
    files = sized(evaluate("d", 0, {"un": 0.5, "flips/mean": 0.1}), 224, 224, data={"image_fit": "cropped to 224x224"})
    assert report.evaluation_notes([files]) == [
        "d: perturbations and noise applied at 224x224 pixels, image files resized before (cropped to 224x224)."
    ]
    assert report.evaluation_notes([sized(evaluate("e", 0, {"clean": 0.5}), 32, 224)]) == []  # nothing is applied


@pytest.mark.parametrize(
    "input_size, flags, expected",
    [(0, {}, 16), (64, {}, 64), (0, {"resize": "48"}, 48), (0, {"resize": "8"}, 8), (64, {"resize": "96"}, 64), (0, [], 16)],
)
def test_the_size_that_the_network_sees(source, input_size, flags, expected):
    predict = types.SimpleNamespace(interface=types.SimpleNamespace(input_size=input_size), card={"flags": flags})
    assert evaluation.image_sizes(source(), predict) == {"corrupted_at": [16, 16], "model_input": [expected] * 2}


def test_different_numbers_of_seeds_are_named():
    def run(row, seed):
        return {"row": row, "seed": seed, "rows": [], "split": "test"}

    runs = [run("a", seed) for seed in range(5)] + [run("b", seed) for seed in range(3)]
    assert report.evaluation_notes(runs) == ["Seeds: a 5, b 3."] and report.evaluation_notes(runs[5:]) == []
    assert report.evaluation_notes([*runs[:3], *runs[5:]]) == []
