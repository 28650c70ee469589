"""A model in a file, the data to evaluate it on, and its evaluation with figures."""

import dataclasses
import os

from tf_robust import evaluation
from tf_robust.evaluation import model_evaluation
from tf_robust.evaluation.evaluation_data import EvaluationData
from tf_robust.evaluation.model_evaluation import ModelEvaluation
from tf_robust.report import images
from tf_robust.saved_models import loading
from tf_robust.saved_models.export import export_calibrated
from tf_robust.utils.progress import print_note


@dataclasses.dataclass(frozen=True)
class EvaluatedModel:
    """A model to evaluate."""

    path: str  # of the SavedModel or file, or its name
    data: EvaluationData  # to evaluate it on
    row: str  # its name in tables
    interface: loading.ModelInterface = loading.ModelInterface()
    split_chosen: bool = False  # whether the user chose `evaluation_split`; otherwise data without splits are evaluated as a whole
    run: str = ""  # workdir of the run that trained it; empty: a model without a run
    model_name: str = ""  # of its architecture, if its card has none; empty: the name of its file

    def load(self) -> loading.Classifier:
        """Returns the model."""
        return loading.load_classifier(self.path, self.interface)

    def evaluate(self, folder: str, draw: bool = True) -> ModelEvaluation:
        """Loads and evaluates the model as `model_evaluation.evaluate_model` does; `draw`: and writes more than records into the folder.

        It gets a subfolder `figures` and, with `calibrate`, `calibrated`: the model as a SavedModel with scaled logits.
        """
        done = model_evaluation.evaluate_model(
            self.load(), self.data, folder, row=self.row, saved_model=self.path, split_chosen=self.split_chosen, model_name=self.model_name
        )
        if draw:
            if done.data.eval_config.adaptation == "none":  # else predictions of the few images of a figure would be those of another batch
                _draw(done, os.path.join(folder, "figures"))
            if done.data.eval_config.calibrate != "none" and (fitted := done.result.fitted):
                if done.classifier.has_graph:
                    fitted = {name: fitted[name] for name in ("scale", "bias", "threshold", "quantile")}
                    card = {name: value for name, value in done.classifier.card.items() if name not in ("rows", "evaluation_card")}
                    card |= {"confidence": {**fitted, **done.content["card"]["confidence"]}}
                    path = os.path.join(folder, "calibrated")
                    export_calibrated(done.classifier, done.source, path, scale=fitted["scale"], bias=fitted["bias"], card=card)
                else:
                    print_note(f"no calibrated SavedModel: {done.classifier.path} has no TensorFlow graph.")
        return done


def _draw(done: ModelEvaluation, folder: str) -> None:
    """Draws the figures of a model."""
    eval_config, source = done.data.eval_config, done.source
    masked = evaluation.masked(done.predict, source.class_mask)
    if "clean" in eval_config.evaluations:
        images.draw_maps(folder, masked, source)
    if {*evaluation.CORRUPTION_FAMILIES} & set(eval_config.evaluations):
        images.draw_worst(folder, masked, source, done.result.sets, done.result.records)
    if "adversarial" in eval_config.evaluations and eval_config.attacks_by_gradient:
        images.draw_attacked(folder, evaluation.masked(done.classifier, source.class_mask), source, eval_config.attack_radii)
