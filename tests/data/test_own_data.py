"""Data of the user's own: the same images as arrays, Dataset, folder, CSV and .npz give the same metrics; bad input is refused."""

import importlib.util
import shutil

import keras
import numpy as np
import pandas
import pytest
import tensorflow as tf
from PIL import Image

from tests.data.image_files import save
from tests.small_runs import without_charts  # noqa: F401
from tf_robust import api, corruptions, data
from tf_robust.evaluation import slice_values, stratified_groups, stratified_images

NAMES = ["cat", "dog", "owl"]
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


@pytest.fixture(scope="module")
def examples():
    """30 images uint8 [N, 8, 8, 3], sorted by class as a folder is, and their labels."""
    random = np.random.RandomState(0)
    return random.randint(0, 256, (30, 8, 8, 3)).astype(np.uint8), np.arange(30) // 10


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.Input([8, 8, 3]), keras.layers.Flatten(), keras.layers.Dense(3)], name="linear")


@pytest.fixture
def folder(examples, tmp_path):
    """A folder per class, and table.csv in its parent, whose paths are relative."""
    lines = []
    for number, (image, label) in enumerate(zip(*examples)):
        path = tmp_path / "photos" / NAMES[label] / f"{number:02}.png"
        save(image, path)
        lines.append({"path": str(path.relative_to(tmp_path)), "label": NAMES[label]})
    pandas.DataFrame(lines).to_csv(tmp_path / "table.csv", index=False)
    return tmp_path


def standardized(images):
    return ((images / 255 - MEAN) / STD).astype(np.float32)


def test_the_same_images_give_the_same_measures_in_every_form(examples, model, folder, monkeypatch):
    few = ("gaussian_noise", "contrast")  # of 19: drawn, and not drawn
    monkeypatch.setattr(corruptions, "CORRUPTIONS", {name: corruptions.CORRUPTIONS[name] for name in few})
    images, labels = examples
    np.savez(folder / "named.npz", images=images, labels=labels)
    np.savez(folder / "floats.npz", x=images / 255, y=np.eye(3)[labels])
    floats = tf.data.Dataset.from_tensor_slices(((images / 255).astype(np.float32), labels))
    standard = "mean=0.485,0.456,0.406 std=0.229,0.224,0.225"
    forms = [
        {"data": (images, labels)},
        {"data": (images / 255, np.eye(3)[labels])},
        {"data": (images.astype(np.float32), labels[:, None]), "data_range": "0,255"},
        {"data": (images / 127.5 - 1, labels.astype(float)), "data_range": "-1,1"},
        {"data": (standardized(images), [NAMES[label] for label in labels]), "data_range": standard},
        {"data": (np.moveaxis(standardized(images), 3, 1), labels), "data_range": standard},
        {"data": floats},
        {"data": floats.batch(7)},
        {"data": floats.map(lambda image, label: {"image": image, "label": label})},
        {"data": floats.batch(30).repeat(), "subset": 30},
        {"data": f"folder:{folder}/photos"},
        {"data": f"csv:{folder}/table.csv"},
        {"data": f"npz:{folder}/named.npz"},
        {"data": f"npz:{folder}/floats.npz"},
    ]
    for form in map(dict, forms):
        found, found_labels = opened(form.pop("data"), **form)
        np.testing.assert_allclose(found, images / 255, atol=1e-6)
        np.testing.assert_array_equal(found_labels, labels)
    expected = np.mean(np.argmax(model(images / 255.0), axis=1) == labels)
    values = [
        api.evaluate(model, evaluations="clean,corruptions,noise", severities="3", **forms[number]).values for number in (0, 4, 9, 10)
    ]
    assert values[0]["clean"] == pytest.approx(expected) and {"un", "nun", *(f"corruptions/{name}" for name in few)} < values[0].keys()
    for found in values[1:]:
        assert found == pytest.approx(values[0], abs=1e-6)


def opened(given, subset=0, **options):
    """Returns the images in [0, 1] and the labels of data as a name, arrays or a dataset."""
    if isinstance(given, str):
        source = data.open_source(given, "all")
    elif isinstance(given, tuple):
        source = data.from_arrays(*given, **options)
    else:
        source = data.from_dataset(given, limit=subset, **options)
    images, labels = next(source.ordered(30).as_numpy_iterator())
    return images / 255, labels


