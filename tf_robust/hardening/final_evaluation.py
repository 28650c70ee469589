"""Final evaluation of a hardened model: it and the initial model on test images that the search never used."""

import dataclasses
import math
import os
import time

from tf_robust import evaluation
from tf_robust.attacks.attack import Predict
from tf_robust.configs.evaluation import parse_threat
from tf_robust.data.source import Source
from tf_robust.evaluation import model_evaluation
from tf_robust.evaluation.evaluation_data import EvaluationData
from tf_robust.hardening.config import HardenConfig, evaluation_of
from tf_robust.hardening.result import HARDENED, START
from tf_robust.hardening.trainable import TrainableModel
from tf_robust.hardening.training import Weights
from tf_robust.report.images import draw_gains
from tf_robust.report.page import Image
from tf_robust.saved_models import loading
from tf_robust.utils.files import write_json

FINAL_IMAGES = 2000  # of the test images, unless --subset says otherwise
ATTACKED_IMAGES = 200  # unless --attack_subset says otherwise
_UNDER = "under each the true class and the prediction of the other model."
_CAPTIONS = {
    START: f"Fixed: images that the hardened model classifies correctly and the initial model does not; {_UNDER}",
    HARDENED: f"Newly wrong: images that the initial model classifies correctly and the hardened model does not; {_UNDER}",
}


class FinalEvaluation:
    """Evaluates the initial model and the hardened model on test images, and on the target, too, if the evaluations leave it out.

    The folder has the hardened model; it gets a subfolder `final_evaluation` with a folder for each model.
    """

    def __init__(self, model: TrainableModel, data: EvaluationData, config: HardenConfig, folder: str):
        eval_config = data.eval_config
        available = len(data.images)  # type: ignore[arg-type]
        self.images = min(eval_config.subset or FINAL_IMAGES, available)
        subset = self.images if self.images < available else 0  # a shift may have more images
        self.model, self.folder = model, os.path.join(folder, "final_evaluation")
        self.delivered = os.path.join(folder, HARDENED)  # without its suffix
        self.data = dataclasses.replace(data, eval_config=dataclasses.replace(_with_target(eval_config, config), subset=subset))

    def seconds(self, predict: Predict, validation: Source) -> float:
        """Returns the estimated time of both evaluations, from that of a batch of corrupted validation images; without attacks."""
        eval_config = dataclasses.replace(self.data.eval_config, corrupted_dir="")
        sets = evaluation.evaluation_sets(validation, validation, eval_config, self.data.config.data_dir or None)
        corrupted = [one for one in sets if evaluation.parse_metric(one.name).family in evaluation.CORRUPTION_FAMILIES]
        measured = corrupted[len(corrupted) // 2] if corrupted else sets[0]
        begin, count = time.monotonic(), 0
        for images, labels in measured.batches().take(2):
            predict(images)
            count += len(labels)
        return 2 * len(sets) * self.images * (time.monotonic() - begin) / count

    def run(self, start: Weights, hardened: Weights | None) -> tuple[list[dict], list[Image]]:
        """Returns the evaluations, as in `evaluation.json`, and figures of the images on which the models differ.

        The model has the weights `hardened` afterwards; None: the initial model alone is evaluated.
        """
        weights = {START: start} | ({} if hardened is None else {HARDENED: hardened})
        done = {row: self._evaluate(row, of_row) for row, of_row in weights.items()}
        evaluations = [{**one.content, "measured_in": os.path.join(self.folder, row)} for row, one in done.items()]
        return evaluations, [] if hardened is None else self._changed_images(weights, done)

    def _evaluate(self, row, weights):
        self.model.network.set_weights(weights)
        classifier, own = self.model.classifier, os.path.join(self.folder, row)
        if row == HARDENED and os.path.exists(classifier.path):  # as it was written
            classifier = loading.load_classifier(self.delivered + self.model.suffix, classifier.interface)
        print(f"Evaluating the {row} model on {self.images:,} test images.")
        os.makedirs(own, exist_ok=True)
        done = model_evaluation.evaluate_model(classifier, self.data, own, row=row, saved_model=classifier.path)
        content = {**done.content, "method": "", "model": os.path.basename(classifier.path)}
        write_json(os.path.join(own, "evaluation.json"), content)
        return dataclasses.replace(done, content=content)

    def _changed_images(self, weights, done):
        """Figures of images that only the hardened model classifies correctly, and of those that only the initial model does."""
        source, sets = done[START].source, done[START].result.sets
        records, figures = {row: one.result.records for row, one in done.items()}, []
        for baseline, caption in _CAPTIONS.items():

            def load_baseline(of_baseline=weights[baseline]):
                self.model.network.set_weights(of_baseline)
                return evaluation.masked(self.model.classifier, source.class_mask)

            with source.reading():
                folder = os.path.join(self.folder, baseline, "figures")
                drawn = draw_gains(folder, source, sets, records, baseline, load_baseline)
            if drawn:
                figures.append((drawn[0], caption))
        self.model.network.set_weights(weights[HARDENED])
        return figures


def _with_target(eval_config, config):
    """An evaluation that measures the target of a search; images of new conditions are added by `final_data`."""
    needed = evaluation_of(config.target)
    chosen = eval_config.evaluations
    if needed and needed not in chosen:
        eval_config = dataclasses.replace(eval_config, evaluations=(*chosen, needed))
    if needed != "adversarial":
        return eval_config
    radius = f"{config.attack_norm}_{config.attack_radius:g}"
    if needed not in chosen:
        most = eval_config.attack_subset or ATTACKED_IMAGES
        return dataclasses.replace(eval_config, attack_radii=(radius,), attack_subset=most)
    given = [parse_threat(one) for one in eval_config.attack_radii]
    measured = any(norm == config.attack_norm and math.isclose(size, config.attack_radius, rel_tol=1e-4) for norm, size in given)
    return eval_config if measured else dataclasses.replace(eval_config, attack_radii=(*eval_config.attack_radii, radius))
