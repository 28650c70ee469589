"""Names of rows in a report of several evaluations."""

from tf_robust.runs.workdir import with_distinct_rows


def one(folder, metrics, row="model", model="/m/model.keras", seed=0, **fields):
    rows = [{"metric": metric} for metric in metrics]
    return {"row": row, "seed": seed, "data": "d", "split": "test", "saved_model": model, "measured_in": folder, "rows": rows, **fields}


def names(*evaluations):
    return [evaluation["row"] for evaluation in with_distinct_rows(evaluations)]


def test_evaluations_of_one_model_have_the_names_of_their_folders():
    attacked, calibrated = one("runs/attacked", ["clean", "robust/linf_0.1"]), one("runs/calibrated", ["clean", "calibration/rms"])
    assert names(attacked, calibrated) == ["model (attacked)", "model (calibrated)"]
    assert names(one("a/formats/keras", ["clean"]), one("b/formats/keras", ["clean"])) == [
        "model (a/formats/keras)",
        "model (b/formats/keras)",
    ]
    assert names(attacked, one("runs/noise", ["un"])) == ["model", "model"]  # one row: no metric twice
    adapted = one("runs/adapted", ["adapted/clean"], card={"adaptation": {}})
    assert names(attacked, calibrated, adapted) == ["model (attacked)", "model (calibrated)", "model, adapted"]


def test_seeds_and_models_of_other_paths_are_not_named_by_folders():
    assert names(*(one(f"runs/seed_{seed}", ["clean"], row="fcl", seed=seed) for seed in (0, 1))) == ["fcl", "fcl"]
    assert names(one("x/1", ["clean"], model="/a/model.keras"), one("x/2", ["clean"], model="/b/model.keras")) == [
        "a/model.keras",
        "b/model.keras",
    ]


def test_models_of_several_folders_are_seeds_of_one_row_if_their_training_was_the_same(tmp_path):
    def trained(folder, seed, **flags):
        workdir = tmp_path / folder
        workdir.mkdir()
        (workdir / "flags.txt").write_text("".join(f"--{name}={value}\n" for name, value in {"seeds": seed, **flags}.items()))
        return one(str(workdir), ["clean"], row="fcl", model=str(workdir / "saved_model"), seed=seed)

    first, other = trained("k20", 0, fcl_k=20, subset=0), trained("k64", 1, fcl_k=64, subset=0)
    again = trained("again", 2, fcl_k=20, subset=1000)
    assert names(first, other) == ["k20", "k64"]
    assert names(first, again) == ["fcl", "fcl"]
    assert names(first, again, other) == ["k20", "again", "k64"]
    assert names(one("x", ["clean"], model="/a/m.keras"), one("y", ["clean"], model="/b/m.keras", seed=1)) == ["a/m.keras", "b/m.keras"]


def test_the_same_folder_twice_ends():
    assert names(one("runs/a", ["clean"]), one("runs/a", ["clean"])) == ["model (a)", "model (a)"]