def test_gray_images_without_channel_and_batches_of_them():
    images, labels = np.random.RandomState(0).randint(0, 256, (12, 8, 8)).astype(np.uint8), np.arange(12) % 3
    expected = images[..., None]
    np.testing.assert_array_equal(data.from_arrays(images, labels).images, expected)
    for dataset in (tf.data.Dataset.from_tensor_slices((images, labels)), tf.data.Dataset.from_tensor_slices((images, np.eye(3)[labels]))):
        for batches in (dataset, dataset.batch(5), dataset.batch(1)):
            source = data.from_dataset(batches)
            np.testing.assert_array_equal(source.images, expected)
            np.testing.assert_array_equal(source.labels, labels)


def test_labels_of_fewer_classes_than_the_model_has(examples, folder):
    images, labels = examples
    ten = keras.Sequential([keras.Input([8, 8, 3]), keras.layers.Flatten(), keras.layers.Dense(10)])
    pandas.read_csv(folder / "table.csv").assign(label=labels).to_csv(folder / "numbers.csv", index=False)
    expected = np.mean(np.argmax(ten(images / 255.0), axis=1) == labels)
    for form in ((images, labels), f"csv:{folder}/numbers.csv"):
        assert api.evaluate(ten, data=form, evaluations="clean").values["clean"] == pytest.approx(expected)
    for wrong, received in ((np.arange(30) % 10 + 1, "10 at index 9 .*Try: labels - 1"), (np.full(30, 12), "12")):
        with pytest.raises(ValueError, match=f"labels in 0..9 in arrays. Received: {received}"):
            api.evaluate(ten, data=(images, wrong), evaluations="clean")


IMAGES = np.random.RandomState(0).rand(6, 8, 8, 3).astype(np.float32)
LABELS = np.arange(6) % 3


@pytest.mark.parametrize(
    "images, labels, data_range, message",
    [
        (IMAGES * 255, LABELS, "", "data_range=0,1. Received: float32 from .* Try: data_range=0,255"),
        (IMAGES * 2 - 1, LABELS, "", "Try: data_range=-1,1"),
        (standardized(IMAGES * 255), LABELS, "", "Try: data_range='mean=M,M,M std=S,S,S'"),
        (IMAGES, LABELS, "0,255", "data_range=0,255. Received: float32 from .* Try: data_range=0,1"),
        (IMAGES, LABELS, "mean=0.5,0.5 std=1", "data_range with 1 or 3 numbers"),
        (IMAGES, LABELS, "bright", "Expected data_range as LOW,HIGH"),
        (IMAGES * np.nan, LABELS, "", "Expected finite values"),
        (IMAGES[..., :2], LABELS, "", r"with 1 or 3 channels, in arrays. Received: float32 \(6, 8, 8, 2\)"),
        (IMAGES[0, 0], LABELS, "", r"Expected images \[N, H, W, C\]"),
        (IMAGES, LABELS[:5], "", r"labels \(5,\)"),
        (IMAGES, np.full((6, 3), 1 / 3), "", "Expected one-hot labels in arrays"),
        (IMAGES, LABELS - 1, "", r"Expected labels in 0..1 in arrays. Received: -1"),
        (IMAGES, LABELS + 0.5, "", "Expected labels as class indices"),
        (np.round(IMAGES).astype(np.uint8), LABELS, "", "Received: uint8 from 0 to 1. Try: data_range=0,1"),
        (np.round(16 * IMAGES).astype(np.uint8), LABELS, "", "Received: uint8 from 0 to 16. Try: data_range=0,16 if that is white"),
        (np.round(16 * IMAGES), LABELS, "", "Received: float32 from 0 to 16. Try: data_range=0,16 if that is white"),
        ([IMAGES[0], IMAGES[0, :4]], LABELS[:2], "", "Expected images of one size in arrays. .* Try: resize them, or folder:DIR"),
        (IMAGES, np.array(["a", None, "b"] * 2, object), "", "Expected a label for each image of arrays. Received: None at index 1"),
        (IMAGES, np.array(["a", "b", np.nan] * 2, object), "", "Received: nan at index 2"),
        (IMAGES, np.array([0, 1, np.nan] * 2), "", "Received: nan at index 2"),
    ],
)
def test_bad_arrays_are_refused_with_advice(images, labels, data_range, message):
    with pytest.raises(ValueError, match=message):
        data.from_arrays(images, labels, data_range=data_range)


