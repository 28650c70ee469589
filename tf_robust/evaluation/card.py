"""The evaluation card: what numbers depend on beside the model. Numbers with other cards do not belong in one column."""

import os

from tf_robust import corruptions, metrics
from tf_robust.corrupted_datasets import reader
from tf_robust.data import toy
from tf_robust.evaluation import adversarial, boundary
from tf_robust.evaluation.measure import parse_measure
from tf_robust.evaluation.sets import NOISE_SEED, training_std

_BINS = "100 examples a bin by confidence, the last bin included"


def card_of(source, eval_config, training_source, imagenet=False):
    """The card of a measurement: {family: {field: value}}, for JSON.

    Args:
        source: measured on. eval_config: a `EvalConfig`. training_source: gives NUN its deviations.
        imagenet: AlexNet's flip probabilities normalize flip rates.

    Returns:
        `data` holds for all measures; the others (`noise`, `corruptions`, `flips`, ...) for their families.
    """
    card = {
        "data": {
            "name": source.name,
            "split": source.split,
            "pictures": len(source),
            "fingerprint": source.fingerprint(),
            "picture_shape": list(source.image_shape),
            "class_mask": f"{len(source.class_mask)} classes" if source.class_mask else "none",
            **({"image_fit": str(source.fit)} if source.fit else {}),
        }
    }
    chosen, shape = set(eval_config.evaluations), source.image_shape
    if chosen & {"noise", "noise_floor"}:
        card["noise"] = {"seed": NOISE_SEED, "rate": corruptions.RATE, "deviations_of": training_source.fingerprint()}
        floor = eval_config.floor(training_std(training_source))
        if floor != corruptions.FLOOR:  # that of every card without this part
            card["nun"] = {"floor": floor}
    made = corruptions.describe(shape, eval_config.constants(shape), eval_config.protocol(shape), eval_config.frost_dir or None)
    if "corruptions" in chosen:
        card["corruptions"] = {"normalizer": "none", **_how_corrupted(eval_config, made)}
    if "perturbations" in chosen:
        card["flips"] = {
            "seed": NOISE_SEED,
            "sequences": eval_config.sequences,
            "constants": made["constants"],
            "protocol": "cifar_c",
            "normalizer": "none",
        }
        if imagenet and eval_config.sequences != "cifar_p":
            table = metrics.reference_table("alexnet_imagenet_p")
            card["flip_rates"] = {**card["flips"], "normalizer": table["network"], **{name: table[name] for name in ("verified", "source")}}
    if "calibration" in chosen:
        card["calibration"] = {"bins": _BINS}
    if "boundary" in chosen:
        card["boundary"] = {"square": [-toy.LIMIT, toy.LIMIT], "grid": boundary.GRID, "gradient": "of class 1's probability"}
    attacked = {"images": eval_config.attack_subset} if eval_config.attack_subset else {}
    if "adversarial" in chosen:
        if "ensemble" in eval_config.attack:
            card["robust"] = {"attack": "ensemble", "seed": adversarial.SEED, "queries": eval_config.attack_queries, **attacked}
        if "pgd" in eval_config.attack:
            card["robust_pgd"] = {
                "attack": "pgd",
                "seed": adversarial.SEED,
                "steps": adversarial.PGD_STEPS,
                "starts": adversarial.PGD_STARTS,
                **attacked,
            }
        if attacked:
            card["fgsm"] = attacked
        card["checks"] = {"seed": adversarial.SEED, "pictures": adversarial.CHECKED}
    if "attack_curves" in chosen:
        card["distance"] = {"seed": adversarial.SEED, **attacked}
    return card


def _how_corrupted(eval_config, made):
    """On the fly, or as the card of a prepared set says; of a set that others made, only its name is known."""
    if not eval_config.corrupted_dir:
        return {"seed": NOISE_SEED, **made}
    noted = reader.card_of(eval_config.corrupted_dir) if os.path.isdir(eval_config.corrupted_dir) else {}
    known = {field: noted[field] for field in ("seed", *made) if field in noted}
    return known or {"prepared_set": os.path.basename(eval_config.corrupted_dir.rstrip("/"))}


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
        model: digest of the model's files. interface: a `loading.ModelInterface` as a dictionary. card: as `card_of`. name: of the set.
    """
    return {"model": model, "interface": interface, "data": card["data"], "family": part_of(card, name)}


def part_of(card: dict, measure: str) -> dict | None:
    """Returns the fields of a card that a measure depends on beside `data`, None where it has none; those of `nun` include its floor."""
    name = parse_measure(measure).plain
    fields = card.get(name.card_family)
    return {**fields, **card.get("nun", {})} if fields and str(name) == "nun" else fields


def difference(measure, one, other):
    """The fields in which two cards differ for one measure: [(field, here, there)]; none where a card is missing."""
    if not one or not other:
        return []
    found = []
    for part in ("data", parse_measure(measure).card_family):
        here, there = ((card.get("data") if part == "data" else part_of(card, measure)) or {} for card in (one, other))
        found += [
            (f"{part}.{field}", here.get(field), there.get(field))
            for field in sorted({*here, *there})
            if here.get(field) != there.get(field)
        ]
    return found
