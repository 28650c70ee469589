"""Configuration of an evaluation; the flags of the command line are derived from it."""

import dataclasses
import fractions
import math
import typing
from collections.abc import Iterable, Sequence

from tf_robust.utils.errors import unknown
from tf_robust.utils.hyperparameters import seconds_of, text_of

EVALUATIONS = (
    "clean",
    "noise",
    "noise_floor",
    "corruptions",
    "corruptions_bar",
    "perturbations",
    "calibration",
    "utility",
    "sensitivity",
    "adversarial",
    "attack_curves",
    "certified",
    "slices",
)
DEFAULT_EVALUATIONS = ("clean", "noise")
CLEAN_EVALUATIONS = ("clean", "calibration", "slices")  # each predicts the clean images
ATTACKS = {"autoattack": "robust/", "pgd": "robust/pgd/", "square": "robust/square/"}  # of robust accuracy; prefixes of their metrics
BALLS = ("l2", "linf")  # norms of robust accuracy
CURVES = {"pgd": BALLS, "plb": ("l0", "l1", "l2", "linf")}  # attacks of curves, and their norms
ALL_SEVERITIES = (1, 2, 3, 4, 5)
NOISE_FLOORS = (0.02, 0.05, 0.1, 0.2, 0.5)  # of NUN, of the evaluation noise_floor
_FITTED = ("calibrate", "abstain_accuracy", "conformal")  # on validation images
_OF_ALL_IMAGES = ("adaptation", *_FITTED)  # they need all images of a set at once
_OF_BATCHES = ("clean", "noise", "noise_floor", "corruptions", "corruptions_bar", "calibration", "slices")  # defined with adaptation
MAX_SAMPLES = 2**20 - 1  # of an image in randomized smoothing, per purpose
ALPHA = 0.001  # probability that the certificate of an image is wrong
_IMAGES = ("corruption_constants", "corruption_protocol", "corrupted_dir", "per_image")
OPTIONS = {
    "clean": ("per_image", *_FITTED),
    "noise": ("nun_floor", "per_image"),
    "noise_floor": ("per_image",),
    "corruptions": ("corruptions", "severities", "frost_dir", *_IMAGES, *_FITTED),
    "corruptions_bar": ("severities", *_IMAGES),
    "calibration": ("per_image", *_FITTED),
    "perturbations": ("corruption_constants", "sequences"),
    "adversarial": ("attack_radii", "attack", "attack_subset", "attack_queries", "attack_checks", "attack_time", "surrogate"),
    "sensitivity": ("attack_subset",),
    "attack_curves": ("curve_attacks", "attack_radii", "attack_subset"),
    "certified": ("smoothing_sigma", "smoothing_selection", "smoothing_samples", "smoothing_attack", "certified_radii", "attack_subset"),
    "slices": ("groups", "per_image", *_FITTED),
}  # {evaluation: fields of `EvalConfig` that no evaluation without them depends on}
_BY_CHOICE = {
    "attack_queries": ("attack", ("autoattack", "square")),
    "attack_checks": ("attack", ("autoattack", "pgd")),
    "attack_time": ("attack", ("autoattack",)),
    "adaptation_batch_size": ("adaptation", ("batch_norm",)),
    "adaptation_order": ("adaptation", ("batch_norm",)),
}  # {field: (the field, its values) without which it has no effect}


