"""Hardens a model: search on training and validation images, delivery, and proof on test images never used before."""

import dataclasses
import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence

import tensorflow as tf
from absl.flags import FlagValues

from tf_robust import evaluation, methods, models
from tf_robust.data.source import Source
from tf_robust.experiments import gains, model_evaluation
from tf_robust.experiments.evaluation_data import EvaluationData
from tf_robust.experiments.flags import values_of
from tf_robust.experiments.hardened import HARDENED, START, Hardened, SearchRecord
from tf_robust.experiments.hardening_data import parts_of, proof_data, validation_set
from tf_robust.experiments.locations import folder_name, row_name
from tf_robust.experiments.runs import runs_of
from tf_robust.hardening import batch_statistics, candidates, delivery
from tf_robust.hardening.budget import Clock, parse_budget
from tf_robust.hardening.choice import choose
from tf_robust.hardening.config import HardenConfig
from tf_robust.hardening.diagnosis import diagnose
from tf_robust.hardening.frontier import Frontier
from tf_robust.hardening.search import Search
from tf_robust.hardening.trainable import check_format, trainable
from tf_robust.hardening.training import Trainers
from tf_robust.hardening.trials import TrialStore
from tf_robust.saved_models import loading
from tf_robust.utils.files import write_json
from tf_robust.utils.progress import duration

BATCH_SIZE = 64
NEAR_CHANCE = 1.5  # times the accuracy of chance
PROOF_IMAGES = 2000  # of the test images, unless --subset says otherwise
ATTACKED_IMAGES = 200  # of the proof, unless --attack_subset says otherwise
LITTLE = 0.01  # a gain that is called little


def harden_and_report(values: FlagValues, argv: Sequence[str]) -> None:
    """Hardens the model of `tf-robust harden MODEL`, and writes the model, its card and `harden.html` into the workdir.

    Args:
        values: parsed flags.
        argv: the arguments from which they were parsed.
    """
    run = runs_of(values, row_name(values.saved_model))[0]
    interface = loading.ModelInterface(**values_of(values, loading.ModelInterface))
    check_format(values.saved_model)
    classifier = loading.load_classifier(values.saved_model, interface)
    folder = values.workdir or os.path.join("runs", "hardened", f"{folder_name(values.data)}-{row_name(values.saved_model)}")
    hardened = harden(classifier, run.data(), HardenConfig(**values_of(values, HardenConfig)), folder)
    if hardened.evaluations:
        print("\n".join(["", *hardened.sentences, f"Report: {hardened.report(os.path.join(folder, 'harden.html'), argv)}"]))
    hardened.frontier().save(os.path.join(folder, "figures"))
    if hardened.changed:
        print(f"Model:  {os.path.join(folder, HARDENED)}{delivery.suffix_of(hardened.trainable)}")
    if hardened.search.interrupted:
        print("The test images were not used. The same command resumes the search.")


