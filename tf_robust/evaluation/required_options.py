"""The options of an evaluation that a measure needs: without one of them it cannot be among the results."""

import typing
from collections.abc import Callable

from tf_robust import corruptions, metrics
from tf_robust.attacks import norms
from tf_robust.data.shifts import shift_name
from tf_robust.evaluation import adversarial
from tf_robust.evaluation.config import ALL_SEVERITIES, EvalConfig
from tf_robust.evaluation.corrupted_sets import NOISE_FLOORS
from tf_robust.evaluation.measure import OOD_SCORES, Measure

_CLEAN_SET = ("clean", "calibration", "slices")  # evaluations, each of which predicts the clean images
_BY_GRADIENT = ("autoattack", "pgd")
_IMAGENET = ("imagenet", "auto")  # constants with which AlexNet's errors may normalize measures; the data decide
_EXAMPLES = {"groups": "COLUMN", "surrogate": "MODEL", "calibrate": "temperature", "abstain_accuracy": "0.95", "conformal": "0.9"}
_TEXTS: dict[str, Callable[[typing.Any], str]] = {  # fields whose values have other texts in the names of measures
    "shifts": shift_name,
    "ood": shift_name,
    "certified_radii": "{:g}".format,
    "attack_checks": lambda value: str(value).lower(),
    "smoothing_attack": lambda value: str(value).lower(),
}


class Option(typing.NamedTuple):
    """An option that a measure needs.

    Attributes:
        name: field of `EvalConfig`.
        values: as texts, of which one is needed, the best advice first; None: any but the default, which stands for none.
            Empty: no value gives the measure.
    """

    name: str
    values: tuple[str, ...] | None = None

    def is_chosen(self, eval_config: EvalConfig) -> bool:
        """Returns whether an evaluation has one of the values."""
        if self.values is None:
            return getattr(eval_config, self.name) != getattr(EvalConfig, self.name)
        return bool({*self.values} & {*map(_TEXTS.get(self.name, str), _values(eval_config, self.name))})


def mismatch(measure: Measure, eval_config: EvalConfig) -> str:
    """Returns why an evaluation cannot give a measure, for a message; empty if it can, which may depend on the data and the model too.

    Args:
        measure: its name, without label fraction and adaptation.
        eval_config: what is measured.
    """
    needed = _OPTIONS[measure.family](measure, eval_config) if measure.family in _OPTIONS else ()
    missing = [option for option in needed if not option.is_chosen(eval_config)]
    if not missing:
        return ""
    if never := [option.name for option in missing if option.values == ()]:
        return f"{measure}, which no --{never[0]} gives. Try: tf-robust list measures"
    received: dict[str, list[str]] = {}
    advice: dict[str, list[str]] = {}
    for option in missing:
        chosen = [_text(value) for value in _values(eval_config, option.name)]
        received[option.name] = chosen
        several = isinstance(getattr(EvalConfig, option.name), tuple)
        wanted = advice.setdefault(option.name, chosen if several else [])
        advice[option.name] = [*wanted, option.values[0] if option.values else _EXAMPLES[option.name]]
    if "severities" in advice:
        advice["severities"].sort()
    return f"{measure} with {_flags(received)}. Try: {_flags(advice)}"


def _flags(values):
    return " ".join(f"--{name}={','.join(of_flag) or 'none'}" for name, of_flag in values.items())


def _values(eval_config, name):
    value = getattr(eval_config, name)
    return value if isinstance(value, tuple) else (value,)


def _text(value):
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _evaluation(*names):
    return Option("evaluations", names)


def _of(evaluation):
    """The function of a family whose measures all need one evaluation alone."""
    return lambda measure, eval_config: [_evaluation(evaluation)]


def _nun(measure, eval_config):
    if not measure.name:
        return [_evaluation("noise")]
    return [_evaluation(*(["noise_floor"] if measure.name in {f"floor_{floor:g}" for floor in NOISE_FLOORS} else []))]


def _corruptions(measure, eval_config):
    chosen = eval_config.corruptions or metrics.MEANS["mean19"]
    members = metrics.MEANS.get(measure.name, (measure.name,) if measure.is_member else metrics.BENCHMARK)
    options = [_evaluation("corruptions"), *(Option("corruptions", (name,)) for name in members if name not in chosen)]
    if measure.severity is not None:
        return [*options, _severity_of(measure)]
    if measure.name in ("mce", "relative_mce"):
        options += [Option("corruption_constants", _IMAGENET), *map(_severity, ALL_SEVERITIES)]
    return options + ([_evaluation(*_CLEAN_SET)] if measure.name == "relative_mce" else [])


def _corruptions_bar(measure, eval_config):
    options = [_evaluation("corruptions_bar")]
    if measure.severity is not None:
        options.append(_severity_of(measure))
    if measure.name == "mean":
        return options
    of_cifar = [name for name in corruptions.severities.SETS if name != "imagenet"] if measure.name in metrics.BAR["cifar"] else []
    of_imagenet = ["imagenet"] if measure.name in metrics.BAR["imagenet"] else []
    return [*options, Option("corruption_constants", (*of_cifar, *of_imagenet, "auto"))]


def _severity(severity):
    return Option("severities", (str(severity),) if severity in ALL_SEVERITIES else ())


def _severity_of(measure):
    """The severity of one corruption; means are over all chosen ones."""
    return _severity(measure.severity) if measure.is_member else Option("severities", ())


