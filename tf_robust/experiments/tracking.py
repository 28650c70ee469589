"""Trackers of runs: Weights & Biases (extra `[wandb]`) and MLflow (extra `[mlflow]`). TensorBoard's files are written in any case.

Both packages are configured by their own environment variables, such as WANDB_MODE=offline and MLFLOW_TRACKING_URI.
"""

import contextlib
import logging
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence

import keras

from tf_robust.utils.errors import message_of
from tf_robust.utils.files import read_json, write_json

PROJECT = "tf_robust"  # unless WANDB_PROJECT or MLFLOW_EXPERIMENT_NAME is set
RUNS = "trackers.json"  # {tracker: number of its run}, in a workdir
_BATCH = 100  # parameters that MLflow takes at once


class WandB:
    """A run of Weights & Biases.

    Args:
        folder: of its files.
        number: of a run that is continued; empty: a new one.
        name: of the run.
        group: of similar runs.
        flags: {name: text}.
    """

    def __init__(self, folder: str, number: str, name: str, group: str, flags: Mapping[str, str]):
        import wandb

        self._wandb = wandb
        self.number = number or uuid.uuid4().hex
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=self.number,
            resume="allow",
            name=None if number else name,
            group=None if number else group,
            config=dict(flags),
            dir=folder,
            settings=self._wandb.Settings(silent=True, console="off"),
        )
        self._run.define_metric("*", step_metric="epoch")

    def epoch(self, epoch: int, values: Mapping[str, float]) -> None:
        """Records the values of an epoch."""
        self._run.log({**values, "epoch": epoch})

    def results(self, values: Mapping[str, float]) -> None:
        """Records the measures of an evaluation."""
        self._run.summary.update(values)

    def files(self, kind: str, paths: Sequence[str]) -> None:
        """Copies files and folders, of the kind run or report."""
        artifact = self._wandb.Artifact(f"{self.number}-{kind}", type=kind)
        for path in paths:
            (artifact.add_dir if os.path.isdir(path) else artifact.add_file)(path, name=os.path.basename(path))
        self._run.log_artifact(artifact)

    def end(self, failed: bool) -> None:
        """Ends the run."""
        self._run.finish(exit_code=int(failed))


class MLflow:
    """A run of MLflow. Arguments and methods as in `WandB`."""

    def __init__(self, folder: str, number: str, name: str, group: str, flags: Mapping[str, str]):
        import mlflow

        logging.getLogger("mlflow").setLevel(logging.WARNING)
        self._client = mlflow.MlflowClient()
        if not number:
            experiment = mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)).experiment_id
            number = self._client.create_run(experiment, run_name=name, tags={"row": group}).info.run_id
        self.number = number
        self._client.update_run(number, status="RUNNING")
        parameters = [mlflow.entities.Param(*pair) for pair in sorted(flags.items())]
        for batch in (parameters[start : start + _BATCH] for start in range(0, len(parameters), _BATCH)):
            self._client.log_batch(number, params=batch)

    def epoch(self, epoch: int, values: Mapping[str, float]) -> None:
        """See `WandB.epoch`."""
        for name, value in values.items():
            self._client.log_metric(self.number, name, value, step=epoch)

    def results(self, values: Mapping[str, float]) -> None:
        """See `WandB.results`."""
        self.epoch(0, values)

    def files(self, kind: str, paths: Sequence[str]) -> None:
        """See `WandB.files`."""
        for path in paths:
            if os.path.isdir(path):
                self._client.log_artifacts(self.number, path, os.path.basename(path))
            else:
                self._client.log_artifact(self.number, path)

    def end(self, failed: bool) -> None:
        """See `WandB.end`."""
        self._client.set_terminated(self.number, "FAILED" if failed else "FINISHED")


TRACKERS: dict[str, Callable] = {"wandb": WandB, "mlflow": MLflow}


class Tracked(keras.callbacks.Callback):
    """Forwards epochs, results and files to trackers. One that fails is left out from then on, with a note: no run is lost by it.

    Args:
        trackers: {name: tracker}.
    """

    def __init__(self, trackers: Mapping[str, WandB | MLflow]):
        super().__init__()
        self.trackers = dict(trackers)

    def _each(self, function):
        for name, tracker in list(self.trackers.items()):
            try:
                function(tracker)
            except Exception as error:  # of a network, a server or a full disk, in the classes of each package
                del self.trackers[name]
                print(f"  Note: --tracker={name} failed and is left out: {message_of(error)}", flush=True)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        values = {name: float(value) for name, value in (logs or {}).items()}
        self._each(lambda tracker: tracker.epoch(epoch, values))

    def results(self, rows: Sequence[Mapping]) -> None:
        """Records the rows of an evaluation."""
        self._each(lambda tracker: tracker.results({row["measure"]: row["value"] for row in rows}))

    def files(self, kind: str, folder: str, names: Sequence[str]) -> None:
        """Copies those files and subfolders of a folder that exist; kind: run or report."""
        paths = [path for name in names if os.path.exists(path := os.path.join(folder, name))]
        self._each(lambda tracker: tracker.files(kind, paths))

    def end(self, failed: bool = False) -> None:
        """Ends the runs of the trackers."""
        self._each(lambda tracker: tracker.end(failed))


@contextlib.contextmanager
def tracked(names: Sequence[str], folder: str, name: str, group: str, flags: Mapping[str, str]) -> Iterator[Tracked]:
    """Opens a context in which a run is tracked. A workdir that was tracked before continues its run.

    Args:
        names: of `TRACKERS`.
        folder: workdir.
        name: of the run.
        group: of similar runs.
        flags: {name: text}.

    Raises:
        ConnectionError: a tracker does not answer, or refuses the run.
    """
    path = os.path.join(folder, RUNS)
    numbers = read_json(path) if names and os.path.exists(path) else {}
    trackers = {}
    for tracker in names:
        try:
            trackers[tracker] = TRACKERS[tracker](folder, numbers.get(tracker, ""), name, group, flags)
        except Exception as error:
            raise ConnectionError(
                f"Expected --tracker={tracker} that takes the run {name}. Received: {message_of(error)}. Try: its own settings, such as "
                "WANDB_MODE=offline or MLFLOW_TRACKING_URI"
            ) from error
    if trackers:
        write_json(path, {**numbers, **{one: tracker.number for one, tracker in trackers.items()}})
    all_of_them = Tracked(trackers)
    try:
        yield all_of_them
    except BaseException:
        all_of_them.end(failed=True)
        raise
    all_of_them.end()
