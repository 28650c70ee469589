"""Evaluates a model in several formats side by side: what is deployed, not what was trained."""

import dataclasses
import os
from collections.abc import Callable, Sequence

from tf_robust.data import WHOLE, has_splits
from tf_robust.evaluation import EvalConfig, MetricValue, model_evaluation
from tf_robust.evaluation.evaluation_data import (
    EvaluationData,
    print_default_split,
    trainings_on,
    with_default_split,
    with_validation_of_card,
)
from tf_robust.export.exporter import export_model
from tf_robust.report.evaluated_model import EvaluatedModel
from tf_robust.saved_models import latency, loading
from tf_robust.saved_models.formats import FORMATS, files, size
from tf_robust.saved_models.interface import read_card
from tf_robust.utils import environment
from tf_robust.utils.files import write_json
from tf_robust.utils.progress import print_note

_BY_GRADIENT = ("attack_curves", "utility")  # evaluations


def evaluate_formats(
    model: EvaluatedModel,
    formats: Sequence[str],
    folder: str,
    *,
    attack_chosen: bool = False,
    check: Callable[[str, EvalConfig], object] = lambda name, config: None,
) -> list[dict]:
    """Exports a model, and evaluates each file by its own runtime on the same images.

    By default attacks are the same for all formats: Square, and PGD transferred from the model itself, as most formats have no gradients.
    What needs gradients is left out for a format without them, with a note.

    Args:
        model: to export and to evaluate.
        formats: of `formats.files`.
        folder: gets a folder per format, and `exported`.
        attack_chosen: whether the user chose the attacks.
        check: called with each format and its evaluation before anything is written, to refuse it.

    Returns:
        The evaluations, one for each format, as in `evaluation.json`, with the folder of their records as "measured_in".

    Raises:
        ValueError: with adaptation, and as in `exporter.export_model` and `model_evaluation.evaluate`.
    """
    if (adaptation := model.data.eval_config.adaptation) != "none":
        raise ValueError(
            f"Expected adaptation=none with formats: batch normalization is part of the files. Received: {adaptation}. Try: "
            "the model itself in a folder of its own, and one report of both"
        )
    given = _with_split(_with_attacks(model, attack_chosen), model, formats)
    configs = {name: _of_format(name, given.eval_config) for name in formats}
    for name, (config, _) in configs.items():
        check(name, config)
    paths = export_model(model, formats, os.path.join(folder, "exported"), reuse=True)
    evaluations = []
    for name, path in paths.items():
        print(f"{name}:", flush=True)
        config, note = configs[name]
        if note:
            print_note(f"{name} is {note}.")
        content = _evaluate(name, path, dataclasses.replace(given, eval_config=config), os.path.join(folder, name), model)
        content |= {
            "notes": [*content.get("notes", ()), *filter(None, [note, _note_on_integers(name, config)])],
            "exported_from": model.path,
        }
        write_json(os.path.join(folder, name, "evaluation.json"), content)
        evaluations.append({**content, "measured_in": os.path.join(folder, name)})
    return evaluations


def _with_split(given: EvaluationData, model: EvaluatedModel, formats: Sequence[str]) -> EvaluationData:
    """Returns data with the split that all formats are evaluated on, and prints a note if the user chose none and the data have none."""
    card = read_card(model.path)
    if not has_splits(given.config.data) and given.eval_config.evaluation_split != WHOLE:
        given = dataclasses.replace(given, config=with_validation_of_card(card, model.path, given.config))
    if model.split_chosen:
        return given
    trained = trainings_on(card, given.config.data)
    calibrated = [] if trained else [name for name in FORMATS if FORMATS[name].quantized and name in formats]
    given = with_default_split(given, card, calibrated)
    print_default_split(given, calibrated)
    return given


def _with_attacks(model: EvaluatedModel, attack_chosen: bool) -> EvaluationData:
    """Returns data with attacks that suit every format, unless the user chose others."""
    config = model.data.eval_config
    if "adversarial" not in config.evaluations:
        return model.data
    config = dataclasses.replace(config, attack=config.attack if attack_chosen else ("square",))
    if config.surrogate:
        return dataclasses.replace(model.data, eval_config=config)
    return dataclasses.replace(model.data, eval_config=dataclasses.replace(config, surrogate=model.path), surrogate=model.load())


def _note_on_integers(name, config):
    if not FORMATS[name].quantized or "adversarial" not in config.evaluations or "square" not in config.attack:
        return ""
    return (
        "Square alone can overstate the robustness of integers, whose rounded logits may hide small changes of an image; of the accuracies "
        "under Square and under the transferred attack the lower one counts"
    )


def _of_format(name, config):
    return (config, "") if FORMATS[name].gradients else without_gradients(config)


def without_gradients(config: EvalConfig) -> tuple[EvalConfig, str]:
    """Returns an evaluation without what needs gradients, and a note on what was left out; an empty one if nothing was.

    Raises:
        ValueError: no evaluation is left.
    """
    evaluations = tuple(one for one in config.evaluations if one not in _BY_GRADIENT)
    if not evaluations:
        differentiable = ",".join(name for name in files() if FORMATS[name].gradients)
        raise ValueError(
            f"Expected an evaluation that needs no gradients, for formats without them. Received: {','.join(config.evaluations)}. "
            f"Try: evaluations=clean,{','.join(config.evaluations)}, or formats={differentiable}"
        )
    attack = tuple(one for one in config.attack if one == "square") or ("square",)
    missing = [f"the evaluation {one}" for one in config.evaluations if one not in evaluations]
    if "adversarial" in evaluations:
        missing += [f"attack={one} (Square in its place)" for one in config.attack if one != "square"]
    if "certified" in evaluations and config.smoothing_attack:
        missing.append("the attack on the smoothed model")
    note = f"without gradients, so left out: {', '.join(missing)}" if missing else ""
    return dataclasses.replace(config, evaluations=evaluations, attack=attack, smoothing_attack=False), note


def _evaluate(name: str, path: str, given: EvaluationData, folder: str, model: EvaluatedModel) -> dict:
    """Returns the evaluation of one file, with its size and its latency."""
    trust = model.interface.trust
    classifier = loading.load_classifier(path, loading.ModelInterface(trust=trust, input_size=model.interface.input_size))
    done = model_evaluation.evaluate(
        classifier, given, folder, row=name, saved_model=path, split_chosen=True, model_name=os.path.basename(os.path.abspath(model.path))
    )
    metrics = [MetricValue("deployed", "bytes").with_value(size(path), 1)]
    try:
        milliseconds, calls = latency.milliseconds(path, tuple(classifier.card["input"]["shape"][1:]), trust)
        metrics.append(MetricValue("deployed", "milliseconds").with_value(milliseconds, calls))
    except RuntimeError as error:  # such as a Keras file with classes of the user's own, which another process does not know
        print_note(f"the latency of {name} is left out. {error}")
    rows = [*done.content["rows"], *(metric.to_json() for metric in metrics)]
    return {**done.content, "rows": rows, "cpu": environment.cpu_model()}