@pytest.mark.parametrize(
    "labels",
    [np.array([0, 2, 10, 1], object), np.array([0.0, 2.0, 10, 1]), np.array([0.0, 2.0, 10, 1], object)]
    + [["0", "2", "10", "1"], [b"0", b"2", b"10", b"1"], ["0.0", "2.0", "10.0", "1.0"]],
)
def test_integers_of_other_types_are_class_indices(labels):
    source = data.from_arrays(IMAGES[:4], labels)
    assert source.labels.tolist() == [0, 2, 10, 1] and source.num_classes == 11
    named = data.from_arrays(IMAGES[:4], [str(label) for label in (2, 3, 5, 2)], class_names=("2", "3", "5"))
    assert named.labels.tolist() == [0, 1, 2, 0]


def test_names_of_validation_labels_are_the_classes_of_the_data():
    def classify(images):
        columns = np.round(np.asarray(images)[:, 0, 0, 0] * 4)
        return np.eye(3, dtype=np.float32)[np.clip(columns, 0, 2).astype(int)] * 4

    names, columns = np.array(["ant", "bee", "cat"]), np.arange(60) % 3
    images = np.broadcast_to((columns / 4).astype(np.float32)[:, None, None, None], (60, 8, 8, 3))
    some = columns > 0
    result = api.evaluate(
        classify, data=(images, names[columns]), validation_data=(images[some], names[columns[some]]), evaluations="clean", conformal=0.9
    )
    assert result.values["clean"] == 1.0 and result.values["conformal/size"] <= 1.0  # 3 if the validation labels were other columns
    shifted = api.evaluate(
        classify, data=(images, names[columns]), shifts={"night": (images[some], names[columns[some]])}, evaluations="clean"
    )
    assert shifted.values["shift/night"] == 1.0


def _indexed(image, one_hot):
    return image, tf.argmax(one_hot)


def test_bad_datasets_are_refused_with_advice(model):
    dataset, others = (tf.data.Dataset.from_tensor_slices((images, LABELS)) for images in (IMAGES, IMAGES[:, :4]))
    ambiguous = tf.data.Dataset.from_tensor_slices((np.moveaxis(IMAGES, 3, 1), np.eye(3)[LABELS]))
    for bad, message in (
        (dataset.repeat(), "Expected a finite dataset"),
        (dataset.map(lambda image, label: image), "Received elements: ndarray"),
        (dataset.take(0), "Received: none"),
        (dataset.concatenate(others), "Expected images of one size"),
        (ambiguous, "one image of 3 channels or 3 images"),
    ):
        with pytest.raises(ValueError, match=message):
            data.from_dataset(bad)
    assert data.from_dataset(ambiguous.batch(2)).images.shape == data.from_dataset(ambiguous.map(_indexed)).images.shape == IMAGES.shape
    with pytest.raises(ValueError, match="Received: ndarray"):
        api.evaluate(model, data=IMAGES, evaluations="clean")
    with pytest.raises(ValueError, match="Received: tuple"):
        api.train("unused", data=(IMAGES, LABELS))


def test_bad_tables_are_refused_with_the_line(folder):
    for text, error, message in (
        ("file,class\na.png,cat\n", ValueError, "Received: file, class"),
        ("path,label\nphotos/cat/00.png,cat\nb.png,cat\n", FileNotFoundError, r"b.png \(line 3\)"),
        ("path,label\nphotos/cat/00.png,\n", ValueError, "line 2"),
        ("path,label\nphotos/cat/00.png,  \n", ValueError, "line 2"),
        ("path,label\n", ValueError, "no lines"),
        ("path,label\ntable.csv,cat\n", ValueError, "table.csv in line 2"),
    ):
        (folder / "bad.csv").write_text(text)
        with pytest.raises(error, match=message):
            data.open_source(f"csv:{folder}/bad.csv", "all")
    for missing in (f"csv:{folder}/none.csv", f"folder:{folder}/nowhere"):
        with pytest.raises(FileNotFoundError, match=missing.partition(":")[2]):
            data.open_source(missing, "all")


