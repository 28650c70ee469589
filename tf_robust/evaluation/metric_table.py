"""The table of all metrics: names, definitions, units, directions, and the options that an evaluation needs to give them.

Everything that depends on a metric reads this table: descriptions, checks of `--require`, order of reports, evaluation cards, per-image
values, the choice of an epoch. A new metric is one entry here and the function that computes it.

The key of an entry is the name of a metric, such as `clean`, or the pattern of several names, such as `corruptions/{corruption}`, whose
fields are defined in `_FIELDS`. The first entry that matches a name holds.
"""

import dataclasses
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial

from tf_robust import attacks, corruptions, metrics
from tf_robust.configs.evaluation import ALL_SEVERITIES, CLEAN_EVALUATIONS, NOISE_FLOORS, EvalConfig
from tf_robust.corruptions import severities

__all__ = ["METRICS", "Metric"]

FRACTION = "Fraction, 0 to 1"
COUNT = "Count"
_RATIO = "Ratio, 1 is AlexNet's"
_ACCURACY = "Accuracy on "  # begins the definition of an accuracy, before its images
_CHECKS = ("noise", "one_step", "ten_steps", "hundred_steps", "half_radius", "double_radius", "large_radius", "black_box", "pgd")
_SCORES = {"max_logit": "largest logit", "energy": "energy", "knn": "nearest neighbors of the embedding"}
_NORMS = {"l0": "L0", "l1": "L1", "l2": "L2", "linf": "L∞"}


class Field(typing.NamedTuple):
    """A field of a pattern: the regular expression of its values, a function value -> words, and an example."""

    regex: str
    words: Callable[[str], str]
    example: str


def words(name: str) -> str:
    """Returns the name of a corruption, perturbation or check in words."""
    return name.replace("_", " ").replace("jpeg", "JPEG").replace("gaussian", "Gaussian")


def _names(names: Iterable[str], example: str, to_words: Callable[[str], str] = words) -> Field:
    return Field("|".join(map(re.escape, names)), to_words, example)


def _group_words(group):
    if group.startswith("severity_"):
        return f"corrupted images, {words(group[:-1])}"
    return group[len("shift/") : -1] or "clean images"


_FIELDS = {
    "corruption": Field(r"[A-Za-z]\w*", words, "fog"),  # of `corruptions.CORRUPTIONS`, to which users may add
    "attack": Field(r"[A-Za-z]\w*", words, "auto_pgd"),  # of `attacks.ATTACKS`, likewise
    "bar": _names((name for names in metrics.BAR.values() for name in names), "ripple"),
    "severity": _names(map(str, ALL_SEVERITIES), "3"),
    "sequence": _names(corruptions.SEQUENCES, "tilt"),
    "imagenet_sequence": _names(metrics.PERTURBATIONS, "tilt"),
    "floor": _names((f"{floor:g}" for floor in NOISE_FLOORS), "0.1"),
    "ball": _names(("l2", "linf"), "linf", _NORMS.__getitem__),
    "norm": _names(_NORMS, "l2", _NORMS.__getitem__),
    "radius": Field(r"[\d.]+(?:e-?\d+)?(?:/\d+)?", str, "8/255"),
    "l2_radius": Field(r"[\d.]+(?:e-?\d+)?", str, "0.5"),
    "positive_radius": Field(r"(?!0$)[\d.]+(?:e-?\d+)?", str, "0.5"),
    "check": _names(_CHECKS, "noise"),
    "score": _names(_SCORES, "energy", _SCORES.__getitem__),
    "name": Field(r".+", str, "NAME"),  # of a class, a group or a data set
    "group": Field(r"(?:severity_[1-5]/|shift/.+/)?", _group_words, ""),  # of images with fitted confidences; empty: clean images
}


class Option(typing.NamedTuple):
    """An option of an evaluation that metrics need.

    `values` are texts; one is needed, the best advice is first, with the fields of the pattern in braces; or a function (values of the
    fields, EvalConfig) -> texts, none if the option is not needed. None: any value but the default, such as the example.
    """

    name: str  # field of `EvalConfig`
    values: tuple[str, ...] | Callable[[Mapping[str, str], EvalConfig], Iterable[str]] | None = None
    example: str = ""


