"""Prints the expected cost of runs (`--dry_run`)."""

import dataclasses
from collections.abc import Sequence

import keras

from tf_robust.runs import dry_run
from tf_robust.runs.run import Run
from tf_robust.training import loop
from tf_robust.utils.errors import message_of


def print_costs(runs: Sequence[Run]) -> None:
    """Prints what runs will cost on this machine, from a few steps of each row. Writes no files.

    Args:
        runs: all rows, with all seeds.

    Raises:
        ValueError: training diverged in all rows.
    """
    firsts = list({run.row: run for run in reversed(runs)}.values())[::-1]
    for run in firsts:
        run.init_path = ""  # does not change the cost
        run.config = dataclasses.replace(run.config, train=dataclasses.replace(run.config.train, init_from_row=""))
    estimates = []
    for run in firsts:
        try:
            estimates.append(_estimate(run))
        except loop.TrainingDiverged as error:
            print(f"  FAILED: {message_of(error)}", flush=True)
        keras.backend.clear_session()
    if not estimates:
        raise ValueError("Expected a row whose first steps are finite. All rows failed")
    seeds = len(runs) // len(firsts)
    print(f"\n{dry_run.to_text(estimates, seeds)}")


def _estimate(run):
    def print_progress(text):
        print(f"  {run.row}: {text} ...", flush=True)

    return dry_run.estimate(run, print_progress)