def test_labels_of_tables_are_read_as_texts_without_spaces_or_as_integers(folder):
    paths = [f"photos/cat/{number:02}.png" for number in range(4)]
    for labels, expected, names in (
        (["cat", "cat ", " dog", "cat"], [0, 0, 1, 0], ("cat", "dog")),
        (["0.0", "10.0", "2.0", "1.0"], [0, 10, 2, 1], tuple(map(str, range(11)))),  # as pandas writes a column that had a NaN
    ):
        (folder / "labels.csv").write_text("\n".join(["path,label", *(f"{path},{label}" for path, label in zip(paths, labels))]))
        opened = data.open_source(f"csv:{folder}/labels.csv", "all")
        assert list(opened.labels) == expected and opened.class_names == names


def test_bad_npz_files_are_named(tmp_path):
    np.savez(tmp_path / "other.npz", a=IMAGES)
    np.savez(tmp_path / "pickled.npz", x=np.array([{}], object), y=LABELS)
    np.savez(tmp_path / "whole.npz", x=IMAGES, y=LABELS)
    (tmp_path / "cut.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:-50])
    (tmp_path / "text.npz").write_text("no archive")
    np.save(tmp_path / "one.npy", IMAGES)
    for name in ("other.npz", "pickled.npz", "cut.npz", "text.npz", "one.npy"):
        with pytest.raises(ValueError, match=name):
            data.open_source(f"npz:{tmp_path}/{name}", "all")


def test_sets_without_splits_are_divided_for_training_and_evaluated_as_a_whole(folder):
    for name in (f"csv:{folder}/table.csv", f"folder:{folder}/photos"):
        parts = [data.open_source(name, split).paths for split in ("train", "validation", "test")]
        assert [len(part) for part in parts] == [24, 3, 3]
        assert sorted(sum(parts, ())) == sorted(data.open_source(name, "all").paths)
    with pytest.raises(ValueError, match="digits, which has splits"):
        data.open_source("digits", "all")


@pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="needs the extra datasets")
def test_hugging_face_data_sets_on_disk(examples, model, folder):
    import datasets

    images, labels = examples
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)})
    encoded = [Image.fromarray(image) for image in images]
    datasets.Dataset.from_dict({"image": encoded, "label": labels.tolist()}, features=features).save_to_disk(folder / "saved")
    expected = api.evaluate(model, data=(images, labels), evaluations="clean,noise").values
    for name in (f"hf:{folder}/saved", f"hf:{folder}/photos"):
        assert api.evaluate(model, data=name, evaluations="clean,noise").values == pytest.approx(expected)
        assert data.open_source(name, "all").class_names == tuple(NAMES)
    part = datasets.Dataset.from_dict({"image": encoded[:9], "label": labels[:9].tolist()}, features=features)
    datasets.DatasetDict({"train": part, "test": part.select(range(3))}).save_to_disk(folder / "split")
    assert [len(data.open_source(f"hf:{folder}/split", split)) for split in ("train", "test")] == [9, 3]
    assert not data.has_validation(f"hf:{folder}/split")
    assert data.has_validation(f"hf:{folder}/split", validation_fraction=0.4)
    parts = {split: data.open_source(f"hf:{folder}/split", split, validation_fraction=0.4) for split in ("train", "validation", "test")}
    assert [len(part) for part in parts.values()] == [5, 4, 3]
    assert sorted([*parts["train"].positions, *parts["validation"].positions]) == list(range(9))
    for part in (*list(parts.values())[:2], data.open_source(f"hf:{folder}/split", "train", examples=4)):
        np.testing.assert_array_equal(part.images, images[part.positions])  # by which noise is drawn
        np.testing.assert_array_equal(part.labels, labels[part.positions])
    few = data.open_source(f"hf:{folder}/split", "train", validation_fraction=0.4, examples=3)
    assert {*few.positions} < {*parts["train"].positions}
    texts = datasets.Features({"image": datasets.Image(), "label": datasets.Value("string")})
    split = {"train": ["owl", "cat", "dog"], "validation": ["owl", "dog", "dog"], "test": ["dog", "dog", "owl"]}
    tables = {name: datasets.Dataset.from_dict({"image": encoded[:3], "label": words}, features=texts) for name, words in split.items()}
    datasets.DatasetDict(tables).save_to_disk(folder / "texts")
    for name, words in split.items():
        opened = data.open_source(f"hf:{folder}/texts", name)
        assert opened.class_names == ("cat", "dog", "owl") and [opened.class_names[label] for label in opened.labels] == words
    with pytest.raises(FileNotFoundError, match="hf:.*/nowhere could not be read"):
        data.open_source(f"hf:{folder}/nowhere", "test")


