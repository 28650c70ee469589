"""Evaluation card: what metrics depend on besides the model. Metrics with different cards are not comparable."""

import os
from collections.abc import Mapping, Sequence

import numpy as np

from tf_robust import attacks, corruptions, metrics
from tf_robust.configs.evaluation import ALL_SEVERITIES, ATTACKS, EvalConfig
from tf_robust.corrupted_datasets import reader
from tf_robust.data.source import Source, digest
from tf_robust.data.sources import Shift
from tf_robust.evaluation import adversarial, smoothing
from tf_robust.evaluation.confidence import OpenSets, applies_to
from tf_robust.evaluation.metric_value import CORRUPTION_FAMILIES, parse_metric
from tf_robust.evaluation.scoring import SEED
from tf_robust.evaluation.sets import adaptation_batches, floor_of, order_for_adaptation, training_std
from tf_robust.saved_models.loading import Classifier
from tf_robust.utils.hyperparameters import seconds_of
from tf_robust.utils.user_code import digest as digest_of_code

Card = Mapping[str, Mapping]  # {family: {field: value}}, and "data"


def card_of(
    source: Source,
    eval_config: EvalConfig,
    training_source: Source | None,
    imagenet: bool = False,
    shifts: Sequence[Shift] = (),
    surrogate: Classifier | None = None,
    validation: Source | None = None,
    open_sets: OpenSets = OpenSets(),
) -> dict[str, dict]:
    """Returns the card of an evaluation, for JSON. Arguments as in `evaluate`; `imagenet`: AlexNet's probabilities normalize flip rates.

    It is {family: {field: value}}; `data` applies to all metrics, the others (`noise`, `corruptions`, `flips`, ...) to their families.
    """
    card: dict[str, dict] = {
        "data": {
            "name": source.name,
            "split": source.split,
            "num_images": len(source),
            "fingerprint": source.fingerprint(),
            "image_shape": list(source.image_shape),
            "class_mask": f"{len(source.class_mask)} classes" if source.class_mask else "none",
            **({"image_fit": str(source.fit)} if source.fit else {}),
        }
    }
    chosen = {*eval_config.evaluations}
    if eval_config.adaptation != "none":
        card["adaptation"] = adaptation_part(source, eval_config)
    if eval_config.needs_training_set:
        if training_source is None:
            raise ValueError("Expected a training source for the evaluations noise and noise_floor. Received: None")
        card["noise"] = {"seed": SEED, "rate": corruptions.RATE, "std_from": training_source.fingerprint()}
        floor = floor_of(eval_config, training_std(training_source))
        if floor != corruptions.FLOOR:  # the floor of every card without this part
            card["nun"] = {"floor": floor}
    if chosen & {*CORRUPTION_FAMILIES}:
        fields = _corruption_fields(eval_config, source.image_shape)
        if "corruptions" in chosen:
            card["corruptions"] = {"normalizer": "none", **fields}
        if "corruptions_bar" in chosen:
            without_frost = {name: value for name, value in fields.items() if name != "frost"}
            card["corruptions_bar"] = {"set": eval_config.bar_set(source.image_shape), **without_frost}
        if eval_config.severities != ALL_SEVERITIES:  # the severities of every card without this part
            card["corruption_means"] = {"means_over_severities": list(eval_config.severities)}
    if "perturbations" in chosen:
        flips = {
            "seed": SEED,
            "sequences": eval_config.sequences,
            "constants": corruptions.describe(source.image_shape, eval_config.constants(source.image_shape))["constants"],
            "protocol": "cifar_c",
        }
        card["flips"] = {**flips, "normalizer": "none"}
        if imagenet and eval_config.sequences != "cifar_p":
            table = metrics.reference_table("alexnet_imagenet_p")
            card["flip_rates"] = {**flips, "normalizer": table["network"], **{name: table[name] for name in ("verified", "source")}}
    if "calibration" in chosen:
        card["calibration"] = {"bins": "100 examples a bin by confidence, the last bin included"}
    if shifts:
        card["shift"] = {shift.name: shift.card() for shift in shifts}
    if validation is not None:
        card["confidence"] = {
            **{name: getattr(eval_config, name) for name in ("calibrate", "abstain_accuracy", "conformal")},
            "confidence": metrics.abstention.CONFIDENCE,
            "num_images": len(validation),
            "fingerprint": validation.fingerprint(),
        }
    if open_sets.sources:
        card["ood"] = open_sets.card()
    if eval_config.groups:
        card["groups"] = {"column": eval_config.groups}
    attacked = {"images": eval_config.attack_subset} if eval_config.attack_subset else {}
    if attacked and "sensitivity" in chosen:
        card["sensitivity"] = attacked
    if "adversarial" in chosen:
        card |= _attack_parts(eval_config, attacked, surrogate)
    if "attack_curves" in chosen:
        card["distance"] = {"seed": SEED, **attacked}
        card["attack_curves"] = {**card["distance"], "attacks": list(eval_config.curve_attacks)}
    if "certified" in chosen:
        noise = {"sigma": eval_config.smoothing_sigma, "seed": SEED, **attacked}
        samples = {"selection": eval_config.smoothing_selection, "samples": eval_config.smoothing_samples, "alpha": smoothing.ALPHA}
        card["certified"] = {**noise, **samples}
        card["smoothed_clean"] = {**noise, "votes": min(eval_config.smoothing_samples, smoothing.MAX_VOTES)}
        attack = {"attack": "pgd", "steps": smoothing.PGD_STEPS, "gradient_samples": smoothing.PGD_SAMPLES}
        card["smoothed"] = {**card["smoothed_clean"], **attack}
    return card


