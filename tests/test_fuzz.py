"""Hostile values of flags, drawn at random: a message that the command line prints, or training begins; nothing else."""

import os
import random

import pytest
import tensorflow as tf

import run_experiment
from tests.test_run_experiment import main
from tf_robust import methods, training
from tf_robust import workdir as workdirs
from tf_robust.data.augment import VIEWS

VALUES = ("", "-1", "0", "nan", "inf", "1e400", "9" * 20, "../../etc/passwd", "a,b", "\u2603", "x" * 3000, "true", "[1]", "0.5,",
          "{}", "%s", "1,1")
BASE = ["--data=digits", "--train_examples=60", "--epochs=1", "--batch_size=12"]
DRAWS = 40


class Began(Exception):
    """Training did."""


HANDLED = (ValueError, OSError, tf.errors.OpError, training.TrainingDiverged, workdirs.Busy, SystemExit, Began)


def began(*_, **__):
    raise Began


@pytest.mark.parametrize("number", range(DRAWS))
def test_no_value_of_a_flag_ends_in_a_traceback(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training, "fit", began)  # after the first batch
    draw = random.Random(number)
    names = set(run_experiment.define_flags(run_experiment.flags.FlagValues())) - {"download", "workdir"}
    name, value = draw.choice(sorted(names)), draw.choice(VALUES)
    owner = [f"--method={method}" for method in methods.METHODS if name.startswith(f"{method}_")]
    owner += [f"--views={view}" for view in VIEWS if name.startswith(f"{view}_")]
    try:
        main(*BASE, *owner, f"--{name}={value}", f"--workdir={tmp_path}/run")
    except HANDLED as error:
        assert isinstance(error, Began) or len(str(error)) > 12
    assert set(os.listdir(tmp_path)) <= {"run"}
