"""Sets are evaluated in shards with the same records as at once, and what the model predicts for each image is in Parquet files."""

import os
import pathlib
import sys

import numpy as np
import pandas
import PIL.Image
import pyarrow.parquet
import pytest
import scipy.special
import tensorflow as tf
import tensorflow_datasets as tfds

import tf_robust as tfr
from tests.conftest import sweep
from tests.corrupted_datasets import sets
from tests.evaluation.shared import with_one_killed
from tf_robust import corruptions, data, evaluation
from tf_robust.corrupted_datasets import WriterConfig, reader
from tf_robust.corrupted_datasets.job import CorruptionConfig, write
from tf_robust.data import tfds_sets
from tf_robust.data.sources import Shift
from tf_robust.evaluation import recording, scoring
from tf_robust.evaluation import sets as evaluation_sets

EVALUATIONS = ("clean", "noise", "noise_floor", "corruptions", "corruptions_bar", "calibration", "perturbations")
CORRUPTIONS = ("gaussian_noise", "contrast", "checkerboard_cutout")  # with and without random numbers; of both families
SIZE, CLASSES = 23, 3


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Batches of four images, shards of eight; few corruptions, floors and sequences, whose graphs are built quickly."""
    monkeypatch.setattr(scoring, "BATCH", 4)
    monkeypatch.setattr(recording, "SHARD_IMAGES", 6)
    monkeypatch.setattr(corruptions, "CORRUPTIONS", {name: corruptions.CORRUPTIONS[name] for name in CORRUPTIONS})
    monkeypatch.setattr(evaluation_sets, "NOISE_FLOORS", (0.02,))
    monkeypatch.setattr(corruptions, "sequence_names", lambda _: ("translate",))


def predict(images):
    """Logits that depend on all pixels."""
    pixels = tf.reshape(images, [len(images), -1])
    weights = np.random.RandomState(0).randn(pixels.shape[1], CLASSES).astype(np.float32)
    return tf.matmul(pixels, weights)


def arrays():
    random = np.random.RandomState(1)
    return random.randint(0, 256, (SIZE, 16, 16, 3)).astype(np.uint8), np.arange(SIZE) * 7 % CLASSES


def in_memory(name="arrays", split="test"):
    return data.ArraySource.of(name, split, *arrays(), "abc")


@pytest.fixture(params=sweep(("arrays", "folder", "stream"), quick=("arrays", "folder")))
def source(request, tmp_path, monkeypatch):
    """The same kind of images in memory, as files and as a stream of records in three files."""
    if request.param == "arrays":
        return in_memory()
    if request.param == "folder":
        for number, (image, label) in enumerate(zip(*arrays())):
            path = tmp_path / "images" / "abc"[label] / f"{number:02d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            PIL.Image.fromarray(image).save(path)
        return data.open_source(f"folder:{tmp_path}/images", "all")
    return stream(tmp_path, monkeypatch)


def stream(folder, monkeypatch):
    """A set of TFDS that is read as a stream of three files."""
    images, labels = arrays()
    features = tfds.features.FeaturesDict(
        {"image": tfds.features.Image(shape=(16, 16, 3)), "label": tfds.features.ClassLabel(names=list("abc"))}
    )
    dataset = tf.data.Dataset.from_tensor_slices({"image": images, "label": labels})
    tfds.dataset_builders.store_as_tfds_dataset(
        name="numbers", version="1.0.0", features=features, split_datasets={"test": dataset}, data_dir=str(folder)
    )
    monkeypatch.setattr(tfds_sets, "IN_MEMORY_BYTES", 0)
    complete = data.open_source("numbers", "test", str(folder))
    records = [record.numpy() for record in tf.data.TFRecordDataset(complete.files)]
    files = [str(folder / f"{part}.tfrecord") for part in range(3)]
    for path, part in zip(files, (records[:5], records[5:15], records[15:])):
        with tf.io.TFRecordWriter(path) as file:
            for record in part:
                file.write(record)
    monkeypatch.setattr(tfds_sets.RecordFiles, "files", files)
    monkeypatch.setattr(tfds_sets.RecordFiles, "file_lengths", [5, 10, 8])
    return complete


def evaluate(source, path, *, model=predict, depends=lambda name: name, log=lambda _: None, **options):
    config = evaluation.EvalConfig(**{"evaluations": ("clean",), "severities": (5,), "per_image": True, **options})
    shift = [Shift("moved", in_memory("moved"), (2, 0, 1), None)]
    path.parent.mkdir(parents=True, exist_ok=True)
    return evaluation.evaluate(model, source, in_memory(split="train"), config, path=str(path), depends=depends, shifts=shift, log=log)


def in_shards(source, folder, log=lambda _: None, **options):
    """Evaluates in shards, with the records of the complete sets."""
    at_once = evaluate(source, folder / "once" / "measured.jsonl", per_image=False, **options)
    divided = evaluate(source, folder / "shards" / "measured.jsonl", log=log, **options)
    assert divided.records == at_once.records and divided.metrics == at_once.metrics
    return divided


def results_of_images(folder, name):
    return pandas.read_parquet(evaluation.per_image_folder(str(folder), name))


def test_records_from_shards_are_those_of_the_complete_sets_and_results_of_images_those_of_the_model(source, tmp_path, monkeypatch):
    chosen = EVALUATIONS
    if source.name != "arrays":  # of files and streams: noise by the position of an image
        chosen = ("clean", "noise", "corruptions")
        monkeypatch.setattr(corruptions, "CORRUPTIONS", {"gaussian_noise": corruptions.CORRUPTIONS["gaussian_noise"]})
    lines = []
    divided = in_shards(source, tmp_path, log=lines.append, evaluations=chosen)
    assert {record["count"] for record in divided.records} == {SIZE}
    assert sum("shard 3 of 3" in line for line in lines) == len([one for one in divided.sets if one.part_batches]) >= 5
    check_results_of_images(source, divided, tmp_path / "shards")


def check_results_of_images(source, done, folder):
    sets = {one.name: one for one in done.sets}
    for name in {"clean", "un", "corruptions/gaussian_noise/5", "nun/floor_0.02", "shift/moved"} & sets.keys():
        one = sets[name]
        images, labels = (np.concatenate(parts) for parts in zip(*one.batches().as_numpy_iterator()))
        logits = predict(images).numpy().astype(np.float64)
        probabilities = scipy.special.softmax(logits, axis=1)
        found = results_of_images(folder, name)
        assert set(found["set"]) == {name} and found["position"].tolist() == list(range(SIZE))
        np.testing.assert_array_equal(found["label"], labels)
        np.testing.assert_array_equal(found["prediction"], logits.argmax(axis=1))
        np.testing.assert_array_equal(found["correct"], logits.argmax(axis=1) == labels)
        np.testing.assert_allclose(found["confidence"], probabilities.max(axis=1), rtol=1e-4)
        one_hot = np.eye(CLASSES)[labels]
        np.testing.assert_allclose(found["brier_score"], ((probabilities - one_hot) ** 2).sum(axis=1), atol=1e-4)
        likelihoods = -scipy.special.log_softmax(logits, axis=1)[np.arange(SIZE), labels]
        np.testing.assert_allclose(found["negative_log_likelihood"], likelihoods, rtol=1e-4, atol=1e-4)
    if source.paths:
        clean = results_of_images(folder, "clean")
        assert clean["path"].tolist() == list(source.paths)
        assert [pathlib.Path(path).parent.name for path in clean["path"]] == ["abc"[label] for label in clean["label"]]


def test_a_subset_names_positions_of_the_complete_set(tmp_path):
    source = in_memory().subset(np.array([20, 3, 4, 11, 12, 13, 14, 15, 22]))
    in_shards(source, tmp_path, evaluations=("clean", "noise", "corruptions"))
    found = results_of_images(tmp_path / "shards", "corruptions/gaussian_noise/5")
    assert found["position"].tolist() == source.positions.tolist()


@pytest.mark.parametrize("kind", sweep(["npy", "tfds"], ["npy"]))
def test_corrupted_sets_on_disk_are_read_in_shards(tmp_path, monkeypatch, kind):
    sets.quick(monkeypatch)
    source, folder = in_memory(), str(tmp_path / "corrupted")
    write(lambda: source, folder, WriterConfig(dataset_format=kind), CorruptionConfig())
    records = in_shards(source, tmp_path, corrupted_dir=folder, evaluations=("clean", "corruptions"), severities=(2, 5)).records
    assert len({record["which"] for record in records if record["set"].startswith("corruptions/")}) == 4  # of different images


def test_a_corrupted_set_in_another_order_is_divided_after_it_is_matched(tmp_path):
    images, labels = arrays()
    order = np.random.RandomState(0).permutation(SIZE)
    np.save(tmp_path / "contrast.npy", np.concatenate([images[order] // severity for severity in range(1, 6)]))
    np.save(tmp_path / "labels.npy", np.tile(labels[order], 5))
    divided = in_shards(in_memory(), tmp_path, corrupted_dir=str(tmp_path), evaluations=("corruptions",))
    assert divided.records[0]["correct"] > 0
    found = results_of_images(tmp_path / "shards", "corruptions/contrast/5")
    np.testing.assert_array_equal(found["label"], labels[order][found["position"]])  # positions of the set on disk


def test_a_part_of_a_stream_opens_no_file_before_it(tmp_path, monkeypatch):
    source = stream(tmp_path, monkeypatch)
    expected = np.concatenate([images for images, _ in source.ordered(4)])
    labels = np.concatenate([labels for _, labels in source.ordered(4)])
    os.remove(source.files[0])
    for first, last in ((5, 9), (14, 16), (15, 23), (22, 23)):
        part = source.part(first, last)
        np.testing.assert_array_equal(np.concatenate([images for images, _ in part.ordered(3)]), expected[first:last])
        np.testing.assert_array_equal(part.read_labels(), labels[first:last])
        assert part.positions.tolist() == list(range(first, last)) and part.fingerprint() != source.fingerprint()
    inner = source.part(5, 20).part(3, 9)
    np.testing.assert_array_equal(np.concatenate([images for images, _ in inner.ordered(3)]), expected[8:14])
    with pytest.raises(ValueError, match="a part, which is for evaluation"):
        inner.epoch(0, 0, 2)


def test_a_range_of_records_of_a_corrupted_set_is_its_subset(tmp_path, monkeypatch):
    sets.quick(monkeypatch)
    source = in_memory()
    write(lambda: source, str(tmp_path), WriterConfig(dataset_format="tfds"), CorruptionConfig())
    corrupted = reader.open_corrupted(str(tmp_path), source, "contrast", 3)
    complete = np.concatenate([images for images, _ in corrupted.ordered(4)])
    for kept in (np.arange(7, 12), np.array([2, 5, 6])):
        np.testing.assert_array_equal(np.concatenate([images for images, _ in corrupted.subset(kept).ordered(4)]), complete[kept])


def test_shards_that_are_there_are_not_computed_again(tmp_path):
    source, path, calls = in_memory(), tmp_path / "measured.jsonl", []
    first = evaluate(source, path)

    def counted(images):
        calls.append(len(images))
        return predict(images)

    folder = pathlib.Path(evaluation.per_image_folder(str(tmp_path), "clean"))
    names = sorted(os.listdir(folder))
    assert names == [f"0000{number}-of-00003.parquet" for number in range(3)]
    os.truncate(folder / names[1], os.path.getsize(folder / names[1]) // 2)  # damaged
    assert evaluate(source, path, model=counted).records == first.records
    assert calls == [4, 4]
    os.remove(folder / names[2])
    path.unlink()
    assert evaluate(source, path, model=counted).records == first.records
    assert calls[2:] == [4, 3]  # records are computed from shards that are there


def test_results_of_another_model_or_number_of_images_are_replaced(tmp_path):
    source, path = in_memory(), tmp_path / "measured.jsonl"
    evaluate(source, path, evaluations=("clean", "noise"))
    other = evaluate(source, path, model=lambda images: -predict(images), depends=lambda name: f"{name} other")
    assert results_of_images(tmp_path, "clean")["correct"].sum() == other.records[0]["correct"]
    assert not os.path.exists(evaluation.per_image_folder(str(tmp_path), "un"))
    few = evaluate(source.subset(np.arange(9)), path, depends=lambda name: f"{name} few")
    assert sorted(os.listdir(evaluation.per_image_folder(str(tmp_path), "clean"))) == ["00000-of-00002.parquet", "00001-of-00002.parquet"]
    assert len(results_of_images(tmp_path, "clean")) == few.records[0]["count"] == 9


def test_a_set_that_was_evaluated_before_gets_its_results_of_images_and_damaged_shards_are_computed_again(tmp_path):
    source, path = in_memory(), tmp_path / "measured.jsonl"
    before = evaluate(source, path, per_image=False)
    assert evaluate(source, path).records == before.records
    assert len(results_of_images(tmp_path, "clean")) == SIZE
    damaged = pathlib.Path(evaluation.per_image_folder(str(tmp_path), "clean")) / "00001-of-00003.parquet"
    content = damaged.read_bytes()
    damaged.write_bytes(content[:4] + bytes(100) + content[104:])  # the footer is whole
    path.unlink()
    assert evaluate(source, path).records == before.records
    assert damaged.read_bytes() == content


def test_another_evaluation_in_the_same_folder_at_the_same_time_is_an_error(tmp_path):
    source, path = in_memory(), tmp_path / "measured.jsonl"

    def other(name):
        evaluate(source, path, model=lambda images: -predict(images), depends=lambda set_name: f"{set_name} {name}")

    def between_the_last_shard_and_the_record(line):
        if "shard 3 of 3" in line and "shift" not in line:
            other("other")

    def after_the_record(line):
        if "clean" in line and "shard" not in line:
            other("third")

    for log, own in ((between_the_last_shard_and_the_record, ""), (after_the_record, " fourth")):
        with pytest.raises(ValueError, match="one model and one data set at a time in .*per_image"):
            evaluate(source, path, log=log, depends=lambda name, own=own: name + own)


def test_an_empty_set_is_named(tmp_path):
    with pytest.raises(ValueError, match="'clean'"):
        evaluate(in_memory().subset(np.array([], int)), tmp_path / "measured.jsonl")


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"pip install 'tf_robust\[parquet\]'"):
        evaluate(in_memory(), tmp_path / "measured.jsonl")


def test_shifts_alone_use_the_option():
    assert "per_image" not in evaluation.EvalConfig(("perturbations",), shifts=("digits",), per_image=True).unused
    assert "per_image" in evaluation.EvalConfig(("perturbations",), per_image=True).unused


def test_memory_does_not_hold_the_logits():
    results = evaluation.scoring.image_results(np.zeros([5, 1000], np.float32), np.zeros(5, int))
    assert sum(column.nbytes for column in results) == 5 * 5 * 8


@pytest.mark.parametrize("options", [{"adaptation": "batch_norm"}, {"calibrate": "temperature", "conformal": 0.9}])
def test_evaluations_of_all_images_at_once_are_refused(options):
    with pytest.raises(ValueError, match=", ".join(f"{name}={value}" for name, value in options.items())):
        evaluation.EvalConfig(("clean",), per_image=True, **options)


def test_records_without_a_path_are_refused():
    with pytest.raises(ValueError, match="path"):
        evaluation.records(predict, [], per_image=True)


def test_python_returns_the_results_of_images(monkeypatch):
    monkeypatch.undo()  # the flags name all corruptions
    images, labels = arrays()
    result = tfr.evaluate(predict, data=(images, labels), evaluations="clean,noise", per_image=True)
    found = result.images("un")
    assert found["correct"].mean() == pytest.approx(result.values["un"]) and "set" not in found
    np.testing.assert_array_equal(result.images()["label"], labels)
    with pytest.raises(ValueError, match="'um'. Did you mean 'un'"):
        result.images("um")
    result.evaluation["model_digest"] = "another"
    with pytest.raises(ValueError, match="'clean'"):
        result.images()
    with pytest.raises(FileNotFoundError, match="per_image=True"):
        tfr.evaluate(predict, data=(images, labels), evaluations="clean").images()


WORKER = """
import json, sys, time
import numpy as np
import tensorflow as tf
from tf_robust import data, evaluation
from tf_robust.evaluation import recording, scoring
scoring.BATCH, recording.SHARD_IMAGES = 4, 4
def predict(images):
    time.sleep(0.03)
    return tf.one_hot(tf.cast(images[:, 0, 0, 0] * 10, tf.int32), 10)
