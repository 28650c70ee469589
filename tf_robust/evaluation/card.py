"""The evaluation card: what numbers depend on beside the model. Numbers with other cards do not belong in one column."""

import os

from tf_robust import corruptions, metrics
from tf_robust.corrupted_datasets import reader
from tf_robust.data import toy
from tf_robust.evaluation import adversarial, boundary
from tf_robust.evaluation.sets import NOISE_SEED, training_deviation

LABEL_FRACTION = "label_fraction_"
_BINS = "100 examples a bin by confidence, the last bin included"


def card_of(source, measuring, training_source, imagenet=False):
    """The card of a measurement: {family: {field: value}}, for JSON.

    Args:
        source: measured on. measuring: a `Measuring`. training_source: gives NUN its deviations.
        imagenet: AlexNet's flip probabilities normalize flip rates.

    Returns:
        `data` holds for all measures; the others (`noise`, `corruptions`, `flips`, ...) for their families.
    """
    card = {"data": {"name": source.name, "split": source.split, "pictures": len(source),
                     "fingerprint": source.fingerprint(), "picture_shape": list(source.image_shape),
                     "class_mask": f"{len(source.class_mask)} classes" if source.class_mask else "none",
                     **({"image_fit": str(source.fit)} if source.fit else {})}}
    chosen, shape = set(measuring.evaluations), source.image_shape
    if chosen & {"noise", "noise_floor"}:
        card["noise"] = {"seed": NOISE_SEED, "rate": corruptions.RATE, "deviations_of": training_source.fingerprint()}
        floor = measuring.floor(training_deviation(training_source))
        if floor != corruptions.FLOOR:  # that of every card without this part
            card["nun"] = {"floor": floor}
    made = corruptions.describe(shape, measuring.constants(shape), measuring.protocol(shape), measuring.frost_dir or None)
    if "corruptions" in chosen:
        card["corruptions"] = {"normalizer": "none", **_how_corrupted(measuring, made)}
    if "perturbations" in chosen:
        card["flips"] = {"seed": NOISE_SEED, "sequences": measuring.sequences, "constants": made["constants"],
                         "protocol": "cifar_c", "normalizer": "none"}
        if imagenet and measuring.sequences != "cifar_p":
            table = metrics.reference_table("alexnet_imagenet_p")
            card["flip_rates"] = {**card["flips"], "normalizer": table["network"], **{name: table[name] for name in ("verified", "source")}}
    if "calibration" in chosen:
        card["calibration"] = {"bins": _BINS}
    if "boundary" in chosen:
        card["boundary"] = {"square": [-toy.LIMIT, toy.LIMIT], "grid": boundary.GRID,
                            "gradient": "of class 1's probability"}
    attacked = {"images": measuring.attack_subset} if measuring.attack_subset else {}
    if "adversarial" in chosen:
        if "ensemble" in measuring.attack:
            card["robust"] = {"attack": "ensemble", "seed": adversarial.SEED, "queries": measuring.attack_queries, **attacked}
        if "pgd" in measuring.attack:
            card["robust_pgd"] = {"attack": "pgd", "seed": adversarial.SEED, "steps": adversarial.PGD_STEPS,
                                  "starts": adversarial.PGD_STARTS, **attacked}
        if attacked:
            card["fgsm"] = attacked
        card["checks"] = {"seed": adversarial.SEED, "pictures": adversarial.CHECKED}
    if "attack_curves" in chosen:
        card["distance"] = {"seed": adversarial.SEED, **attacked}
    return card


def _how_corrupted(measuring, made):
    """On the fly, or as the card of a prepared set says; of a set that others made, only its name is known."""
    if not measuring.corruptions_from:
        return {"seed": NOISE_SEED, **made}
    noted = reader.card_of(measuring.corruptions_from) if os.path.isdir(measuring.corruptions_from) else {}
    known = {field: noted[field] for field in ("seed", *made) if field in noted}
    return known or {"prepared_set": os.path.basename(measuring.corruptions_from.rstrip("/"))}


def image_sizes(source, predict):
    """The part `sizes` of a card, on which no comparison depends: where images are resized, before and after corruptions.

    Args:
        source: measured on; corruptions, noise and attacks are applied at its image size. predict: a `loading.Classifier`.

    Returns:
        {"corrupted_at": [H, W], "model_input": [H, W], the size that the network sees}
    """
    height, width = source.image_shape[:2]
    side = predict.interface.input_size
    told = predict.card.get("flags")
    resize = told.get("resize", "0") if isinstance(told, dict) else "0"
    if not side and str(resize).isdecimal():  # the network resizes images itself
        side = int(resize)
    return {"corrupted_at": [height, width], "model_input": [side or height, side or width]}


def dependencies(model, interface, card, name):
    """What the record of a set depends on, for JSON.

    Args:
        model: digest of the model's files. interface: a `loading.Interface` as a dictionary. card: as `card_of`. name: of the set.
    """
    return {"model": model, "interface": interface, "data": card["data"], "family": part_of(card, name)}


def plain(measure):
    """A measure's name without the share of the labels that its row was trained with: `label_fraction_0.1/clean` -> `clean`."""
    return measure.split("/", 1)[1] if measure.startswith(LABEL_FRACTION) else measure


def family(measure):
    """The part of the card that a measure depends on beside `data`."""
    first, *rest = plain(measure).split("/")
    if first == "flips" and rest[0] in ("mfr", "mfr_without_noise", "rate"):
        return "flip_rates"
    if first == "robust" and rest[0] == "pgd":
        return "robust_pgd"
    return {"un": "noise", "nun": "noise", "aurra": "calibration"}.get(first, first)


def part_of(card, measure):
    """The fields of a card that a measure depends on beside `data`, None where it has none; those of `nun` include its floor."""
    found = card.get(family(measure))
    return {**found, **card.get("nun", {})} if found and plain(measure) == "nun" else found


def difference(measure, one, other):
    """The fields in which two cards differ for one measure: [(field, here, there)]; none where a card is missing."""
    if not one or not other:
        return []
    found = []
    for part in ("data", family(measure)):
        here, there = ((card.get("data") if part == "data" else part_of(card, measure)) or {} for card in (one, other))
        found += [(f"{part}.{field}", here.get(field), there.get(field)) for field in sorted({*here, *there})
                  if here.get(field) != there.get(field)]
    return found