def adaptation_part(source: Source, eval_config: EvalConfig) -> dict:
    """Returns the part of a card: what is adapted, to which batches, and how many classes these contain."""
    labels = np.asarray(order_for_adaptation(source, eval_config.adaptation_order).labels)
    sizes = adaptation_batches(len(labels), eval_config.adaptation_batch_size)
    counts = [np.unique(batch, return_counts=True)[1] for batch in np.split(labels, np.cumsum(sizes)[:-1])]
    return {
        "statistics": eval_config.adaptation,
        "batch_sizes": sorted({*sizes}),
        "order": eval_config.adaptation_order,
        "classes_per_batch": float(np.mean([len(of_batch) for of_batch in counts])),
        "largest_class_fraction": float(np.mean([of_batch.max() / of_batch.sum() for of_batch in counts])),
    }


def _attack_parts(eval_config, attacked, surrogate):
    pgd = {"attack": "pgd", "seed": SEED, "steps": adversarial.PGD_STEPS}
    queries = {"queries": eval_config.attack_queries, **attacked}
    limit = {"seconds": seconds_of(eval_config.attack_time)} if eval_config.attack_time else {}
    robust = {
        "autoattack": ("robust", {**adversarial.AUTOATTACK_CARD, **queries, **limit}),
        "pgd": ("robust_pgd", {**pgd, "starts": adversarial.PGD_STARTS, **attacked}),
        "square": ("robust_square", {"attack": "square", "seed": SEED, **queries}),
    }
    parts: dict[str, dict] = dict(robust[name] for name in ATTACKS if name in eval_config.attack)
    for name in eval_config.attack:
        if name not in ATTACKS:
            adversarial.check_attack(name)
            code = digest_of_code(attacks.ATTACKS[name])
            fields = {"attack": name, "seed": SEED, **attacked, **({"user_code": code} if code else {})}
            parts["robust_by"] = {**parts.get("robust_by", {}), name: fields}
    if surrogate is not None:
        conventions = surrogate.interface.conventions()
        parts["robust_transfer"] = {**pgd, "surrogate": surrogate.digest(), "surrogate_interface": conventions, **attacked}
    if not eval_config.attacks_by_gradient:
        return parts
    if attacked:
        parts["fgsm"] = attacked
    if eval_config.attack_checks:
        parts["checks"] = {"seed": SEED, "num_images": adversarial.CHECKED, "subset": "stratified", **attacked}
        radii = adversarial.largest_radii(eval_config.attack_radii)
        if radii != adversarial.largest_radii(EvalConfig.attack_radii):  # the radii of every card without this field
            parts["checks"]["radii"] = radii
    return parts


def has_corruptions_of(card: Card, eval_config: EvalConfig) -> bool:
    """Returns whether a card has the corruptions of an evaluation, its frost or its corrupted set, or none."""
    if "corruptions" not in card:
        return True
    fields = _corruption_fields(eval_config, tuple(card["data"]["image_shape"]))
    return {name: card["corruptions"].get(name) for name in fields} == fields