images = np.random.RandomState(0).randint(0, 256, [400, 2, 2, 1]).astype(np.uint8)
source = data.ArraySource.of("large", "test", images, np.arange(400) % 10, "0123456789")
config = evaluation.EvalConfig(evaluations=("clean",), per_image=True)
log = lambda line: print(line, flush=True)
records = evaluation.evaluate(predict, source, None, config, path=sys.argv[1], log=log).records
print(json.dumps(records))
"""


@pytest.mark.slow
def test_processes_share_the_shards_of_one_set_including_those_of_a_killed_process(tmp_path, monkeypatch):
    lines = with_one_killed(WORKER, tmp_path, monkeypatch)
    computed = [sum("shard " in line for line in of_worker) for of_worker in lines]
    assert min(computed) > 0 and sum(computed) in (99, 100)  # one may have been killed between writing and logging
    schema = pyarrow.parquet.read_schema(next((tmp_path / "shared" / "per_image" / "clean").glob("*.parquet")))
    assert schema.names == ["set", "position", *evaluation.scoring.ImageResults._fields, "correct"]


def test_shards_do_not_fill_the_cache_of_small_sets(tmp_path):
    evaluation_sets._cached_sets.clear()
    evaluate(in_memory("not cached"), tmp_path / "measured.jsonl", evaluations=("corruptions",))
    assert not evaluation_sets._cached_sets