def test_a_folder_with_test_alone_takes_its_noise_from_the_evaluated_images(model, folder, capsys):
    (folder / "only").mkdir()
    (folder / "photos").rename(folder / "only" / "test")
    name = f"folder:{folder}/only"
    result = api.evaluate(model, data=name, evaluations="clean,noise")
    card = result.evaluation["card"]
    assert result.evaluation["split"] == "test" and card["data"]["num_images"] == 30
    assert card["noise"]["std_from"] == card["data"]["fingerprint"]
    assert "are computed from the evaluated images" in capsys.readouterr().out
    assert not data.has_training(name)
    with pytest.raises(FileNotFoundError, match="Expected .*only/train next to the other splits"):
        data.open_source(name, "train")


def test_a_model_is_evaluated_on_all_images_unless_it_was_trained_on_a_part(model, folder, capsys):
    name, elsewhere, random = f"npz:{folder}/table.npz", f"npz:{folder}/elsewhere/table.npz", np.random.RandomState(0)
    images, labels = random.rand(60, 28, 28, 1), np.arange(60) % 2
    np.savez(folder / "table.npz", x=images, y=labels)
    trained = api.train(str(folder / "run"), data=name, epochs=1, model="lenet", batch_size=16, evaluations="clean")
    path = str(folder / "run" / "saved_model")
    assert trained.evaluation["split"] == "test" and trained.evaluation["card"]["data"]["num_images"] == 6
    again = api.evaluate(path, data=f"npz:{folder}/./table.npz", evaluations="clean")  # however the path is written
    assert again.evaluation["split"] == "test" and again.values == trained.values
    assert "evaluated on the test part" in capsys.readouterr().out
    for chosen, count in (("all", 60), ("validation", 6)):
        found = api.evaluate(trained.model, data=name, evaluations="clean", evaluation_split=chosen).evaluation
        assert found["split"] == chosen and found["card"]["data"]["num_images"] == count
    (folder / "elsewhere").mkdir()
    shutil.copy(folder / "table.npz", folder / "elsewhere")
    moved = api.evaluate(trained.model, data=elsewhere, evaluations="clean").evaluation
    assert moved["split"] == "test" and moved["card"]["data"]["num_images"] == 6  # the same images
    for target in ("other.npz", "table.npz"):
        np.savez(folder / target, x=np.concatenate([images, images[:2]]), y=[*labels, 0, 1])
    others = api.evaluate(trained.model, data=f"npz:{folder}/other.npz", evaluations="clean").evaluation
    assert others["split"] == "all" and others["card"]["data"]["num_images"] == 62
    for options in ({}, {"evaluation_split": "test"}, {"calibrate": "temperature", "evaluation_split": "all"}):
        with pytest.raises(ValueError, match=r"Received: images that have changed since \(62 instead of 60\)"):
            api.evaluate(path, name, evaluations="clean", **options)
    with pytest.raises(ValueError, match="have changed since"):
        api.harden(path, name, budget="1m")
    assert api.evaluate(path, name, evaluations="clean", evaluation_split="all").evaluation["card"]["data"]["num_images"] == 62
    foreign = api.evaluate(model, data=f"folder:{folder}/photos", evaluations="clean").evaluation
    assert foreign["split"] == "all" and foreign["card"]["data"]["num_images"] == 30
    assert "has no splits: evaluated on all of its images" in capsys.readouterr().out