def _corruption_fields(eval_config, image_shape):
    """Fields of corruptions on the fly, or of the card of a corrupted set; of a published set only the name is known."""
    description = corruptions.describe(
        image_shape,
        eval_config.constants(image_shape),
        eval_config.protocol(image_shape),
        eval_config.frost_dir or None,
        eval_config.corruptions or corruptions.CORRUPTIONS,
    )
    folder = eval_config.corrupted_dir
    if not folder:
        return {"seed": SEED, **description}
    set_card = reader.card_of(folder) if os.path.isdir(folder) else {}
    if known := {field: set_card[field] for field in ("seed", *description) if field in set_card}:
        return known
    fields = {"prepared_set": os.path.basename(folder.rstrip("/"))}
    if os.path.isdir(folder):  # names and sizes of the files of a published set, without its subfolders
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        fields["files"] = digest("\n".join(f"{entry.name} {entry.stat().st_size if entry.is_file() else ''}" for entry in entries))
    return fields


def image_sizes(source: Source, predict: Classifier) -> dict[str, list[int]]:
    """Returns the part `sizes` of a card, which comparisons ignore: {"corrupted_at": [H, W], "model_input": [H, W]}.

    Corruptions, noise and attacks are applied at the size of the source's images; the other size is the one that the network receives.
    """
    height, width = source.image_shape[:2]
    side = predict.interface.input_size
    flags = predict.card.get("flags")
    resize = flags.get("resize", "0") if isinstance(flags, dict) else "0"
    if not side and str(resize).isdecimal():  # the network resizes images itself
        side = int(resize)
    return {"corrupted_at": [height, width], "model_input": [side or height, side or width]}


def dependencies(model: str | None, interface: Mapping | None, card: Card, name: str) -> dict:
    """Returns what the record of a set depends on, for JSON: digest and `interface.conventions` of the model, and parts of the card."""
    adapted = {"adaptation": card["adaptation"]} if "adaptation" in card else {}
    fitted = {"confidence": card["confidence"]} if model and "confidence" in card and applies_to(name) else {}
    return {"model": model, "interface": interface, "data": card["data"], "family": part_of(card, name), **adapted, **fitted}


def part_of(card: Card, metric: str) -> Mapping | None:
    """Returns the fields of a card that a metric depends on besides `data`, also NUN's floor and the severities of means; or None."""
    name = parse_metric(metric)
    if name.is_clean:
        return None
    part = name.card_family
    fields = card.get(part)
    if not fields:
        return fields
    if name.family == "shift":
        return fields.get(name.name)
    if name.family == "ood":
        return _open_set_fields(fields, name.name)
    if name.family == "nun" and not name.name:
        return {**fields, **card.get("nun", {})}
    if "user_code" in fields:  # of all corruptions: keep the code of those in the metric
        members = metrics.MEANS.get(name.name, (name.name,))
        code = {member: text for member, text in fields["user_code"].items() if member in members}
        fields = {field: value for field, value in fields.items() if field != "user_code"} | ({"user_code": code} if code else {})
    if part == "robust_by":
        return fields.get(name.name.partition("/")[0])
    if name.family in CORRUPTION_FAMILIES and name.severity is None:
        return {**fields, "means_over_severities": [*ALL_SEVERITIES], **card.get("corruption_means", {})}
    return fields


def _open_set_fields(fields, name):
    """The fields of a set NAME, or of a metric NAME/auroc or NAME/SCORE/auroc; nearest neighbors matter to knn alone."""
    *path, kind = name.split("/")
    is_metric = kind in ("auroc", "fpr95")
    neighbors = {} if is_metric and path[-1:] != ["knn"] else {field: fields[field] for field in fields if field != "sets"}
    sets = {one: entry for one, entry in fields["sets"].items() if one in (name, "/".join(path), "/".join(path[:-1]))}
    return {**neighbors, "sets": sets}


def difference(metric: str, first: Card | None, second: Card | None) -> list[tuple[str, object, object]]:
    """Returns the fields in which two cards differ for a metric: [(field, first value, second value)]; empty if a card is missing."""
    if not first or not second:
        return []
    differing: list[tuple[str, object, object]] = []
    name = parse_metric(metric)
    ignored = {"std_from"} if name.family == "un" else set()  # in the fields of all noise, but for NUN alone
    adapted = ("adaptation",) if "adaptation" in first and "adaptation" in second else ()  # else it is what is compared
    for part in ("data", *adapted, name.card_family):
        one, other = ((card.get(part) if part in ("data", "adaptation") else part_of(card, metric)) or {} for card in (first, second))
        differing += [
            (f"{part}.{field}", one.get(field), other.get(field))
            for field in sorted({*one, *other} - ignored)
            if one.get(field) != other.get(field)
        ]
    return differing
