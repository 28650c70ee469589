"""Hardens a model: search on training and validation images, delivery, and final evaluation on test images never used before."""

import dataclasses
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tf_robust import data, methods, models
from tf_robust.data.source import Source
from tf_robust.evaluation.evaluation_data import EvaluationData, check_unchanged
from tf_robust.evaluation.model_evaluation import (
    check_model_suits,
    classes_of_outputs,
    note_classes,
    with_checked_inputs,
    with_known_outputs,
)
from tf_robust.evaluation.scoring import first_images
from tf_robust.hardening import candidates, final_evaluation, plan, training
from tf_robust.hardening.config import HardenConfig, parse_budget
from tf_robust.hardening.data import fraction_held_out, parts_of, validation_set
from tf_robust.hardening.diagnosis import diagnose
from tf_robust.hardening.result import HARDENED, START, Hardened
from tf_robust.hardening.search import Frontier, Search
from tf_robust.hardening.trainable import check_gradients, trainable
from tf_robust.hardening.trials import ROUNDING, Point, SliceChange, TrialStore, best_point, choose, gain, worst_slice
from tf_robust.metrics.paired import paired_difference
from tf_robust.report.sections import interval
from tf_robust.saved_models import loading
from tf_robust.saved_models.formats.keras_files import compiled_as_given
from tf_robust.saved_models.interface import trainings
from tf_robust.utils.files import write_json
from tf_robust.utils.locks import held
from tf_robust.utils.progress import duration, repeated

_AFTER_THE_SEARCH = ("require_recipe", "state_dict")  # arguments on which trials do not depend
BATCH_SIZE = 64
BATCH_PIXELS = 1 << 20  # of a training batch, at most, but for `MIN_BATCH_SIZE`
MIN_BATCH_SIZE = 16
OWN_KIND = (
    "The chosen model is adapted to noise, as the target has; the evaluations corruptions and corruptions_bar have other changes, too."
)
NEAR_CHANCE = 0.02  # of the way from the accuracy of chance to 1
ABOVE_CHANCE = 0.2  # of this way: too much for a model that guesses, if there are images enough