def test_test_images_of_data_without_splits_are_not_those_of_a_training_with_another_fraction(folder):
    name = f"npz:{folder}/table.npz"
    np.savez(folder / "table.npz", x=np.random.RandomState(0).rand(200, 28, 28, 1), y=np.arange(200) % 2)
    trained = api.train(
        str(folder / "few"), data=name, validation_fraction=0.02, epochs=1, model="lenet", batch_size=50, evaluations="clean"
    )
    found = api.evaluate(trained.model, name, evaluations="clean").evaluation
    assert found["card"]["data"] == trained.evaluation["card"]["data"] and found["card"]["data"]["num_images"] == 4
    with pytest.raises(ValueError, match="Expected validation_fraction <= 0.02"):
        api.evaluate(trained.model, name, evaluations="clean", validation_fraction=0.1, evaluation_split="test")


def test_files_of_keras_datasets_have_splits(tmp_path):
    random = np.random.RandomState(0)
    train, test = (random.randint(0, 256, (count, 8, 8), np.uint8) for count in (40, 10))
    np.savez(tmp_path / "keras.npz", x_train=train, y_train=np.arange(40) % 5, x_test=test, y_test=np.arange(10) % 4)
    name = f"npz:{tmp_path}/keras.npz"
    assert data.has_splits(name) and not data.has_validation(name) and data.has_validation(name, validation_fraction=0.25)
    parts = {split: data.open_source(name, split, validation_fraction=0.25) for split in ("train", "validation", "test")}
    assert {split: (len(part), part.split, part.num_classes) for split, part in parts.items()} == {
        "train": (30, "train", 5),
        "validation": (10, "validation", 5),
        "test": (10, "test", 5),
    }
    np.testing.assert_array_equal(parts["test"].images[..., 0], test)
    assert sorted([*parts["train"].positions, *parts["validation"].positions]) == list(range(40))
    np.testing.assert_array_equal(parts["validation"].images[..., 0], train[parts["validation"].positions])
    with pytest.raises(ValueError, match="validation split"):
        data.open_source(name, "validation")


def test_slices_are_classes_and_groups_of_a_column(examples, model, folder):
    images, labels = examples
    groups = np.array(["north", "south"])[np.random.RandomState(2).randint(0, 2, 30)]
    pandas.read_csv(folder / "table.csv").assign(site=groups).to_csv(folder / "sites.csv", index=False)
    settings = {"data": f"csv:{folder}/sites.csv", "evaluations": "clean,slices", "groups": "site"}
    rows = {row["metric"]: row for row in api.evaluate(model, **settings).evaluation["rows"]}
    correct = np.argmax(model(images / 255.0), axis=1) == labels
    by_group = {name: correct[groups == name].mean() for name in ("north", "south")}
    by_class = {name: correct[labels == number].mean() for number, name in enumerate(NAMES)}
    for one, kind, expected in (("group", "groups", by_group), ("class", "classes", by_class)):
        assert {name: rows[f"{one}/{name}"]["value"] for name in expected} == pytest.approx(expected)
        assert rows[f"{kind}/worst"]["value"] == pytest.approx(min(expected.values()))
        gap = rows[f"{kind}/gap"]
        assert gap["value"] == pytest.approx(max(expected.values()) - min(expected.values())) and gap["low"] <= gap["value"] <= gap["high"]
    source = data.open_source(settings["data"], "all")
    for count in (12, 30):
        few, _ = stratified_images(source, count)
        numbers = [np.flatnonzero([np.array_equal(np.round(one * 255), image) for image in images]).item() for one in few]
        assert stratified_groups(source, count, "site").tolist() == groups[numbers].tolist()
    part = api.evaluate(model, **settings, subset=12)
    kept = data.open_source(settings["data"], "all", examples=12).positions
    assert part.values["group/north"] == pytest.approx(correct[kept][groups[kept] == "north"].mean())
    with pytest.raises(ValueError, match="'place' .* Columns: site"):
        api.evaluate(model, **{**settings, "groups": "place"})
    with pytest.raises(ValueError, match="Expected evaluations=slices"):
        api.evaluate(model, **{**settings, "evaluations": "clean"})


def test_the_gap_has_newcombes_interval():
    """The example of Newcombe (1998), method 10: 56/70 against 48/80."""
    source = data.from_arrays(np.zeros((150, 8, 8, 1), np.uint8), np.repeat([0, 1], [70, 80]))
    correct = np.concatenate([np.arange(70) < 56, np.arange(80) < 48])
    gap = {str(metric): metric for metric in slice_values(source, correct, "")}["classes/gap"]
    assert (gap.value, gap.low, gap.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=1e-4)