@dataclasses.dataclass(frozen=True)
class Metric:
    """A metric, or all metrics whose names have one pattern. Title and text may have the fields of the pattern in braces.

    Examples:
        >>> from tf_robust.evaluation.metric_table import METRICS
        >>> metric = METRICS["calibration/rms"]
        >>> metric.title, metric.direction, metric.evaluations
        ('RMS calibration error', 'lower', ('calibration',))
        >>> metric.compute(np.array([0.9, 0.6]), np.array([True, False]))
        0.25
    """

    pattern: str  # name in `evaluation.json`; its part before the first slash is the family
    title: str  # long name, such as "Uniform noise (UN)"
    text: str  # definition in one line; for an accuracy "Accuracy on IMAGES" or "Accuracy on IMAGES: details"
    unit: str = FRACTION  # of the values
    direction: typing.Literal["higher", "lower", ""] = "higher"  # is better; empty for a number that was fitted on validation images
    evaluations: tuple[str, ...] = ()  # one of them is needed; empty: none
    options: tuple[Option, ...] = ()  # further options that are needed
    headline: bool = False  # whether reports show it first, and others of its family without this mark later
    detail: bool = False  # whether it is about one corruption, perturbation, class, group, score or check, and not a mean or a count
    change: str = ""  # applied to the images: corruptions, perturbations, noise, attacks, shifts, Gaussian noise; or nothing
    card: str = ""  # part of the evaluation card that it depends on besides `data`; empty: the one of its family
    record_field: str = ""  # field of the record of every set of images that has the value; empty: it is computed from several fields
    compute: Callable | None = None  # of `record_field`: (confidences [N], correct [N]) -> value; None: mean of the field of `ImageResults`
    per_image: str | Callable | None = None  # values of `record_field` for each image: another field, or (confidences, correct) -> [N]
    section: str = "Other"  # heading in lists of metrics

    @property
    def family(self) -> str:
        """The part of the names before the first slash."""
        return self.pattern.partition("/")[0]

    @property
    def example(self) -> str:
        """The name, or one of the names."""
        return self.pattern.format(**{name: field.example for name, field in _FIELDS.items()})

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """The pattern as a regular expression, with a named group for each field."""
        parts = re.split(r"{(\w+)}", self.pattern)
        parts[0::2] = map(re.escape, parts[0::2])
        parts[1::2] = [f"(?P<{name}>{_FIELDS[name].regex})" for name in parts[1::2]]
        return re.compile("".join(parts), re.DOTALL)


class Match(typing.NamedTuple):
    """The metric of a name: the entry of the table, and {field of the pattern: value in the name}."""

    metric: Metric
    values: dict[str, str]

    @property
    def is_detail(self) -> bool:
        """Whether it is a detail of other metrics, as in `Metric`; for fitted confidences also on other images than clean ones."""
        return self.metric.detail or bool(self.values.get("group"))

    def format(self, text: str) -> str:
        """Returns a text with the fields of the pattern in words."""
        return text.format(**{name: _FIELDS[name].words(value) for name, value in self.values.items()})

    @property
    def images(self) -> str:
        """The images of an accuracy, such as "images with uniform noise"; empty for other metrics."""
        text = self.metric.text
        return self.format(text.removeprefix(_ACCURACY).partition(": ")[0]) if text.startswith(_ACCURACY) else ""

    def needed(self, eval_config: EvalConfig) -> list[tuple[Option, tuple[str, ...] | None]]:
        """Returns the options that the metric needs, each with the texts as in `Option`."""
        needed: list[tuple[Option, tuple[str, ...] | None]] = []
        for option in (Option("evaluations", self.metric.evaluations), *self.metric.options):
            if option.values is None:
                needed.append((option, None))
            elif callable(option.values):
                needed.append((option, tuple(option.values(self.values, eval_config))))
            else:
                needed.append((option, tuple(text.format(**self.values) for text in option.values)))
        return [(option, texts) for option, texts in needed if texts != ()]


