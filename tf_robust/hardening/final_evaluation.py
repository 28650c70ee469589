"""Final evaluation of a hardened model: it and the initial model on test images that the search never used."""

import dataclasses
import math
import os
from collections.abc import Callable, Mapping

from tf_robust import evaluation, metrics
from tf_robust.attacks.attack import Predict
from tf_robust.configs.evaluation import parse_threat
from tf_robust.evaluation import model_evaluation
from tf_robust.evaluation.evaluation_data import EvaluationData
from tf_robust.hardening.config import HardenConfig, evaluations_of
from tf_robust.hardening.data import Parts
from tf_robust.hardening.plan import FINAL_IMAGES
from tf_robust.hardening.result import HARDENED, START
from tf_robust.hardening.target import ValidationSet, corruptions_of
from tf_robust.hardening.trainable import TrainableModel
from tf_robust.hardening.training import Weights
from tf_robust.report.images import Image, draw_gains
from tf_robust.report.sections import interval
from tf_robust.saved_models import loading
from tf_robust.utils.files import write_json
from tf_robust.utils.progress import at_intervals

ATTACKED_IMAGES = 200  # unless --attack_subset says otherwise
FOLDER = "final_evaluation"  # has a folder for each model
_CAPTION = "images that only the {} model classifies correctly; under each the true class and the prediction of the other model."
_CAPTIONS = {START: f"Fixed: {_CAPTION.format(HARDENED)}", HARDENED: f"Newly wrong: {_CAPTION.format(START)}"}


def final_data(parts: Parts, given: EvaluationData, config: HardenConfig, images: int = FINAL_IMAGES) -> EvaluationData:
    """Returns the data and the configuration of the final evaluation: at most `images` test images, or `subset`, and the target.

    The images of new conditions are a shifted data set.
    """
    eval_config, shift, shifts = _with_target(given.eval_config, config, parts.test.image_shape), parts.shift, dict(given.shift_images)
    if shift:
        eval_config = dataclasses.replace(eval_config, shifts=tuple(dict.fromkeys((*eval_config.shifts, shift.data))))
        shifts[shift.data] = shift.test
    subset = eval_config.subset or images
    eval_config = dataclasses.replace(eval_config, subset=subset if subset < len(parts.test) else 0)  # a shift may have more images
    unmapped = dataclasses.replace(given.config, label_map="")  # labels are mapped
    given = dataclasses.replace(given, config=unmapped, eval_config=eval_config, shift_images=shifts)
    return dataclasses.replace(given, images=parts.test, training_images=parts.train)


def _with_target(eval_config, config, shape):
    """An evaluation with the metrics of the target of a search, unless it is a shift."""
    needed, chosen = evaluations_of(config.target), eval_config.evaluations
    names = dict.fromkeys(name for part in config.weights if part != "noise" for name in corruptions_of(part))
    of_bar = metrics.BAR[eval_config.bar_set(shape)] if "corruptions_bar" in chosen else ()
    of_all = (eval_config.corruptions or metrics.MEANS["mean19"]) if "corruptions" in chosen else ()
    if missing := [name for name in names if name not in (*of_bar, *of_all)]:
        eval_config = dataclasses.replace(eval_config, corruptions=(*of_all, *missing))
    else:
        needed = tuple(name for name in needed if name != "corruptions")
    eval_config = dataclasses.replace(eval_config, evaluations=tuple(dict.fromkeys((*chosen, *needed))))
    if config.target != "adversarial":
        return eval_config
    radius = f"{config.attack_norm}_{config.attack_radius:g}"
    if config.target not in chosen:
        return dataclasses.replace(eval_config, attack_radii=(radius,), attack_subset=eval_config.attack_subset or ATTACKED_IMAGES)
    given = [parse_threat(one) for one in eval_config.attack_radii]
    if any(norm == config.attack_norm and math.isclose(size, config.attack_radius, rel_tol=1e-4) for norm, size in given):
        return eval_config
    return dataclasses.replace(eval_config, attack_radii=(*eval_config.attack_radii, radius))


def num_images(final: EvaluationData) -> int:
    """Returns the number of test images of a final evaluation."""
    return final.eval_config.subset or len(final.images)  # type: ignore[arg-type]  # `final_data` has images


def evaluate(
    model: TrainableModel, final: EvaluationData, folder: str, weights: Mapping[str, Weights], log: Callable[[str], object]
) -> tuple[list[dict], list[Image]]:
    """Returns the evaluations (as in `evaluation.json`) of the initial and the hardened model, and figures of images on which they differ.

    `final` is of `final_data`; `folder` has the file of the hardened model, and gets a subfolder for each model; `weights`: {`START`, and
    `HARDENED` if something helps: weights}; `model` has the last ones afterwards; `log` is called with lines of progress.
    """
    done, evaluations, figures = {}, [], []
    for row, values in weights.items():
        model.network.set_weights(values)
        classifier = model.classifier if row == START else _load(os.path.join(folder, HARDENED + model.suffix), model.classifier, log)
        log(f"Evaluating the {row} model on {num_images(final):,} test images.")
        own = os.path.join(folder, FOLDER, row)
        os.makedirs(own, exist_ok=True)
        lines = at_intervals(log, 5.0, evaluation.IMPORTANT)
        done[row] = model_evaluation.evaluate_model(classifier, final, own, row=row, saved_model=classifier.path, log=lines)
        content = {**done[row].content, "method": "", "model": os.path.basename(classifier.path)}
        write_json(os.path.join(own, "evaluation.json"), content)
        evaluations.append({**content, "measured_in": own})
    source, records = done[START].source, {row: one.result.records for row, one in done.items()}
    for one in evaluations if HARDENED in weights else ():

        def load_baseline(row=one["row"]):
            model.network.set_weights(weights[row])
            return evaluation.masked(model.classifier, source.class_mask)

        with source.reading():
            path = os.path.join(one["measured_in"], "figures")
            drawn = draw_gains(path, source, done[START].result.sets, records, one["row"], load_baseline)
        if drawn:
            figures.append((drawn[0], _CAPTIONS[one["row"]]))
    model.network.set_weights([*weights.values()][-1])
    return evaluations, figures


def target_on_test(predict: Predict, model: TrainableModel, images: ValidationSet, weights: Mapping[str, Weights], target: str) -> str:
    """Returns a sentence on the target of the initial and the hardened model on test images, changed as the validation images were."""
    outcomes = {}
    for row, values in weights.items():
        model.network.set_weights(values)
        outcomes[row] = images.evaluate(predict).target
    change = metrics.paired_difference(outcomes[HARDENED], outcomes[START])
    low, high = change["low"], change["high"]
    significant = "not significant" if low is None or high is None or low <= 0 <= high else "significant"
    return (
        f"Target ({target}) on {change['count']:,} test images, at the severities of the search: {outcomes[START].mean():.3f} to "
        f"{outcomes[HARDENED].mean():.3f}, {change['mean']:+z.3f} {interval(low, high, '+')}, {significant}."
    )


def _load(path, classifier, log):
    """The hardened model as it was written; the model in memory if its file cannot be read without its custom classes."""
    try:
        return loading.load_classifier(path, classifier.interface)
    except ValueError as error:
        log(f"The model in memory is evaluated, not its file: {error}")
        return classifier
