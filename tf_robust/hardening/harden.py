"""Hardens a model: search on training and validation images, delivery, and final evaluation on test images never used before."""

import dataclasses
import math
import os
import shutil
import tempfile

import numpy as np
import tensorflow as tf

from tf_robust import data, methods, models
from tf_robust.data.source import Source
from tf_robust.evaluation.evaluation_data import EvaluationData, check_unchanged
from tf_robust.evaluation.model_evaluation import check_model_suits, note_classes, with_checked_inputs, with_known_outputs
from tf_robust.hardening import candidates, training
from tf_robust.hardening.config import HardenConfig, parse_budget
from tf_robust.hardening.data import check_no_confidence, final_data, fraction_held_out, parts_of, validation_set
from tf_robust.hardening.diagnosis import diagnose
from tf_robust.hardening.final_evaluation import FinalEvaluation
from tf_robust.hardening.result import HARDENED, Hardened, SearchRecord
from tf_robust.hardening.search import Clock, Frontier, Search
from tf_robust.hardening.trainable import check_gradients, trainable
from tf_robust.hardening.trials import TrialStore, best_point, choose, distinct, gain
from tf_robust.metrics.paired import paired_difference
from tf_robust.report.sections import interval
from tf_robust.saved_models import loading
from tf_robust.saved_models.formats.keras_files import compiled_as_given
from tf_robust.saved_models.interface import trainings
from tf_robust.utils.files import write_json
from tf_robust.utils.locks import held
from tf_robust.utils.progress import duration

BATCH_SIZE = 64
NEAR_CHANCE = 0.02  # of the way from the accuracy of chance to 1
ABOVE_CHANCE = 0.2  # of this way: too much for a model that guesses, if there are images enough
SMALL_GAIN = 0.01  # a gain that is called little


def harden(
    classifier: loading.Classifier,
    given: EvaluationData,
    config: HardenConfig,
    folder: str,
    *,
    validation: Source | None = None,
    test: Source | None = None,
    temporary: tempfile.TemporaryDirectory | None = None,
) -> Hardened:
    """Searches a more robust model, writes it, and proves it on test images. An interrupted search resumes from its folder.

    `given` describes the data and the final evaluation; `validation` and `test` are images in memory to choose on, and for the final
    evaluation. Raises ValueError if the model cannot be trained, does not suit the images or is near chance, or the budget is too small.
    """
    with held(folder):
        return _harden(classifier, given, config, folder, validation, test, temporary)


def _harden(classifier, given, config, folder, validation, test, temporary):
    check_no_confidence(given)
    check_gradients(classifier)
    clock = Clock()
    given = dataclasses.replace(given, model_size=loading.image_size_of(classifier), num_classes=classifier.num_classes or 0)
    if given.images is None and (validation is None or test is None):
        check_unchanged(classifier.card, classifier.path, given.config)
    parts = parts_of(given, validation, test, config=config)
    print(parts.summary)
    check_model_suits(classifier, parts.validation)
    note_classes(parts.validation, classifier.num_classes or parts.validation.num_classes)
    classifier = with_checked_inputs(with_known_outputs(classifier, parts.validation), parts.validation)
    model = trainable(classifier, parts.train.image_shape)
    check_gradients(model.classifier, parts.train.image_shape)
    if isinstance(model.model, tf.keras.Model):
        compiled_as_given(model.model, classifier.path, classifier.interface.trust)
    images = validation_set(parts, config, given)
    predict = tf.function(lambda batch: model.classifier(batch), reduce_retracing=True)
    store = TrialStore(os.path.join(folder, "trials"), _arguments(config, given, parts, model))
    clock.add(store.seconds)
    if finished := store.finished():
        print(f"Resumed: {len(finished)} finished trials are read from {store.folder}.")
    search = _search(model, images, predict, parts, config, given.seed, store, clock)
    diagnosis = diagnose(predict, images, parts.train.class_names, config.attack_norm, config.attack_radius)
    final = FinalEvaluation(model, final_data(parts, given), config, folder)
    print("\n".join(diagnosis.lines()))
    start = search.start
    print(
        f"Initial model: clean {start.clean:.3f} on {len(start.outcome.clean):,} validation images, "
        f"target ({config.target}) {start.target:.3f} on {len(start.outcome.target):,} validation images."
    )
    seconds = final.seconds(predict, parts.validation)
    print(f"Budget of the search: {config.budget}. The final evaluation that follows takes about {duration(seconds)}.")
    frontier, interrupted = _run(search, model)
    tried = [point for trial in search.trials for point in trial.points]
    choice = choose(start, frontier.points, config.max_clean_loss, tried)
    held_out, name = fraction_held_out(given, classifier, validation, test), "" if given.images is not None else given.config.data
    trained_on = [*trainings(classifier.card)]
    if name:
        division = None if data.has_splits(name) else data.describe_division(name, data_range=given.config.data_range)
        trained_on.append({"data": name, "validation_fraction": held_out, "division": division})
    record = SearchRecord(
        data=name,
        start=start,
        diagnosis=diagnosis,
        trials=search.trials,
        frontier=frontier.points,
        choice=choice,
        seconds=clock.seconds,
        seed=given.seed,
        batch_size=search.trainers.batch_size,
        interrupted=interrupted,
        validation_fraction=held_out,
        trained_on=trained_on,
    )
    notes = [
        summary(choice, config, bool(search.trials)),
        *_control_note(search, choice, [*frontier.points, *tried]),
        *([parts.note] if parts.note else []),
        f"The search took {duration(clock.seconds)}.",
    ]
    print("\n".join(notes))
    weights = frontier.weights(choice.point) if choice and choice.helps else search.trainers.start
    model.network.set_weights(weights)
    hardened = Hardened(model, record, config, notes, temporary)
    if hardened.changed:
        _deliver(hardened, folder)
    elif not interrupted:  # else the model of a search that was complete would be lost
        _remove_delivered(folder, hardened)
    if interrupted:
        return hardened
    try:
        hardened.evaluations, hardened.images = final.run(search.trainers.start, weights if hardened.changed else None)
    except KeyboardInterrupt:
        print(f"Interrupted during the final evaluation. {'The hardened model is written. ' if hardened.changed else ''}No report.")
        raise
    write_json(os.path.join(folder, "harden.json"), hardened.card())
    for sentence in hardened.sentences:
        print(sentence)
    if hardened.changed:
        hardened.update_card(os.path.join(folder, HARDENED) + model.suffix)
    return hardened