def find_metric(name: str) -> Match:
    """Returns the metric of a name, without the prefix of an adapted model or of few labels; one without a text if it is unknown."""
    if name in METRICS:
        return Match(METRICS[name], {})
    family = name.partition("/")[0]
    for metric in METRICS.values():
        if metric.family == family and (match := metric.regex.fullmatch(name)):
            values = match.groupdict()
            known: dict[str, Mapping] = {"corruption": corruptions.CORRUPTIONS, "attack": attacks.ATTACKS}
            is_known = all(values[field] in known[field] for field in known.keys() & values.keys())
            return Match(metric if is_known else dataclasses.replace(metric, text=""), values)
    return Match(Metric(name, name, ""), {})


def examples() -> dict[str, list[str]]:
    """Returns {section: names of metrics, one of each pattern}."""
    names: dict[str, list[str]] = {}
    for metric in METRICS.values():
        names.setdefault(metric.section, []).append(metric.example)
    return {**names, "Test-time adaptation": ["adapted/clean", "adapted/corruptions/mean15"]}


def _bar_constants(values, _):
    sets = [("imagenet" if name == "imagenet" else "cifar", name) for name in severities.SETS]
    return [*(name for bar, name in sets if values["bar"] in metrics.BAR[bar]), "auto"]


def _unless_chosen(name: str) -> Option:
    """The option of a corruption, which is needed where an evaluation has others."""

    def values(fields, eval_config):
        corruption = fields.get("corruption", name)
        return () if corruption in (eval_config.corruptions or metrics.MEANS["mean19"]) else (corruption,)

    return Option("corruptions", values)


def _square(_, eval_config):  # of AutoAttack alone, a model without gradients leaves Square
    return ("square", "autoattack") if eval_config.attack == ("autoattack",) else ("square",)


def _check_radii(values, eval_config):
    prefix = f"{values['ball']}_"
    return [threat for threat in eval_config.attack_radii if threat.startswith(prefix)] or [f"{prefix}RADIUS"]


def _fitted_evaluations(values, eval_config):
    if "group" not in values:  # a number that is fitted where there are images to apply it to
        return () if eval_config.shifts else (*CLEAN_EVALUATIONS, "corruptions")
    return {"": CLEAN_EVALUATIONS, "severity": ("corruptions",)}.get(values["group"].partition("_")[0], ())


def _of_group(option: str, prefix: str) -> Option:
    """An option that only groups with a prefix need: its value is the rest of the group."""
    return Option(option, lambda values, _: [values["group"][len(prefix) : -1]] if values.get("group", "").startswith(prefix) else [])


_SEVERITY = Option("severities", ("{severity}",))
_IMAGENET = Option("corruption_constants", ("imagenet", "auto"))  # AlexNet's errors may normalize; the data decide
_ALEXNET = (_IMAGENET, *(Option("severities", (str(severity),)) for severity in ALL_SEVERITIES))
_BAR = Option("corruption_constants", _bar_constants)
_THREAT = Option("attack_radii", ("{ball}_{radius}",))
_BY_GRADIENT = Option("attack", ("autoattack", "pgd"))
_CHECK_ATTACKS = Option("attack", lambda values, _: ("pgd",) if values["check"] == "pgd" else ("autoattack", "pgd"))
_CHECKED = Option("attack_checks", ("true",))
_SEQUENCE = Option(
    "sequences",
    lambda values, _: [one for one in ("all", "imagenet_p", "cifar_p") if values["sequence"] in corruptions.sequence_names(one)],
)
_FITTED = (Option("evaluations", _fitted_evaluations), _of_group("severities", "severity_"), _of_group("shifts", "shift/"))

_slice = partial(Metric, evaluations=("slices",))
_group = partial(_slice, options=(Option("groups", example="COLUMN"),), card="groups")
_noise = partial(Metric, evaluations=("noise",), change="noise", card="noise")
_corruption = partial(Metric, evaluations=("corruptions",), change="corruptions", detail=True)


def _corrupted(*args, members: Iterable[str] = metrics.BENCHMARK, options: Iterable[Option] = (), **kwargs) -> Metric:
    """A metric that needs several corruptions."""
    needed = (*options, *map(_unless_chosen, members))
    return dataclasses.replace(Metric(*args, **kwargs), evaluations=("corruptions",), change="corruptions", options=needed)