def harden(
    classifier: loading.Classifier,
    given: EvaluationData,
    config: HardenConfig,
    folder: str,
    *,
    validation: Source | None = None,
    test: Source | None = None,
    temporary: tempfile.TemporaryDirectory | None = None,
    begin: float | None = None,
    log: Callable[[str], object],
) -> Hardened:
    """Searches a more robust model, writes it, and evaluates it on test images. An interrupted search resumes from its folder.

    The weights of `classifier` change. `given` describes the data and the final evaluation; `validation` and `test` are images in memory to
    choose on, and for the final evaluation; `temporary` is the folder, if it is to be deleted with the result; the time of the budget began
    at `begin`, of `time.monotonic`, or now; `log` is called with lines of progress. Raises ValueError if the model cannot be trained, does
    not suit the images or is near chance, or the budget is too short.
    """
    with held(folder):
        begin = time.monotonic() if begin is None else begin
        if given.eval_config.needs_validation_set:
            raise ValueError(
                "calibrate, abstain_accuracy and conformal have no effect on harden, whose validation images are used to choose the model. "
                "Try: tf-robust evaluate of the hardened model, with other validation images"
            )
        check_gradients(classifier)
        given = given.for_model(classifier)
        if given.images is None and (validation is None or test is None):
            check_unchanged(classifier.card, classifier.path, given.config)
        if not given.num_classes:  # which TorchScript shows only in its outputs
            shown = given.source("train", mapped=False) if given.images is None else given.images
            given = dataclasses.replace(given, num_classes=classes_of_outputs(classifier, shown))
        parts = parts_of(given, validation, test, config=config)
        log(parts.summary)
        check_model_suits(classifier, parts.validation)
        note_classes(parts.validation, given.num_classes)
        classifier = with_checked_inputs(with_known_outputs(classifier, parts.validation), parts.validation)
        examples = first_images(parts.validation, loading.COMPARED)[0]
        model = trainable(loading.as_keras(classifier, examples), parts.train.image_shape, config.state_dict)
        check_gradients(model.classifier, parts.train.image_shape)
        if isinstance(model.model, tf.keras.Model):
            compiled_as_given(model.model, classifier.path, classifier.interface.trust)
        predict = tf.function(lambda batch: model.classifier(batch), reduce_retracing=True)
        store = TrialStore(os.path.join(folder, "trials"), _arguments(config, given, parts, model))
        batch_size, final = _batch_size(parts.train), final_evaluation.final_data(parts, given, config)
        if finished := store.finished():
            log(f"Resumed: {len(finished)} finished trials are read from {store.folder}.")
            planned = plan.Plan(**store.plan)
            begin -= store.seconds  # of interrupted processes
        else:
            with repeated(lambda: "  measuring the time of a batch", log):
                subset = given.eval_config.subset
                planned = plan.make(predict, model.network, parts, final, config, subset=subset, batch_size=batch_size, begin=begin)
            log(planned.summary(config))
        final = final_evaluation.final_data(parts, given, config, planned.final)
        with repeated(lambda: "  changing validation images by the target", log):
            images = validation_set(parts, config, given, predict, planned.images, planned.clean, planned.severities)
        store.plan = dataclasses.asdict(dataclasses.replace(planned, severities=dict(images.pairs) or None))
        trainers = _trainers(model, parts.train, batch_size, given.seed)
        evaluate, record = (lambda: images.evaluate(predict)), _recorder(os.path.join(folder, "tensorboard"))
        search = _search(model, trainers, evaluate, config, planned, store, lambda: time.monotonic() - begin, log, record)
        start = search.start
        _check_start(start, images.clean.labels, model.classifier.path)  # type: ignore[union-attr]
        with repeated(lambda: "  diagnosing the initial model", log):
            diagnosis = diagnose(predict, images, parts.train.class_names, config.attack_norm, config.attack_radius, planned.diagnosis)
        log("\n".join(diagnosis.lines()))
        log(
            f"Initial model: clean {start.clean:.3f} on {len(start.outcome.clean):,} validation images, "
            f"target ({config.target}) {start.target:.3f} on {len(start.outcome.target):,} validation images."
        )
        frontier, interrupted = _run(search, model, candidates.mixture_views(config.weights))
        tried = [point for trial in search.trials for point in trial.points]
        slices = {"class": images.clean.labels} | ({} if images.groups is None else {"group": images.groups})  # type: ignore[union-attr]
        class_loss = config.max_class_loss
        choice = choose(start, frontier.points, config.max_clean_loss, tried, slices=[*slices.values()], max_class_loss=class_loss)
        held_out, name = fraction_held_out(given, classifier, validation, test), "" if given.images is not None else given.config.data
        trained_on = [*trainings(classifier.card)]
        if name:
            division = None if data.has_splits(name) else data.describe_division(name, data_range=given.config.data_range)
            trained_on.append({"data": name, "validation_fraction": held_out, "division": division})
        compared = [*frontier.points, *tried]
        notes = [summary(choice, config, bool(search.trials)), *_control_note(search, choice, compared)]
        if choice and choice.helps and choice.point.is_control:
            notes.insert(0, control_wins(start, choice.point, compared, config.max_clean_loss))
        if choice and choice.helps and choice.point.members:
            worst = {kind: worst_slice(start, choice.point, values) for kind, values in slices.items()}
            worst["class"] = worst["class"]._replace(value=parts.train.class_names[worst["class"].value])  # two may have one name
            notes += [slice_note(change, kind, len(np.unique(slices[kind]))) for kind, change in worst.items()]
        if choice and choice.helps and not candidates.NOISES.isdisjoint(config.weights):
            adapted = choice.point.reestimated or any(member.candidate.trains_on_noise for member in choice.point.members)
            notes += [OWN_KIND] * adapted
        notes += [severity_note(images.pairs), parts.note]
        notes = [*filter(None, notes), f"The search ended after {duration(search.clock())}."]
        log("\n".join(notes))
        hardened = Hardened(
            model,
            config,
            notes,
            start=start,
            diagnosis=diagnosis,
            trials=search.trials,
            points=frontier.points,
            choice=choice,
            data=name,
            validation_fraction=held_out,
            trained_on=trained_on,
            seconds=search.clock(),
            seed=given.seed,
            batch_size=search.trainers.batch_size,
            interrupted=interrupted,
            temporary=temporary,
        )
        weights = {START: search.trainers.start} | ({HARDENED: frontier.weights(hardened.chosen)} if hardened.chosen else {})
        model.network.set_weights([*weights.values()][-1])
        if hardened.changed:
            _deliver(hardened, folder, examples)
        elif not interrupted:  # else the model of a search that was complete would be lost
            for suffix in (model.suffix, *model.other_suffixes):
                _remove_delivered(os.path.join(folder, HARDENED) + suffix)
        if interrupted:
            return hardened
        try:
            hardened.evaluations, hardened.images = final_evaluation.evaluate(model, final, folder, weights, log)
            if hardened.changed and images.pairs:
                with repeated(lambda: "  evaluating the target on test images", log):
                    count = min(planned.images, final_evaluation.num_images(final))
                    tested = dataclasses.replace(parts, validation=parts.test)
                    changed = validation_set(tested, config, given, predict, count, count, dict(images.pairs))
                    hardened.target_on_test = final_evaluation.target_on_test(predict, model, changed, weights, config.target)
        except KeyboardInterrupt:
            log(f"Interrupted during the final evaluation. {'The hardened model is written. ' if hardened.changed else ''}No report.")
            raise
        write_json(os.path.join(folder, "harden.json"), hardened.card())
        if hardened.changed:
            log("\n".join(hardened.sentences))
            hardened.update_card(os.path.join(folder, HARDENED) + model.suffix)
        return hardened