def _search(model, images, predict, parts, config, seed, store, clock):
    """The search, which has evaluated the initial model."""

    def evaluate(weights):
        model.network.set_weights(weights)
        return images.evaluate(predict)

    stages = () if models.is_network(model.network) else models.stage_layers(model.network)
    batch_size, values = min(BATCH_SIZE, len(parts.train)), math.prod(parts.train.image_shape)
    search = Search(
        training.Trainers(model.network, parts.train, batch_size=batch_size, seed=seed, options=model.options, stages=stages),
        evaluate,
        candidates.candidates(config.target, config.attack_norm, config.attack_radius, values=values, skip=model.skip),
        budget=parse_budget(config.budget),
        max_clean_loss=config.max_clean_loss,
        store=store,
        clock=clock,
        has_batch_norm=model.has_batch_norm,
        has_layers=isinstance(model.model, tf.keras.Model),
    )
    _check_start(search.start, images.clean.labels, model.classifier.path)
    search.check_budget()
    model.network.set_weights(search.trainers.start)
    return search


def _control_note(search, choice, compared):
    """A sentence on plain fine-tuning for as long as the finalists; none if it was not reached, or is the choice."""
    if choice and any(member.candidate.control for member in choice.point.members):
        return []
    controls = [trial for trial in search.trials if trial.candidate.control and trial.rung == 2]
    if not controls:
        return []
    control, start = controls[-1], search.start.outcome
    point = best_point(search.start, control.points, search.max_clean_loss)
    clean = paired_difference(point.outcome.clean, start.clean)
    target = paired_difference(point.outcome.target, start.target)
    changes = f"target {_difference(target)}, clean accuracy {_difference(clean)}"
    note = f"On validation images, the control, plain fine-tuning for {duration(control.seconds)} ({control.steps:,} steps): {changes}."
    if not choice or not choice.helps:
        return [note]
    more = gain(choice.point, point, distinct(compared))
    significant = more["low"] is not None and more["low"] > 0
    return [f"{note} Target of the chosen model minus that of the control: {_difference(more)}{', not significant' * (not significant)}."]


def _difference(paired):
    """A difference and its interval, for a sentence."""
    return f"{paired['mean']:+z.3f} {interval(paired['low'], paired['high'], '+')}".rstrip()