_bar = partial(Metric, evaluations=("corruptions_bar",), change="corruptions")
_flips = partial(Metric, direction="lower", evaluations=("perturbations",), change="perturbations")
_rate = partial(_flips, unit=_RATIO, card="flip_rates", options=(Option("sequences", ("all", "imagenet_p")), _IMAGENET))
_attacked = partial(Metric, evaluations=("adversarial",), change="attacks")
_checked = partial(Metric, evaluations=("adversarial",))
_curves = partial(Metric, evaluations=("attack_curves",), change="attacks")
_smoothed = partial(Metric, evaluations=("certified",), change="Gaussian noise")
_calibration = partial(Metric, direction="lower", evaluations=("calibration",), card="calibration")
_scaled = partial(Metric, direction="lower", card="confidence", options=(Option("calibrate", example="temperature"), *_FITTED))
_abstention = partial(Metric, card="confidence", options=(Option("abstain_accuracy", example="0.95"), *_FITTED))
_conformal = partial(Metric, card="confidence", options=(Option("conformal", example="0.9"), *_FITTED))
_open_set = partial(Metric, options=(Option("ood", ("{name}",)),))
_open_set_by = partial(Metric, options=(Option("ood", ("{name}", "{name}/{score}")),), detail=True)
_utility = partial(Metric, evaluations=("utility",), unit="Ratio")

_REPLACED = f"{corruptions.RATE:.0%} of their locations replaced by random gray values"
_FRAMES = "Fraction of predictions that change from frame to frame"
_PIXELS = "Norm of the change of pixels in [0, 1]"
_AUROC = "Area under the ROC curve, clean images against {name}, other classes, by the"
_FPR95 = "Fraction of {name}, other classes, that is accepted where 95% of the clean images are, by the"
_UTILITY = "Contextual utility of the corners divided by that of the center"

