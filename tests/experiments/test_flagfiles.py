"""The flagfiles of the papers' tables: each parses, says what its method has, and its table speaks of rows that are there."""

import dataclasses
import functools
import glob
import itertools
import os

import keras

from tf_robust import cli, methods, models
from tf_robust.experiments import modes, suites
from tf_robust.models import heads


def small_network(stages=4):
    """A network with as many stages as any of the package."""
    images, x = heads.normalized_input((32, 32, 3), 0.5, 0.5, 8, "small")
    for stage in range(1, stages + 1):
        x = keras.layers.BatchNormalization()(keras.layers.Conv2D(4, 3, strides=2, padding="same", name=f"stage_{stage}")(x))
    return heads.classifier(images, keras.layers.GlobalAveragePooling2D()(x), 10, "small")


@functools.cache
def run_of(path, *told):
    """The run of a flagfile and of further flags; to read a flagfile takes longer than what is checked of it."""
    (run,) = modes.runs_of(modes.parse_arguments([f"--flagfile={path}", *told]), os.path.basename(path).removesuffix(".flags"))
    return run


def test_flagfiles_build_their_methods():
    classifier, built = small_network(), set()
    found = [
        os.path.join(folder, f) for folder, _, files in os.walk(os.path.join(cli.ROOT, "flags")) for f in files if f.endswith(".flags")
    ]
    assert len(found) > 40
    for path in found:
        run = run_of(path)
        with open(path) as file:
            written = [line.strip().removeprefix("--").split("=", 1) for line in file if line.startswith("--")]
        for name, _ in written:
            method = run.config.method
            others = [other for other in methods.METHODS if other not in (method, *run.config.views, *run.config.augmentations)]
            assert not any(name.startswith(f"{other}_") for other in others), f"{path} sets --{name} for another method than {method}"
        configuration = (run.config.method, run.config.views, repr(run.hyperparameters))
        if configuration not in built:  # many rows share one
            built.add(configuration)
            run.pipeline()
            own = run.hyperparameters["method"].get("layer_weights")  # one for each stage of the run's model
            model = models.build(run.config.model, (32, 32, 3), 10) if own else classifier
            method = methods.METHODS[run.config.method](model, examples=1000, **run.hyperparameters["method"])
            method.check_views(run.config.views)


def test_rows_printed_in_two_tables_have_the_same_settings():
    """NoisyMix's Table 4 prints four of Table 3's rows again."""
    tables = [os.path.join(cli.ROOT, "flags", "noisymix", name) for name in ("table3_cifar100", "table4_cifar100")]
    (_, _, third), (_, _, fourth) = (suites.table_of(table, cli.ROOT) for table in tables)
    twins = {"none": "baseline", "mixing": "manifold_mixup", "mixing_noise": "nfm", "all": "noisymix"}
    for row, other in twins.items():
        assert all(third["paper"][other][measure] == number for measure, number in fourth["paper"][row].items())
        runs = [
            modes.runs_of(modes.parse_arguments([f"--flagfile={table}/{name}.flags"]), name)[0] for table, name in zip(tables, (other, row))
        ]
        if row == "none":  # nothing is left of NoisyMix, which is cross-entropy
            told = runs[1].hyperparameters["method"]
            assert (told["mixing"], told["noise"], told["jsd_weight"]) == (False, "none", 0)
            runs[1].config = dataclasses.replace(runs[1].config, method="cross_entropy")
        else:
            assert runs[0].hyperparameters == runs[1].hyperparameters, row
        assert runs[0].config == runs[1].config, row


def test_tables_describe_existing_rows():
    folders = glob.glob(os.path.join(cli.ROOT, "flags", "**", "suite.json"), recursive=True)
    assert len(folders) > 20
    for folder in map(os.path.dirname, folders):
        _, rows, table = suites.table_of(folder, cli.ROOT)
        shown = {table.get("shown_as", {}).get(row, row) for row in rows}
        named = itertools.chain([table.get("baseline", rows[0])], table.get("paper", ()), *table.get("panels", {}).values())
        assert set(table["rows"]) <= set(rows) and set(named) <= shown, folder


def test_the_rows_of_a_table_have_the_same_images():
    folders = {os.path.dirname(path) for path in glob.glob(os.path.join(cli.ROOT, "flags", "**", "*.flags"), recursive=True)}
    assert len(folders) > 30
    for folder in sorted(folders):
        _, rows, _ = suites.table_of(folder, cli.ROOT)
        imagenet = folder.endswith("noisymix/table1_imagenet")
        told = ["--data=folder:IMAGENET", "--label_set=imagenet"] if imagenet else []  # as its flagfiles say
        suites.check_images_match([run_of(f"{folder}/{row}.flags", *told) for row in rows])


def test_printed_robust_accuracies_are_measured_by_pgd():
    checked = 0
    for path in glob.glob(os.path.join(cli.ROOT, "flags", "urrl", "table2_*", "suite.json")):
        folder, rows, table = suites.table_of(os.path.dirname(path), cli.ROOT)
        for row in rows:
            eval_config = run_of(f"{folder}/{row}.flags").eval_config
            printed = {measure for measure in table["paper"][row] if measure.startswith("robust")}
            assert printed == {f"robust/pgd/{radius}" for radius in eval_config.attack_radii} and eval_config.attack == (
                "autoattack",
                "pgd",
            )
            checked += 1
    assert checked == 12 * 7