def _batch_size(train):
    height, width, _ = train.image_shape
    return min(BATCH_SIZE, max(MIN_BATCH_SIZE, BATCH_PIXELS // (height * width)))


def _trainers(model, train, batch_size, seed):
    stages = () if models.is_network(model.network) else models.stage_layers(model.network)
    options = {"batch_size": min(batch_size, len(train)), "seed": seed, "options": model.options, "stages": stages}
    return training.Trainers(model.network, train, **options)


def _recorder(folder):
    """A function that records values for TensorBoard, at a step that is the second of the search."""
    writer = tf.summary.create_file_writer(folder)

    def record(values, seconds):
        with writer.as_default(seconds):
            for name, value in values.items():
                tf.summary.scalar(name, value)
        writer.flush()

    return record


def _search(model, trainers, evaluate, config, planned, store, clock, log, record):
    """The search, which has evaluated the initial model."""

    def evaluate_weights(weights):
        model.network.set_weights(weights)
        return evaluate()

    budget, train = parse_budget(config.budget), trainers.source
    if not budget.in_steps:
        budget = budget._replace(amount=budget.amount - planned.final_seconds)
    values, rate = math.prod(train.image_shape), _batch_size(train) / BATCH_SIZE
    target = config.weights or (config.target,)
    recipes = candidates.candidates(target, config.attack_norm, config.attack_radius, values=values, skip=model.skip)
    return Search(
        trainers,
        evaluate_weights,
        [dataclasses.replace(one, learning_rate=one.learning_rate * rate) for one in recipes],
        budget=budget,
        begin=planned.begin,
        shortest=planned.shortest,
        max_clean_loss=config.max_clean_loss,
        store=store,
        clock=clock,
        log=log,
        record=record,
        has_batch_norm=model.has_batch_norm,
        has_layers=isinstance(model.model, tf.keras.Model),
    )


def _run(search, model, mixture):
    """Runs a search. Returns its frontier, and whether it was interrupted; batch norm is re-estimated on a mixture of views."""

    def reestimate(weights):
        batches = search.trainers.batches(mixture).take(training.BATCHES)
        images = (tf.concat(batch.views, axis=0) for batch in batches)
        network = methods.METHODS["cross_entropy"](model.network, **model.options).network
        return training.reestimate(model.network, network, weights, images)

    try:
        search.run()
        frontier = Frontier(search)
        frontier.build(reestimate if model.has_batch_norm else None)
        return frontier, False
    except KeyboardInterrupt:
        search.log("Interrupted: the best model so far is written. The same command resumes the search.")
    return Frontier(search), True


def summary(choice, config: HardenConfig, tried: bool = True) -> str:
    """Returns a sentence on the choice of `choose`; `tried`: whether any candidate was."""
    if not choice and not tried:
        return "Interrupted before a candidate was tried: the model is unchanged."
    if not choice:
        limits = f"{config.max_clean_loss:g}{f', of each class {config.max_class_loss:g}' * (config.max_class_loss < 1)}"
        return f"No candidate keeps the accuracy on unchanged validation images within {limits}: the model is unchanged."
    change, best = f"({config.target}) {_difference(choice.target)}", f"the best of {choice.compared} models with interpolations"
    if not choice.helps:
        needed = float(f"{choice.images_needed:.2g}")
        more = f" About {needed:,.0f} validation images would be needed to tell." if needed else ""
        return f"Nothing improves the target significantly: {change}, {best}.{more} The model is unchanged."
    clean = f"clean accuracy {_difference(choice.clean)}, maximum loss {config.max_clean_loss:g}"
    return f"Chosen on {choice.target['count']:,} validation images: {choice.point.name}. Target {change}, {best}, {clean}."


def severity_note(pairs: Sequence[tuple[str, int]]) -> str:
    """Returns a sentence on the severities of the (corruption, severity) pairs of a target; empty without any."""
    names: dict[int, list[str]] = {}
    for name, severity in sorted(dict(pairs).items(), key=lambda pair: pair[1]):
        names.setdefault(severity, []).append(name)
    text = "; ".join(f"{severity} ({', '.join(of_severity)})" for severity, of_severity in names.items())
    return f"Severities of the target, where the initial model is nearest to halfway from clean accuracy to chance: {text}." if text else ""


def slice_note(change: SliceChange, kind: str, count: int) -> str:
    """Returns a sentence on the class or group that lost most of its clean accuracy, of a number of them."""
    if change.mean >= 0:
        return f"No {kind} lost clean accuracy on validation images."
    text = f"{change.mean:+z.3f} {interval(change.low, change.high, '+')}".rstrip()
    images = f"{change.num_images:,} validation images; the interval is for all {count:,} at once"
    return f"Largest loss of clean accuracy of a {kind}: {str(change.value)!r}, {text} ({images})."


def control_wins(start: Point, control: Point, compared: Sequence[Point], max_clean_loss: float) -> str:
    """Returns a sentence on a search whose choice among the compared points is the control."""
    text = f"{control.name[0].upper()}{control.name[1:]}, did best: "
    recipes = [one for one in compared if not one.is_control and one.members and one.clean - start.clean >= -max_clean_loss - ROUNDING]
    if not recipes:
        return f"{text}no recipe keeps the clean accuracy."
    best = max(recipes, key=lambda point: point.target)
    return f"{text}no recipe improves the target further (the best, {best.name}: {_difference(gain(best, control, compared))})."


def _control_note(search, choice, compared):
    """A sentence on plain fine-tuning for as long as the finalists; none if it was not reached, or is the choice."""
    controls = [trial for trial in search.trials if trial.candidate.control and trial.rung == len(search.rungs) - 1]
    if not controls or choice and any(member.candidate.control for member in choice.point.members):
        return []
    control, start = controls[-1], search.start.outcome
    point = best_point(search.start, control.points, search.max_clean_loss)
    clean, target = (paired_difference(getattr(point.outcome, name), getattr(start, name)) for name in ("clean", "target"))
    changes = f"target {_difference(target)}, clean accuracy {_difference(clean)}"
    note = f"On validation images, the control, plain fine-tuning for {duration(control.seconds)} ({control.steps:,} steps): {changes}."
    if choice and choice.helps:
        further = gain(choice.point, point, compared)
        note += f" Target of the chosen model minus the control's: {_difference(further)}."
        if further["low"] is None or further["low"] <= 0:
            note += " This is not significant: the gain may be one of further training alone."
    return [note]


def _difference(paired):
    """A difference and its interval, for a sentence."""
    return f"{paired['mean']:+z.3f} {interval(paired['low'], paired['high'], '+')}".rstrip()


def _arguments(config, given, parts, model):
    """Everything that the trials of a search depend on, for JSON."""
    return {
        **{name: value for name, value in dataclasses.asdict(config).items() if name not in _AFTER_THE_SEARCH},
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
    if balanced > chance + max(NEAR_CHANCE * (1 - chance), 2 * error):
        return
    expected, received = "a trained model", f"near that of chance, {chance:.3f}"
    advice = "another input_range (auto finds it), or check the class order"
    if balanced - chance >= ABOVE_CHANCE * (1 - chance):
        needed = math.floor(round(len(labels) * (2 * error / (balanced - chance)) ** 2, 6)) + 1
        expected, received = f"at least {needed:,} validation images to tell the accuracy of a model from chance", f"chance is {chance:.3f}"
        advice = "more images (validation images are 15 % of data without splits), or validation_fraction"
    raise ValueError(
        f"Expected {expected}. Received: {path} with a mean accuracy of {balanced:.3f} over the classes of {len(labels)} validation "
        f"images, {received}. Try: {advice}"
    )


def _deliver(hardened, folder, images):
    """Writes the model and its record and removes an earlier final evaluation; if that fails, the trials have the weights."""
    if os.path.exists(report := os.path.join(folder, "harden.html")):
        os.remove(report)
    write_json(os.path.join(folder, "harden.json"), hardened.card())  # first: it says on which images the model was trained
    try:
        hardened.save(os.path.join(folder, HARDENED))
    except OSError as error:
        raise OSError(f"{error}. The weights are kept in {os.path.join(folder, 'trials')}: the same command writes the model") from error
    hardened.files += hardened.trainable.save_others(os.path.join(folder, HARDENED), images)


def _remove_delivered(path):
    """Removes the model that the search had written when it was interrupted, and has not improved on since."""
    if os.path.isfile(os.path.join(path, "saved_model.pb")):
        shutil.rmtree(path)
    elif os.path.isfile(path):
        os.remove(path)