# fmt: off
_SECTIONS: dict[str, tuple[Metric, ...]] = {  # {heading in lists: metrics}; a row is a paragraph
    "Accuracy": (
        Metric("clean", "Clean accuracy", "Accuracy on clean images", evaluations=("clean",), headline=True),
        Metric("bal", "Clean accuracy (BAL)", "Accuracy on clean images: as many of each class", evaluations=("clean",)),
        Metric("bal/rare", "Clean accuracy, rare classes", "Accuracy on clean images of the rare classes: a corner digit decides the class",
               evaluations=("utility",)),
        Metric("clean/per_class", "Clean accuracy, mean over classes", "Mean over classes of the accuracy on clean images",
               evaluations=("clean",)),
    ),
    "Classes and groups": (
        _slice("classes/worst", "Accuracy of the worst class", "Lowest accuracy on the clean images of a class"),
        _slice("classes/gap", "Gap between best and worst class", "Highest minus lowest accuracy of a class", direction="lower"),
        _slice("class/{name}", "Accuracy, class {name}", "Accuracy on clean images of the class {name}", detail=True),
        _group("groups/worst", "Accuracy of the worst group", "Lowest accuracy on the clean images of a group"),
        _group("groups/gap", "Gap between best and worst group", "Highest minus lowest accuracy of a group", direction="lower"),
        _group("group/{name}", "Accuracy, group {name}", "Accuracy on clean images of the group {name}", detail=True),
    ),
    "Shifted data": (
        Metric("shift/{name}", "Accuracy on {name}", "Accuracy on images of {name}: the same classes under other conditions",
               options=(Option("shifts", ("{name}",)),), change="shifts"),
    ),
    "Noise": (
        _noise("un", "Uniform noise (UN)", f"Accuracy on images with uniform noise: {_REPLACED}"),
        _noise("nun", "Non-uniform noise (NUN)",
               f"Accuracy on images with non-uniform noise: {_REPLACED}, most often those that vary little over the training images"),
        _noise("nun/floor_{floor}", "Non-uniform noise, floor {floor}", evaluations=("noise_floor",),
               text="Accuracy on images with non-uniform noise: {floor} added to the standard deviation of each location"),
    ),
    "Corruptions": (
        *(_corrupted(f"corruptions/{mean}", f"Mean over {len(metrics.MEANS[mean])} corruptions{without}", headline=mean == "mean15",
                     text=f"Accuracy on corrupted images: mean over {len(metrics.MEANS[mean])} kinds and their severities",
                     members=metrics.MEANS[mean])
          for mean, without in {"mean15": "", "mean16": "", "mean19": "", "mean_without_noise": " without noise"}.items()),
        *(_corrupted(f"corruptions/{group}", f"{group.capitalize()} corruptions", members=members,
                     text=f"Accuracy on images with {group} corruptions: mean over {', '.join(map(words, members))} and severities")
          for group, members in metrics.GROUPS.items()),
        _corrupted("corruptions/calibration_rms", "RMS calibration error on corrupted images", direction="lower",
                   text="Root mean square of confidence minus accuracy, mean over 15 corruptions and their severities"),
        _corrupted("corruptions/mce", "Mean corruption error (mCE)", "Error divided by AlexNet's, mean over 15 corruptions", _RATIO,
                   "lower", options=_ALEXNET, headline=True),
        _corrupted("corruptions/relative_mce", "Relative mean corruption error (relative mCE)",
                   "Increase of the error over that on clean images, divided by AlexNet's, mean over 15 corruptions", _RATIO, "lower",
                   options=(*_ALEXNET, Option("evaluations", CLEAN_EVALUATIONS))),
        _corruption("corruptions/{corruption}", "{corruption}", "Accuracy on images corrupted by {corruption}: mean over severities",
                    options=(_unless_chosen("fog"),)),
        _corruption("corruptions/{corruption}/{severity}", "{corruption}, severity {severity}",
                    "Accuracy on images corrupted by {corruption}, severity {severity}", options=(_SEVERITY, _unless_chosen("fog"))),
        _bar("corruptions_bar/mean", "Mean over 10 corruptions of C-bar", headline=True,
             text="Accuracy on images with corruptions of C-bar: mean over 10 kinds and their severities"),
        _bar("corruptions_bar/{bar}", "{bar}", "Accuracy on images corrupted by {bar}: mean over severities", options=(_BAR,), detail=True),
        _bar("corruptions_bar/{bar}/{severity}", "{bar}, severity {severity}", "Accuracy on images corrupted by {bar}, severity {severity}",
             options=(_SEVERITY, _BAR), detail=True),
    ),
    "Sequences of perturbations": (
        _flips("flips/mean", "Mean flip probability (mFP)", f"{_FRAMES}, mean over 10 kinds of perturbations", headline=True),
        _flips("flips/mean_without_noise", "Mean flip probability (mFP), without noise", f"{_FRAMES}, mean over 8 kinds without noise"),
        _flips("flips/{sequence}", "Flip probability, {sequence}", f"{_FRAMES} ({{sequence}})", options=(_SEQUENCE,), detail=True),
        _rate("flips/mfr", "Mean flip rate (mFR)", f"{_FRAMES}, divided by AlexNet's, mean over 10 kinds", headline=True),
        _rate("flips/mfr_without_noise", "Mean flip rate (mFR), without noise", f"{_FRAMES}, divided by AlexNet's, mean over 8 kinds"),
        _rate("flips/rate/{imagenet_sequence}", "Flip rate, {imagenet_sequence}", detail=True,
              text=f"{_FRAMES} ({{imagenet_sequence}}), divided by AlexNet's"),
    ),
    "Attacks": (
        _attacked("robust/{ball}_{radius}", "AutoAttack, {ball} radius {radius}", options=(Option("attack", ("autoattack",)), _THREAT),
                  text="Accuracy on images changed by AutoAttack, {ball} radius {radius}: APGD, targeted APGD, FAB and Square"),
        _attacked("robust/pgd/{ball}_{radius}", "PGD attack, {ball} radius {radius}", options=(Option("attack", ("pgd",)), _THREAT),
                  text="Accuracy on images changed by the PGD attack, {ball} radius {radius}", card="robust_pgd"),
        _attacked("robust/square/{ball}_{radius}", "Square attack, {ball} radius {radius}", options=(Option("attack", _square), _THREAT),
                  text="Accuracy on images changed by the Square attack, {ball} radius {radius}", card="robust_square"),
        _attacked("robust/transfer/{ball}_{radius}", "Transferred PGD attack, {ball} radius {radius}",
                  "Accuracy on images changed by the transferred PGD attack, {ball} radius {radius}: computed with another model, the "
                  "surrogate; not a white-box attack", options=(Option("surrogate", example="MODEL"), _THREAT), card="robust_transfer"),
        _attacked("robust/{attack}/{ball}_{radius}", "{attack} attack, {ball} radius {radius}",
                  options=(Option("attack", ("{attack}",)), _THREAT),
                  text="Accuracy on images changed by the attack {attack}, {ball} radius {radius}", card="robust_by"),
        _attacked("fgsm/linf_{radius}", "FGSM attack, L∞ radius {radius}",
                  "Accuracy on images changed by the FGSM attack, L∞ radius {radius}",
                  options=(_BY_GRADIENT, Option("attack_radii", ("linf_{radius}",)))),
        _curves("attack_curves/{ball}_{radius}", "Minimum-norm attacks, {ball} radius {radius}",
                "Accuracy on images changed by minimum-norm attacks, {ball} radius {radius}: none of them succeeds with a smaller change",
                options=(_THREAT, Option("curve_attacks", ("pgd_{ball}", "plb_{ball}")))),
        _curves("distance/pgd_{ball}", "Median PGD distance, {ball}", unit=_PIXELS, options=(Option("curve_attacks", ("pgd_{ball}",)),),
                text="{ball} norm of the smallest change by PGD that makes the prediction wrong, median over images"),
        _curves("distance/plb_{norm}", "Median PLB distance, {norm}", unit=_PIXELS, options=(Option("curve_attacks", ("plb_{norm}",)),),
                text="{norm} norm of the smallest change by PLB that makes the prediction wrong, median over images"),
        _checked("checks/failed", "Failed checks of the attacks", "Number of signs that the attacks are too weak for the model", COUNT,
                 "lower", options=(_BY_GRADIENT, _CHECKED)),
        _checked("checks/{ball}/{check}", "Check of the {ball} attacks: {check}", detail=True,
                 text="Accuracy on images attacked to check the {ball} attacks ({check})",
                 options=(_CHECK_ATTACKS, _CHECKED, Option("attack_radii", _check_radii))),
    ),
    "Randomized smoothing": (
        _smoothed("certified/l2_{l2_radius}", "Certified accuracy, L2 radius {l2_radius}",
                  "Accuracy on all images within L2 radius {l2_radius} by the smoothed model: proven with confidence 0.999 for each",
                  options=(Option("certified_radii", ("{l2_radius}",)),)),
        _smoothed("certified/mean_radius", "Mean certified radius", "L2 radius of certified correctness, else 0; mean over images",
                  _PIXELS),
        _smoothed("certified/abstained", "Images without a certified decision", "Fraction of images for which the smoothed model abstains",
                  direction="lower"),
        _smoothed("smoothed/clean", "Smoothed model", card="smoothed_clean",
                  text="Accuracy on clean images by the smoothed model: the most frequent class under Gaussian noise"),
        _smoothed("smoothed/pgd/l2_{positive_radius}", "Smoothed model, PGD attack, L2 radius {positive_radius}",
                  "Accuracy on images changed by the PGD attack on the smoothed model, L2 radius {positive_radius}: an upper bound",
                  options=(Option("smoothing_attack", ("true",)), Option("certified_radii", ("{positive_radius}",)))),
    ),
    "Calibration": (
        _calibration("calibration/rms", "RMS calibration error",
                     "Root mean square of confidence minus accuracy on clean images, over bins of 100 images", headline=True,
                     record_field="rms_calibration_error", compute=metrics.rms_calibration_error, per_image=metrics.rms_calibration_values),
        _calibration("calibration/ece", "Expected calibration error (ECE)",
                     "Mean absolute value of confidence minus accuracy on clean images, over 15 bins of equal width",
                     record_field="expected_calibration_error", compute=metrics.expected_calibration_error,
                     per_image=metrics.expected_calibration_values),
        _calibration("calibration/brier", "Brier score", "Squared distance of probabilities and label, mean over clean images", "0 to 2",
                     record_field="brier_score", per_image="brier_scores"),
        _calibration("calibration/nll", "Negative log-likelihood (NLL)", unit="Nats, 0 upwards", record_field="negative_log_likelihood",
                     text="Negative logarithm of the label's probability, mean over clean images", per_image="negative_log_likelihoods"),
        _calibration("aurra", "Accuracy when abstaining (AURRA)", direction="higher", record_field="aurra", compute=metrics.aurra,
                     per_image=metrics.aurra_values, text="Accuracy among the most confident clean images, mean over the number answered"),
    ),
    "Deployed files": (
        Metric("deployed/bytes", "Size of the model, bytes", "Size of the file, or of the graph and variables", "Bytes", "lower"),
        Metric("deployed/milliseconds", "Latency, ms", "Time for one image with one thread, median over calls", "Milliseconds", "lower"),
    ),
    "Confidence fitted on validation images (also FAMILY/severity_3/NAME and FAMILY/shift/DATA/NAME)": (
        _scaled("calibrated/temperature", "Temperature", "Number that logits are divided by", "Above 0", direction="", detail=True,
                options=(Option("calibrate", ("temperature",)), *_FITTED)),
        *(_scaled(f"calibrated/{{group}}{name}{end}", f"{title} {when} scaling, {{group}}",
                  f"{title} of logits {when} scaling, on {{group}}", unit, headline=(name, end) == ("ece", ""), detail=bool(end))
          for name, title, unit in (("rms", "RMS calibration error", FRACTION), ("ece", "ECE", FRACTION),
                                    ("brier", "Brier score", "0 to 2"), ("nll", "NLL", "Nats, 0 upwards"))
          for end, when in (("", "after"), ("_before", "before"))),
        _abstention("abstention/threshold", "Threshold of abstention", "Confidence below which the model abstains", direction="",
                    detail=True),
        _abstention("abstention/{group}coverage", "Coverage with abstention, {group}", "Fraction of images that are answered, on {group}",
                    headline=True),
        _abstention("abstention/{group}accuracy", "Accuracy with abstention, {group}", "Accuracy among the answered images, on {group}",
                    headline=True),
        _conformal("conformal/{group}coverage", "Coverage of conformal sets, {group}", headline=True,
                   text="Fraction of images whose label is in the prediction set (APS), on {group}"),
        _conformal("conformal/{group}size", "Size of conformal sets, {group}", unit="Classes", direction="lower", headline=True,
                   text="Number of classes in the prediction set (APS), mean over images, on {group}"),
    ),
    "Other classes": (
        _open_set_by("ood/{name}/{score}/auroc", "AUROC, {name} by {score}", f"{_AUROC} {{score}}"),
        _open_set_by("ood/{name}/{score}/fpr95", "FPR at 95% TPR, {name} by {score}", f"{_FPR95} {{score}}", direction="lower"),
        _open_set("ood/{name}/auroc", "AUROC, {name} by largest probability", f"{_AUROC} largest probability"),
        _open_set("ood/{name}/fpr95", "FPR at 95% TPR, {name} by largest probability", f"{_FPR95} largest probability", direction="lower"),
    ),
    "Sensitivity": (
        Metric("sensitivity/utility_correlation", "Rank correlation of sensitivity and utility", unit="From -1 to 1",
               text="Spearman's correlation over the values of an image, mean over images: whether the embedding follows the loss",
               evaluations=("sensitivity",)),
    ),
    "Corner digits": (
        _utility("utility/corner_informative", "Utility of informative corners", f"{_UTILITY}, where the corner digit decides the class"),
        _utility("utility/corner_uninformative", "Utility of uninformative corners", f"{_UTILITY}, where it does not", direction="lower"),
    ),
}
# fmt: on
METRICS = {metric.pattern: dataclasses.replace(metric, section=section) for section, rows in _SECTIONS.items() for metric in rows}