def harden(
    classifier: loading.Classifier,
    given: EvaluationData,
    config: HardenConfig,
    folder: str,
    *,
    validation: Source | None = None,
    test: Source | None = None,
    temporary: tempfile.TemporaryDirectory | None = None,
    log: Callable[[str], object] = print,
) -> Hardened:
    """Searches a more robust model, writes it, and proves it on test images.

    Args:
        classifier: the model.
        given: describes the data and the evaluation of the proof.
        config: target, budget and maximum clean loss.
        folder: of trials, model and evaluations; a search that was interrupted resumes.
        validation: images to choose on, in memory; None: those of `given`.
        test: images of the proof, in memory; None: those of `given`.
        temporary: of `folder`.
        log: called with lines of progress.

    Raises:
        ValueError: the model cannot be trained, does not suit the images, or is near chance; or the budget is too small.
    """
    clock = Clock()
    given = dataclasses.replace(given, model_size=loading.image_size_of(classifier), num_classes=classifier.num_classes or 0)
    parts = parts_of(given, validation, test, config=config)
    log(parts.summary)
    model = trainable(classifier, parts.train.image_shape)
    images = validation_set(parts, config, given)
    predict = tf.function(lambda batch: model.classifier(batch), reduce_retracing=True)

    def evaluate(weights):
        model.network.set_weights(weights)
        return images.evaluate(predict)

    store = TrialStore(os.path.join(folder, "trials"), _arguments(config, given, parts, model))
    clock.add(store.seconds)
    stages = () if models.is_network(model.network) else models.stage_layers(model.network)
    batch_size = min(BATCH_SIZE, len(parts.train))
    trainers = Trainers(model.network, parts.train, batch_size=batch_size, seed=given.seed, options=model.options, stages=stages)
    ball = config.attack_norm, config.attack_radius
    search = Search(
        trainers,
        evaluate,
        candidates.candidates(config.target, *ball, values=math.prod(parts.train.image_shape), skip=model.skip),
        budget=parse_budget(config.budget),
        max_clean_loss=config.max_clean_loss,
        store=store,
        clock=clock,
        has_batch_norm=model.has_batch_norm,
        has_layers=isinstance(model.model, tf.keras.Model),
        log=log,
    )
    _check_start(search.start, model.classifier.path, parts, len(images.clean.labels))
    diagnosis = diagnose(predict, images, parts.train.class_names, *ball)
    for line in diagnosis.lines():
        log(line)
    log(
        f"Start: clean {search.start.clean:.3f} on {len(images.clean.labels):,} validation images, target ({config.target}) "
        f"{search.start.target:.3f} on {len(search.start.outcome.target):,}."
    )
    proof = _complete(proof_data(parts, given), config)
    log(f"Budget of the search: {config.budget}. The proof that follows takes about {duration(_proof_seconds(proof, predict))}.")
    try:
        interrupted = False
        search.run()
    except KeyboardInterrupt:
        interrupted = True
        log("Interrupted: the best model so far is written. The same command resumes the search.")
    frontier = Frontier(search)
    frontier.build(None if interrupted or not model.has_batch_norm else _reestimator(model, trainers), _in_time(search, interrupted))
    choice = choose(search.start, frontier.points, config.max_clean_loss)
    record = SearchRecord(
        search.start, diagnosis, search.trials, frontier.points, choice, clock.seconds, given.seed, batch_size, interrupted
    )
    notes = [summary(choice, config), *([parts.note] if parts.note else [])]
    for note in notes:
        log(note)
    weights = frontier.weights(choice.point) if choice and choice.helps else trainers.start
    model.network.set_weights(weights)
    hardened = Hardened(model, record, [], config, notes, temporary=temporary)
    if hardened.changed:
        _deliver(hardened, folder)
    if not interrupted:
        evaluations, figures = _proof(model, trainers.start, weights, hardened.changed, proof, folder, log)
        hardened = Hardened(model, record, evaluations, config, notes, figures, temporary)
        write_json(os.path.join(folder, "harden.json"), hardened.card())
    return hardened


def summary(choice, config: HardenConfig) -> str:
    """Returns a sentence on the choice.

    Args:
        choice: as `choose` returns it.
        config: of the search.
    """
    if not choice:
        return f"No candidate keeps the accuracy on unchanged validation images within {config.max_clean_loss:g}: the model is unchanged."
    point, target, clean = choice.point, choice.target, choice.clean
    gain = f"{target['mean']:+.3f} [{target['low']:+.3f}, {target['high']:+.3f}]"
    if not choice.helps:
        more = f" About {choice.images_needed:,} validation images would decide." if choice.images_needed else ""
        return f"Nothing improves the target ({config.target}) outside the interval: the best gains {gain}.{more} The model is unchanged."
    little = " There is little to be gained: the model is robust already." if target["mean"] < LITTLE else ""
    unsure = ""
    if clean["low"] < -config.max_clean_loss:
        unsure = f" These images do not exclude a larger loss of clean accuracy than {config.max_clean_loss:g}."
    return (
        f"Chosen on {target['count']:,} validation images: {point.name}. Target ({config.target}) {gain}, clean accuracy "
        f"{clean['mean']:+.3f} [{clean['low']:+.3f}, {clean['high']:+.3f}].{unsure}{little}"
    )


def _arguments(config, given, parts, model):
    """What the trials of a search depend on, for JSON."""
    return {
        **dataclasses.asdict(config),
        "seed": given.seed,
        "data": given.config.data,
        "training images": parts.train.fingerprint(),
        "validation images": parts.validation.fingerprint(),
        "images of the target": parts.shift.validation.source.fingerprint() if parts.shift else None,
        "model": model.classifier.digest(),
    }


def _check_start(start, path, parts, count):
    """Raises ValueError if the model does not classify better than chance."""
    chance = 1.0 / len(parts.train.class_mask or range(parts.train.num_classes))
    if start.clean < NEAR_CHANCE * chance:
        raise ValueError(
            f"Expected a trained model. Received: {path} with an accuracy of {start.clean:.3f} on {count} validation images, "
            f"near that of chance, {chance:.3f}. Try: another --input_range (auto finds it); or the class order of the data"
        )