def unused_options(
    evaluations: Sequence[str],
    attack: Sequence[str] = ("autoattack",),
    adaptation: Sequence[str] = ("none",),
    corrupted_dir: Sequence[str] = (),
    shifts: Sequence[str] = (),
) -> dict[str, tuple[str, ...]]:
    """Returns {field of `EvalConfig` without an effect: values that would give it one}; {} if an evaluation is unknown."""
    if {*evaluations} - {*EVALUATIONS}:
        return {}
    chosen = {"attack": attack, "adaptation": adaptation}
    unused = {
        name: tuple(f"{field}={value}" for value in values)
        for name, (field, values) in _BY_CHOICE.items()
        if not {*values} & {*chosen[field]}
    }
    if corrupted_dir:
        read = ("corruption_protocol", "frost_dir", *(() if "perturbations" in evaluations else ("corruption_constants",)))
        unused |= dict.fromkeys(read, ('corrupted_dir=""',))
    used = {name for evaluation in evaluations for name in OPTIONS.get(evaluation, ())}
    used |= {"per_image", *_FITTED} if shifts else set()
    owners: dict[str, tuple[str, ...]] = {}
    for evaluation, names in OPTIONS.items():
        owners |= {name: (*owners.get(name, ()), f"evaluations={evaluation}") for name in names if name not in used}
    return unused | owners


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    """Configuration of an evaluation. No trained weight depends on it.

    Args:
        evaluations: what to evaluate: clean; noise (un, nun); noise_floor (nun with other floors); corruptions (at each severity);
            corruptions_bar (the ten of CIFAR-10-C-bar at each severity, or of ImageNet-C-bar with ImageNet's constants); perturbations
            (flip probabilities); calibration; utility (of corner digits: accuracy on the rare classes, contextual utility of the
            corners); sensitivity (its rank correlation with utility); adversarial (robust accuracy, FGSM, checks of the attacks);
            attack_curves (sizes of the smallest perturbations, accuracies at attack_radii); certified (certified accuracy by
            randomized smoothing); slices (accuracy per class and group, and of the worst).
        nun_floor: number added to the standard deviations that NUN's probabilities are inversely proportional to, on the [0, 1]
            scale; auto: 0.1 if a location is constant over the training images, else 0.
        evaluation_split: split to evaluate on; choose settings on validation, never on test. all: the images of a data set without
            splits, which is the default for a model that was not trained on them.
        subset: number of images to evaluate on, a fixed stratified subset; 0: all.
        corruptions: names of the corruptions; empty: the 19 of the common-corruption benchmark, without C-bar's.
        severities: severities of the corruptions, 1 to 5; means over corruptions are over these.
        corruption_constants: published set of constants; auto: the one for the nearest image size.
        corruption_protocol: how corrupted images are stored before they are read: float (unchanged), cifar_c (256
            levels), imagenet_c (JPEG of quality 85); auto: imagenet_c with ImageNet's constants, else cifar_c.
        corrupted_dir: a corrupted set to read instead of corrupting on the fly: a folder of CIFAR-C's or CIFAR-10-C-bar's .npy files, a
            folder written by `tf-robust corrupt`, or cifar10_corrupted or imagenet2012_corrupted of TFDS.
        frost_dir: folder of the original frost photographs; empty: procedural ice.
        sequences: the perturbation sequences: ten as imagenet_p (with snow) or cifar_p (with spatter), or all fourteen.
        attack_radii: norms and radii of robust accuracy, NORM_RADIUS with l2 or linf, on the [0, 1] pixel scale; linf also
            by FGSM.
        attack: attacks of robust accuracy, one metric each: autoattack (APGD, APGD-T, FAB-T, Square: robust/NORM_RADIUS),
            pgd (40 steps, 2 random starts: robust/pgd/NORM_RADIUS), square (alone, for models without gradients; then there are neither
            FGSM nor checks of the attacks: robust/square/NORM_RADIUS).
        attack_subset: number of images to attack, certify or differentiate, a fixed stratified subset; 0: all.
        surrogate: another model, differentiable, on which PGD is computed too; accuracy on these images is that under a transferred
            attack (robust/transfer/NORM_RADIUS), never white-box. Its pixel scale, size and outputs are found; empty: none.
        attack_queries: queries of the model by Square, per image; 5,000 in the standard version of AutoAttack.
        attack_checks: also check the attacks for signs of masked gradients, with eight further attacks.
        attack_time: time of AutoAttack at all radii together (90s, 10m, 2h); images for which a member has no time left count as
            correct, so robust accuracies are upper bounds, as a warning states; empty: no limit.
        curve_attacks: attacks of the curves, ATTACK_NORM: pgd (bisected) in l2 and linf, plb (proximal log-barrier) in l0, l1, l2 and linf.
        smoothing_sigma: standard deviation of the noise of randomized smoothing, on the [0, 1] pixel scale; that of the training.
        smoothing_selection: noisy copies of each image by which the smoothed model's class is selected.
        smoothing_samples: further noisy copies of each image, by which the probability of that class is bounded with confidence 0.999.
            100000 in publications; the more, the larger the radii that can be certified.
        smoothing_attack: also attack the smoothed model by PGD (smoothed/pgd/l2_RADIUS), for models with gradients.
        certified_radii: l2 radii of certified accuracy, on the [0, 1] pixel scale.
        adaptation: batch_norm: the model's batch normalization uses the statistics of the test batch (Keras models; metrics are named
            adapted/...). none: the model as it is.
        adaptation_batch_size: images per batch of adaptation.
        adaptation_order: shuffled (batches of mixed classes) or by_class (batches of as few classes as possible, the worst case).
        shifts: further data sets to evaluate on, of images of the same classes under other conditions, one metric each (shift/NAME):
            TFDS names (cifar10_1, cifar10_corrupted/fog_5, imagenet_v2, imagenet_a, imagenet_r, imagenet_sketch), folder:DIR,
            csv:FILE, npz:FILE, hf:NAME_OR_DIR; their test images, or all where there are no splits. Classes correspond by name.
        groups: column of data=csv:FILE that names the group of an image, for the evaluation slices; empty: slices are classes alone.
        calibrate: scaling of the logits fitted on validation images: temperature (one number) or vector (a scale and a bias per class).
        abstain_accuracy: wanted accuracy among the answered images: a threshold of confidence that meets it is found on validation images;
            0: none.
        conformal: wanted coverage of conformal prediction sets (APS), fitted on validation images; 0: none.
        ood: data sets of other classes, named as in shifts, to be distinguished from the model's own classes by a score.
        per_image: also write what the model predicts for each clean, noisy, corrupted and shifted image: Parquet files in per_image/ of
            the workdir, one per shard of about 10,000 images. Processes and tasks share shards, so that one set can be evaluated by many.

    Examples:
        >>> config = tfr.evaluation.EvalConfig(evaluations=("clean", "corruptions"), severities=(3,))
        >>> config.severities, config.attack
        ((3,), ('autoattack',))
        >>> config.constants((32, 32, 3)), config.protocol((32, 32, 3))
        ('cifar', 'cifar_c')
    """

    evaluations: tuple[str, ...] = DEFAULT_EVALUATIONS
    nun_floor: str = "auto"
    evaluation_split: typing.Literal["validation", "test", "all"] = "test"
    subset: int = 0
    corruptions: tuple[str, ...] = ()
    severities: tuple[int, ...] = ALL_SEVERITIES
    corruption_constants: typing.Literal["auto", "cifar", "tiny_imagenet", "imagenet"] = "auto"
    corruption_protocol: typing.Literal["auto", "float", "cifar_c", "imagenet_c"] = "auto"
    corrupted_dir: str = ""
    frost_dir: str = ""
    sequences: typing.Literal["imagenet_p", "cifar_p", "all"] = "imagenet_p"
    attack_radii: tuple[str, ...] = ("l2_0.0625", "l2_0.5", "linf_4/255", "linf_8/255")
    attack: tuple[str, ...] = ("autoattack",)
    attack_subset: int = 0
    surrogate: str = ""
    attack_queries: int = 5000
    attack_checks: bool = True
    attack_time: str = ""
    curve_attacks: tuple[str, ...] = ("pgd_l2", "pgd_linf", "plb_l2", "plb_linf")
    smoothing_sigma: float = 0.25
    smoothing_selection: int = 100
    smoothing_samples: int = 1000
    smoothing_attack: bool = True
    certified_radii: tuple[float, ...] = (0.0, 0.25, 0.5)
    adaptation: typing.Literal["none", "batch_norm"] = "none"
    adaptation_batch_size: int = 200
    adaptation_order: typing.Literal["shuffled", "by_class"] = "shuffled"
    shifts: tuple[str, ...] = ()
    groups: str = ""
    calibrate: typing.Literal["none", "temperature", "vector"] = "none"
    abstain_accuracy: float = 0.0
    conformal: float = 0.0
    ood: tuple[str, ...] = ()
    per_image: bool = False

    def __post_init__(self):
        for field, known in (("evaluations", EVALUATIONS), ("attack", ATTACKS)):
            if not getattr(self, field):
                raise ValueError(f"Expected {field}, of: {', '.join(known)}. Received: none")
        for name in self.evaluations:
            if name not in EVALUATIONS:
                raise unknown("evaluation", name, EVALUATIONS)
        for name in ("corruptions", "attack", "attack_radii", "curve_attacks", "certified_radii"):
            values = getattr(self, name)
            if len({*values}) < len(values):
                raise ValueError(f"Expected each value of {name} once. Received: {text_of(values)}")
        if self.corruptions:
            check_corruptions(self.corruptions)
        if not self.severities or sorted({*self.severities} & {*ALL_SEVERITIES}) != [*self.severities]:
            raise ValueError(f"Expected severities of 1 to 5 in increasing order. Received: {text_of(self.severities) or 'none'}")
        floor = 0.0 if self.nun_floor == "auto" else _number(self.nun_floor)
        if floor is None or floor < 0:
            raise ValueError(f"Expected nun_floor to be auto or a number >= 0. Received: {self.nun_floor!r}")
        for name, least in (("subset", 0), ("attack_subset", 0), ("attack_queries", 1), ("adaptation_batch_size", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"Expected {name} >= {least}. Received: {getattr(self, name)}")
        if self.attack_time:
            try:
                seconds_of(self.attack_time)
            except ValueError as error:
                raise ValueError(f"attack_time: {error}") from None
        for name in ("abstain_accuracy", "conformal"):
            if not 0 <= (value := getattr(self, name)) < 1:
                advice = f". Try: {name}={value / 100:g}" if 1 < value < 100 else ""
                raise ValueError(f"Expected {name} in (0, 1), or 0 for none. Received: {value:g}{advice}")
        if "certified" in self.evaluations:
            self._check_smoothing()
        if self.needs_validation_set and self.evaluation_split == "validation":
            raise ValueError(
                "Expected evaluation_split=test with calibrate, abstain_accuracy and conformal, which are fitted on the validation "
                "images. Received: validation"
            )
        if self.adaptation != "none":
            others = [f"evaluations={name}" for name in self.evaluations if name not in _OF_BATCHES]
            others += [name for name in (*_FITTED, "ood") if getattr(self, name) != getattr(EvalConfig, name)]
            if others:
                raise ValueError(
                    f"Expected adaptation=none with {', '.join(others)}, which need a prediction that is independent of other images. "
                    f"Received: adaptation={self.adaptation}"
                )
        if self.per_image and (others := [name for name in _OF_ALL_IMAGES if getattr(self, name) not in ("none", 0)]):
            received = ", ".join(f"{name}={getattr(self, name)}" for name in others)
            raise ValueError(
                f"Expected per_image without options that need all images of a set at once. Received: {received}. "
                "Try: two commands with two workdirs"
            )
        given = self.attack_radii != EvalConfig.attack_radii
        if not given and self.curve_attacks == EvalConfig.curve_attacks:
            return
        norms = {parse_curve(text)[1] for text in self.curve_attacks}
        others = [text for text in self.attack_radii if parse_threat(text)[0] not in norms]
        if given and others and "attack_curves" in self.evaluations and "adversarial" not in self.evaluations:
            raise ValueError(
                "Expected attack_radii in the norms of curve_attacks, whose accuracies the evaluation attack_curves gives. "
                f"Received: {', '.join(others)} with curve_attacks={','.join(self.curve_attacks)}. "
                f"Try: curve_attacks={','.join(self.curve_attacks)},pgd_{others[0].partition('_')[0]}"
            )

    def _check_smoothing(self):
        from tf_robust import metrics

        sigma, selection, samples = self.smoothing_sigma, self.smoothing_selection, self.smoothing_samples
        if not 0 < sigma < math.inf:
            raise ValueError(f"Expected smoothing_sigma > 0, on the [0, 1] pixel scale. Received: {sigma}. Try: smoothing_sigma=0.25")
        if not 1 <= min(selection, samples) <= max(selection, samples) <= MAX_SAMPLES:
            raise ValueError(
                f"Expected smoothing_selection and smoothing_samples from 1 to {MAX_SAMPLES}. Received: {selection} and {samples}"
            )
        if not self.certified_radii or min(self.certified_radii) < 0:
            raise ValueError(f"Expected certified_radii >= 0. Received: {text_of(self.certified_radii) or 'none'}")
        smallest = min((radius for radius in self.certified_radii if radius), default=0.0)
        largest, needed = metrics.largest_radius(samples, sigma, ALPHA), metrics.samples_needed(smallest, sigma, ALPHA)
        if not largest >= smallest:  # NaN: nothing can be certified
            advice = f"smoothing_samples={needed}" if needed <= MAX_SAMPLES else "smaller certified_radii"
            raise ValueError(
                f"Expected enough smoothing_samples to certify the radius {smallest:g} with confidence {1 - ALPHA:g}. Received: "
                f"smoothing_samples={samples} with smoothing_sigma={sigma:g}, with which the largest radius is {largest:.4g}. Try: {advice}"
            )

    @property
    def needs_training_set(self) -> bool:
        """Whether training images are needed: NUN's noise is most frequent where they vary little."""
        return not {"noise", "noise_floor"}.isdisjoint(self.evaluations)

    @property
    def needs_validation_set(self) -> bool:
        """Whether confidences are fitted on validation images: where there are sets to evaluate them on."""
        fitted = [name for name in _FITTED if getattr(self, name) not in ("none", 0)]
        return bool(fitted) and not {*fitted} <= self.unused.keys()

    @property
    def unused(self) -> dict[str, tuple[str, ...]]:
        """The fields without an effect, as `unused_options` returns them."""
        return unused_options(self.evaluations, self.attack, (self.adaptation,), self.corrupted_dir, self.shifts)

    def check_used(self, names: Iterable[str]) -> None:
        """Raises ValueError if one of some fields has no effect."""
        unused = self.unused
        for name in names:
            if owners := unused.get(name):
                field = owners[0].partition("=")[0]
                raise ValueError(f"Expected {' or '.join(owners)} with {name}. Received: {field}={text_of(getattr(self, field))}")

    @property
    def attacks_by_gradient(self) -> bool:
        """Whether one of the attacks uses gradients: then FGSM and the checks of the attacks are evaluated too."""
        return not {"autoattack", "pgd"}.isdisjoint(self.attack)

    def constants(self, image_shape: Sequence[int]) -> str:
        """Returns the set of constants for images (H, W, C)."""
        from tf_robust.corruptions import severities

        chosen = self.corruption_constants
        return severities.nearest_set(image_shape[0], image_shape[1]) if chosen == "auto" else chosen

    def bar_set(self, image_shape: Sequence[int]) -> str:
        """Returns the set of C-bar for images (H, W, C), of `metrics.BAR`."""
        return "imagenet" if self.constants(image_shape) == "imagenet" else "cifar"

    def protocol(self, image_shape: Sequence[int]) -> str:
        """Returns the storage protocol for images (H, W, C)."""
        if self.corruption_protocol != "auto":
            return self.corruption_protocol
        return f"{self.bar_set(image_shape)}_c"


def check_corruptions(names: Iterable[str]) -> None:
    """Raises ValueError for an unknown corruption."""
    from tf_robust.corruptions import CORRUPTIONS

    for name in names:
        if name not in CORRUPTIONS:
            raise unknown("corruption", name, CORRUPTIONS)


def parse_threat(text: str) -> tuple[str, float]:
    """Returns the norm and the radius, on the [0, 1] pixel scale, of a threat NORM_RADIUS, such as `l2_0.5` or `linf_8/255`."""
    name, _, radius = text.partition("_")
    if (number := _number(text)) is not None:
        advice = f"attack_radii=linf_{text}{'/255' * (number > 1)}"
        raise ValueError(f"Expected a threat NORM_RADIUS. Received: {text!r}, without a norm. Try: {advice}")
    if name not in BALLS:
        raise unknown("norm", name, BALLS)
    if (number := _number(radius)) is None:
        raise ValueError(f"Expected a threat NORM_RADIUS, such as l2_0.5 or linf_8/255. Received: {text!r}")
    return name, number


def _number(text):  # None if it is neither a number nor a fraction
    try:
        return float(fractions.Fraction(text))
    except (ValueError, ZeroDivisionError):
        return None


def parse_curve(text: str) -> tuple[str, str]:
    """Returns the attack and the norm of an attack curve ATTACK_NORM, such as plb_l2."""
    name, _, norm = text.rpartition("_") if "_" in text else (text, "", "")
    if name not in CURVES:
        raise unknown("attack of a curve", name, CURVES)
    if norm not in CURVES[name]:
        raise unknown("norm", norm, CURVES[name])
    return name, norm