def _flips(measure, eval_config):
    options = [_evaluation("perturbations")]
    if measure.name in ("mean", "mean_without_noise"):
        return options
    if measure.is_flip_rate:
        rated = measure.name in ("mfr", "mfr_without_noise") or measure.name.removeprefix("rate/") in metrics.PERTURBATIONS
        return [*options, Option("sequences", ("all", "imagenet_p") if rated else ()), Option("corruption_constants", _IMAGENET)]
    having = [which for which in ("all", "imagenet_p", "cifar_p") if measure.name in corruptions.sequence_names(which)]
    return [*options, Option("sequences", tuple(having))]


def _robust(measure, eval_config):
    head, _, threat = measure.name.partition("/")
    attack = Option("attack", (head,))
    if head == "transfer":
        attack = Option("surrogate")
    elif head == "square" and eval_config.attack == ("autoattack",):  # of which a model without gradients leaves Square
        attack = Option("attack", ("square", "autoattack"))
    elif head not in ("pgd", "square"):
        attack, threat = Option("attack", ("autoattack",)), measure.name
    return [_evaluation("adversarial"), attack, Option("attack_radii", _threats(threat))]


def _fgsm(measure, eval_config):
    threats = tuple(threat for threat in _threats(measure.name) if threat.startswith("linf_"))
    return [_evaluation("adversarial"), Option("attack", _BY_GRADIENT), Option("attack_radii", threats)]


def _checks(measure, eval_config):
    options = [_evaluation("adversarial"), Option("attack", _BY_GRADIENT), Option("attack_checks", ("true",))]
    norm, _, check = measure.name.partition("/")
    if not check:
        return options
    own = [threat for threat in eval_config.attack_radii if threat.startswith(f"{norm}_")]
    return [*options, Option("attack_radii", tuple(own or [f"{norm}_RADIUS"] if norm in norms.BALLS else ()))]


def _distance(measure, eval_config):
    return [_evaluation("attack_curves"), Option("curve_attacks", _parsed(adversarial.parse_curve, measure.name))]


def _attack_curves(measure, eval_config):
    threats, norm = _threats(measure.name), measure.name.partition("_")[0]
    own = [curve for curve in eval_config.curve_attacks if adversarial.parse_curve(curve)[1] == norm]
    return [_evaluation("attack_curves"), Option("attack_radii", threats), Option("curve_attacks", (*own, f"pgd_{norm}"))]


def _threats(text):
    return _parsed(adversarial.parse_threat, text)


def _parsed(parse, text):
    """The text as the only value if it can be parsed, else none."""
    try:
        parse(text)
    except ValueError:
        return ()
    return (text,)


def _certified(measure, eval_config):
    radii = [] if measure.name in ("mean_radius", "abstained") else [_radius(measure.name)]
    return [_evaluation("certified"), *radii]


def _smoothed(measure, eval_config):
    if measure.name == "clean":
        return [_evaluation("certified")]
    attack, _, threat = measure.name.partition("/")
    return [
        _evaluation("certified"),
        Option("smoothing_attack", ("true",)),
        _radius(threat if attack == "pgd" and threat != "l2_0" else ""),
    ]


def _radius(threat):
    """The radius of a name l2_RADIUS, written as measures have it."""
    norm, _, radius = threat.partition("_")
    return Option("certified_radii", tuple(one for one in _parsed(float, radius) if norm == "l2" and f"{float(one):g}" == one))


def _ood(measure, eval_config):
    group = measure.name.rpartition("/")[0]
    data, _, score = group.rpartition("/")
    return [Option("ood", (data, group) if data and score in OOD_SCORES else (group,))]


def _fitted(flag):
    """The function of a family of measures of fitted confidences."""

    def options(measure, eval_config):
        group, _, name = measure.name.rpartition("/")
        option = Option(flag, ("temperature",) if name == "temperature" else None)
        kind, _, rest = group.replace("severity_", "severity/", 1).partition("/")
        if kind == "severity":
            return [option, _evaluation("corruptions"), _severity(int(rest))]
        if kind == "shift":
            return [option, Option("shifts", (rest,))]
        if measure.is_fitted:
            return [option] if flag in eval_config.used else [option, _evaluation(*_CLEAN_SET, "corruptions")]
        return [option, _evaluation(*_CLEAN_SET)]

    return options


_OPTIONS: dict[str, Callable[[Measure, EvalConfig], list[Option]]] = {  # of the measures of each family
    "clean": _of("clean"),
    "bal": lambda measure, eval_config: [_evaluation("utility" if measure.name == "rare" else "clean")],
    "un": _of("noise"),
    "nun": _nun,
    "corruptions": _corruptions,
    "corruptions_bar": _corruptions_bar,
    "flips": _flips,
    "robust": _robust,
    "fgsm": _fgsm,
    "checks": _checks,
    "distance": _distance,
    "attack_curves": _attack_curves,
    "certified": _certified,
    "smoothed": _smoothed,
    **dict.fromkeys(("calibration", "aurra"), _of("calibration")),
    **dict.fromkeys(("class", "classes"), _of("slices")),
    **dict.fromkeys(("group", "groups"), lambda measure, eval_config: [_evaluation("slices"), Option("groups")]),
    "boundary": _of("boundary"),
    "utility": _of("utility"),
    "shift": lambda measure, eval_config: [Option("shifts", (measure.name,))],
    "ood": _ood,
    "calibrated": _fitted("calibrate"),
    "abstention": _fitted("abstain_accuracy"),
    "conformal": _fitted("conformal"),
}
