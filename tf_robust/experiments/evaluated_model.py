"""A model to evaluate, and the flags of the run that it is of."""

import dataclasses
import os

from absl.flags import FlagValues

from tf_robust.experiments import flags, model_evaluation, workdir
from tf_robust.experiments.evaluation_data import EvaluationData
from tf_robust.experiments.model_checks import is_same_data
from tf_robust.experiments.run import Run
from tf_robust.saved_models import loading


@dataclasses.dataclass(frozen=True)
class EvaluatedModel:
    """A model to evaluate.

    Attributes:
        path: of the SavedModel or file.
        values: flags; those that were given, and for the model of a run the others as it recorded them.
        run: workdir of the run; empty: the model is of no run.
    """

    path: str
    values: FlagValues
    run: str

    def evaluate(self, run: Run, folder: str, draw: bool = True) -> tuple[dict, EvaluationData]:
        """Evaluates the model on the data of a `Run`.

        Args:
            run: describes the data.
            folder: as in `model_evaluation.evaluate`.
            draw: as in `model_evaluation.evaluate_file`.

        Returns:
            The content of `evaluation.json`, and the data that the model was evaluated on.
        """
        done = model_evaluation.evaluate_file(
            self.path,
            run.data(),
            folder,
            row=run.shown_as,
            interface=loading.ModelInterface(**flags.values_of(self.values, loading.ModelInterface)),
            split_chosen=self.values["evaluation_split"].present,
            draw=draw,
        )
        return done.content, done.data


def evaluated_model(values: FlagValues, path: str) -> EvaluatedModel:
    """Returns the model of a path: a file, a SavedModel folder, or the workdir of a run, whose recorded flags hold unless they are given.

    Args:
        values: parsed flags.
        path: of the model; empty: the run in --workdir.

    Raises:
        ValueError: there is neither a path nor a run in --workdir, or the run has not ended.
    """
    folder = path or values.workdir
    recorded = os.path.join(folder, "flags.txt")
    if not os.path.exists(recorded):
        if not path:
            raise ValueError(f"Expected a model, or --workdir=DIR of a trained run. Received: {folder or 'neither'}")
        own = os.path.join(path, "saved_model")
        return EvaluatedModel(own if os.path.isdir(own) else path, values, "")
    before, given = flags.given_values(flags.parse_arguments(workdir.recorded_arguments(recorded))), flags.given_values(values)
    saved_model = os.path.join(folder, "saved_model")
    if not os.path.isdir(saved_model):
        raise ValueError(
            f"Expected a run with an exported model. Received: {folder}, whose training has not ended. Try: the command of the run "
            "again, which resumes it"
        )
    if not is_same_data(str(before.get("data", "")), given.get("data", before.get("data", ""))):
        before.pop("evaluation_split", None)  # of data without splits all images are evaluated, unless the model was trained on them
    return EvaluatedModel(saved_model, flags.with_values(values, {**before, **given}), folder)