def _reestimator(model, trainers):
    """A function that estimates batch norm's moving averages of weights on AugMix images."""

    def reestimate(weights):
        views = (batch.views[0] for batch in trainers.batches(("augmix",)).take(batch_statistics.BATCHES))
        network = methods.METHODS["cross_entropy"](model.network, **model.options).network
        return batch_statistics.reestimated(model.network, network, weights, views)

    return reestimate


def _in_time(search, interrupted):
    """Whether the budget has time for a further evaluation."""

    def in_time():
        return not interrupted and (search.budget.in_steps or search.clock.seconds + search.seconds_of_evaluation < search.budget.amount)

    return in_time


def _complete(proof, config):
    """The data of the proof: at most `PROOF_IMAGES` test images unless the number was chosen; attacks, if they are the target."""
    eval_config = proof.eval_config
    changes = {"subset": eval_config.subset or min(PROOF_IMAGES, len(proof.images))}
    if config.target == "adversarial" and "adversarial" not in eval_config.evaluations:
        changes |= {
            "evaluations": (*eval_config.evaluations, "adversarial"),
            "attack_radii": (f"{config.attack_norm}_{config.attack_radius:g}",),
            "attack_subset": eval_config.attack_subset or ATTACKED_IMAGES,
        }
    return dataclasses.replace(proof, eval_config=dataclasses.replace(eval_config, **changes))


def _proof_seconds(proof, predict):
    """Seconds that two models need for the evaluations of the proof, from the time of one corrupted batch; without attacks."""
    source = dataclasses.replace(proof, eval_config=dataclasses.replace(proof.eval_config, evaluation_split="all")).evaluation_source()
    sets = evaluation.evaluation_sets(source, source, proof.eval_config, proof.config.data_dir or None)
    corrupted = [one for one in sets if evaluation.parse_measure(one.name).family in evaluation.CORRUPTION_FAMILIES]
    measured = corrupted[len(corrupted) // 2] if corrupted else sets[0]
    begin, count = time.monotonic(), 0
    for images, labels in measured.open().take(2):
        predict(images)
        count += len(labels)
    return 2 * len(sets) * len(source) * (time.monotonic() - begin) / count


def _deliver(hardened, folder):
    """Writes the model; if that fails, the weights are still in the folder of the trials."""
    try:
        hardened.save(os.path.join(folder, HARDENED))
    except OSError as error:
        raise OSError(f"{error}. The weights are kept in {os.path.join(folder, 'trials')}: the same command writes the model") from error


def _proof(model, start_weights, weights, changed, proof, folder, log):
    """Evaluates the start and the hardened model on the test images. Returns evaluations and figures."""
    done = {}
    for row in (START, HARDENED)[: 1 + changed]:
        model.network.set_weights(weights if row == HARDENED else start_weights)
        classifier = model.classifier
        if row == HARDENED and os.path.exists(classifier.path):  # as it was written
            classifier = loading.load_classifier(os.path.join(folder, HARDENED) + delivery.suffix_of(model), classifier.interface)
        log(f"Evaluating the {row} model on {proof.eval_config.subset:,} test images.")
        own = os.path.join(folder, row)
        os.makedirs(own, exist_ok=True)
        done[row] = model_evaluation.evaluate(classifier, proof, own, row=row, saved_model=classifier.path)
        write_json(os.path.join(own, "evaluation.json"), done[row].content)
    evaluations = [{**one.content, "measured_in": os.path.join(folder, row)} for row, one in done.items()]
    return evaluations, _changed_images(model, start_weights, weights, done, folder) if changed else []


def _changed_images(model, start_weights, weights, done, folder):
    """Figures of images that only the hardened model classifies correctly, and of those that only the start does."""
    source, sets = done[START].source, done[START].result.sets
    records = {row: one.result.records for row, one in done.items()}
    figures = []
    for baseline, of_baseline, title in ((START, start_weights, "Fixed"), (HARDENED, weights, "Newly wrong")):

        def load_baseline(of_baseline=of_baseline):
            model.network.set_weights(of_baseline)
            return evaluation.masked(model.classifier, source.class_mask)

        with source.reading():
            drawn = gains.draw_gains(os.path.join(folder, baseline, "figures"), source, sets, records, baseline, load_baseline)
        if drawn:
            figures.append((drawn[0], f"{title}: {drawn[1][:1].lower()}{drawn[1][1:]}"))
    model.network.set_weights(weights)
    return figures
