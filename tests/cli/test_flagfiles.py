"""The flagfiles of the papers' tables: each parses, says what its method has, and its table speaks of rows that are there."""

import dataclasses
import functools
import glob
import itertools
import os

import keras
import pytest

from tests.conftest import ROOT
from tf_robust import methods, models
from tf_robust.cli.build import build_model, build_runs, read_rows
from tf_robust.models import heads
from tf_robust.report.evaluated_model import EvaluatedModel
from tf_robust.runs import suite
from tf_robust.runs.run import Run


def small_network(stages=4):
    """A network with as many stages as any of the package."""
    images, x = heads.normalized_input((32, 32, 3), 0.5, 0.5, 8, "small")
    for stage in range(1, stages + 1):
        x = keras.layers.BatchNormalization()(keras.layers.Conv2D(4, 3, strides=2, padding="same", name=f"stage_{stage}")(x))
    return heads.classifier(images, keras.layers.GlobalAveragePooling2D()(x), 10, "small")


@functools.cache
def run_of(path, *told):
    """The run of a flagfile and of further flags; to read a flagfile takes longer than what is checked of it."""
    row = os.path.basename(path).removesuffix(".flags")
    options = read_rows({row: path}, dict(one.removeprefix("--").split("=") for one in told))[row]
    return build_model(options) if "saved_model" in options else build_runs(options, row)[0]


@pytest.mark.slow
def test_flagfiles_build_their_methods():
    classifier, built = small_network(), set()
    found = [os.path.join(folder, f) for folder, _, files in os.walk(os.path.join(ROOT, "flags")) for f in files if f.endswith(".flags")]
    assert len(found) > 40
    for path in found:
        run = run_of(path)
        if isinstance(run, EvaluatedModel):
            continue
        with open(path) as file:
            written = [line.strip().removeprefix("--").split("=", 1) for line in file if line.startswith("--")]
        for name, _ in written:
            method = run.config.train.method
            others = [other for other in methods.METHODS if other not in (method, *run.config.views, *run.config.train.augmentations)]
            assert not any(name.startswith(f"{other}_") for other in others), f"{path} sets --{name} for another method than {method}"
        configuration = (run.config.train.method, run.config.views, repr((run.config.method, run.config.augmentations)))
        if configuration not in built:  # many rows share one
            built.add(configuration)
            run.pipeline()
            own = run.config.method.get("layer_weights")  # one for each stage of the run's model
            model = models.build(run.config.train.model, (32, 32, 3), 10) if own else classifier
            method = methods.METHODS[run.config.train.method](model, examples=1000, **run.config.method)
            method.check_views(run.config.views)


def test_rows_printed_in_two_tables_have_the_same_settings():
    """NoisyMix's Table 4 prints four of Table 3's rows again."""
    tables = [os.path.join(ROOT, "flags", "noisymix", name) for name in ("table3_cifar100", "table4_cifar100")]
    (_, _, third), (_, _, fourth) = (suite.table_of(table, ROOT) for table in tables)
    twins = {"none": "baseline", "mixing": "manifold_mixup", "mixing_noise": "nfm", "all": "noisymix"}
    for row, other in twins.items():
        assert all(third["paper"][other][metric] == number for metric, number in fourth["paper"][row].items())
        runs = [run_of(f"{table}/{name}.flags") for table, name in zip(tables, (other, row))]
        if row == "none":  # nothing is left of NoisyMix, which is cross-entropy
            told = runs[1].config.method
            assert (told["mixing"], told["noise"], told["jsd_weight"]) == (False, "none", 0)
            runs[1].config = dataclasses.replace(runs[1].config, train=dataclasses.replace(runs[1].config.train, method="cross_entropy"))
        else:
            assert (runs[0].config.method, runs[0].config.augmentations) == (runs[1].config.method, runs[1].config.augmentations), row
        assert (runs[0].config.train, runs[0].config.data) == (runs[1].config.train, runs[1].config.data), row


def test_tables_describe_existing_rows():
    folders = glob.glob(os.path.join(ROOT, "flags", "**", "suite.json"), recursive=True)
    assert len(folders) > 20
    for folder in map(os.path.dirname, folders):
        _, rows, table = suite.table_of(folder, ROOT)
        shown = {table.get("shown_as", {}).get(row, row) for row in rows}
        named = itertools.chain([table.get("baseline", rows[0])], table.get("paper", ()), *table.get("panels", {}).values())
        assert set(table["rows"]) <= set(rows) and set(named) <= shown, folder


def test_the_rows_of_a_table_have_the_same_images():
    folders = {os.path.dirname(path) for path in glob.glob(os.path.join(ROOT, "flags", "**", "*.flags"), recursive=True)}
    assert len(folders) > 30
    for folder in sorted(folders):
        _, rows, _ = suite.table_of(folder, ROOT)
        imagenet = folder.endswith("noisymix/table1_imagenet")
        told = ["--data=folder:IMAGENET", "--label_set=imagenet"] if imagenet else []  # as its flagfiles say
        runs = [run_of(f"{folder}/{row}.flags", *told) for row in rows]
        suite.check_images_match([run for run in runs if isinstance(run, Run)])


def test_printed_robust_accuracies_are_measured_by_pgd():
    checked = 0
    for path in glob.glob(os.path.join(ROOT, "flags", "urrl", "table2_*", "suite.json")):
        folder, rows, table = suite.table_of(os.path.dirname(path), ROOT)
        for row in rows:
            eval_config = run_of(f"{folder}/{row}.flags").config.evaluation
            printed = {metric for metric in table["paper"][row] if metric.startswith("robust")}
            assert printed == {f"robust/pgd/{radius}" for radius in eval_config.attack_radii}
            assert eval_config.attack == ("autoattack", "pgd")
            checked += 1
    assert checked == 12 * 7