def _run(search, model):
    """Runs a search. Returns its frontier, and whether it was interrupted."""

    def reestimate(weights):
        views = (batch.views[0] for batch in search.trainers.batches(("augmix",)).take(training.BATCHES))
        network = methods.METHODS["cross_entropy"](model.network, **model.options).network
        return training.reestimated(model.network, network, weights, views)

    frontier = Frontier(search)
    try:
        search.run()
        frontier.build(reestimate if model.has_batch_norm else None)
        return frontier, False
    except KeyboardInterrupt:
        print("Interrupted: the best model so far is written. The same command resumes the search.")
    frontier = Frontier(search)
    frontier.add_trials()
    return frontier, True


def summary(choice, config: HardenConfig, tried: bool = True) -> str:
    """Returns a sentence on the choice of `choose`; `tried`: whether any candidate was."""
    if not choice and not tried:
        return "Interrupted before a candidate was tried: the model is unchanged."
    if not choice:
        return f"No candidate keeps the accuracy on unchanged validation images within {config.max_clean_loss:g}: the model is unchanged."
    point, target, clean = choice.point, choice.target, choice.clean
    change = _difference(target)
    best = f"the best of {choice.compared} models" if choice.compared > 1 else "the best"
    if not choice.helps:
        more = (
            f" About {float(f'{choice.images_needed:.1g}'):,.0f} validation images would be needed to tell." if choice.images_needed else ""
        )
        return f"Nothing improves the target ({config.target}) outside the interval: {best} gains {change}.{more} The model is unchanged."
    little = " The gain is small." if target["mean"] < SMALL_GAIN else ""
    unsure = ""
    if clean["low"] < -config.max_clean_loss:
        unsure = f" These images do not exclude a larger loss of clean accuracy than {config.max_clean_loss:g}."
    return (
        f"Chosen on {target['count']:,} validation images: {point.name}. Target ({config.target}) {change}"
        f"{f', as {best}' * (choice.compared > 1)}, clean accuracy {_difference(clean)}.{unsure}{little}"
    )


def _arguments(config, given, parts, model):
    """Everything that the trials of a search depend on, for JSON."""
    return {
        **dataclasses.asdict(config),
        "seed": given.seed,
        "data": given.config.data,
        "classes": given.config.classes,
        "training images": parts.train.fingerprint(),
        "validation images": parts.validation.fingerprint(),
        "images of the target": parts.shift.validation.source.fingerprint() if parts.shift else None,
        "model": model.classifier.digest(),
        "interface": model.classifier.interface.conventions(),
    }


def _check_start(start, labels, path):
    """Raises ValueError if the model does not classify better than chance: by the mean accuracy of the classes, 1 / C for a constant.

    With few images an accuracy above chance may be chance too; the message then says how many images tell them apart.
    """
    classes, counts = np.unique(labels, return_counts=True)
    balanced = float(np.mean([start.outcome.clean[labels == label].mean() for label in classes]))
    chance = 1.0 / len(classes)
    error = math.sqrt(chance * (1 - chance) * np.mean(1 / counts) / len(classes))
    if ABOVE_CHANCE * (1 - chance) <= balanced - chance <= 2 * error:
        needed = math.floor(round(len(labels) * (2 * error / (balanced - chance)) ** 2, 6)) + 1
        raise ValueError(
            f"Expected at least {needed:,} validation images to tell the accuracy of {path} from that of chance ({chance:.3f}). Received: "
            f"{len(labels):,}, with a mean accuracy of {balanced:.3f} over the classes. Try: more images (validation images are 15 % of "
            "data without splits), or validation_fraction"
        )
    if balanced <= chance + max(NEAR_CHANCE * (1 - chance), 2 * error):
        raise ValueError(
            f"Expected a trained model. Received: {path} with a mean accuracy of {balanced:.3f} over the classes of {len(labels)} "
            f"validation images, near that of chance, {chance:.3f}. Try: another input_range (auto finds it), or check the class order"
        )


def _deliver(hardened, folder):
    """Writes the model and its record and removes an earlier final evaluation; if that fails, the trials have the weights."""
    if os.path.exists(report := os.path.join(folder, "harden.html")):
        os.remove(report)
    write_json(os.path.join(folder, "harden.json"), hardened.card())  # first: it says on which images the model was trained
    try:
        hardened.save(os.path.join(folder, HARDENED))
    except OSError as error:
        raise OSError(f"{error}. The weights are kept in {os.path.join(folder, 'trials')}: the same command writes the model") from error


def _remove_delivered(folder, hardened):
    """Removes the model that the search had written when it was interrupted, and has not improved on since."""
    path = os.path.join(folder, HARDENED) + hardened.trainable.suffix
    if os.path.isfile(os.path.join(path, "saved_model.pb")):
        shutil.rmtree(path)
    elif os.path.isfile(path):
        os.remove(path)
