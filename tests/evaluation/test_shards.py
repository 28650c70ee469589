"""Sets are evaluated in shards with the same records as at once, and what the model predicts for each image is in Parquet files."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import pandas
import PIL.Image
import pyarrow.parquet
import pytest
import scipy.special
import tensorflow as tf
import tensorflow_datasets as tfds

import tf_robust as tfr
from tests.conftest import ROOT, sweep
from tests.corrupted_datasets import sets
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


@pytest.fixture(params=["arrays", "folder", "stream"])
def source(request, tmp_path, monkeypatch):
    """The same kind of images in memory, as files and as a stream of records in three files."""
    images, labels = arrays()
    if request.param == "arrays":
        return data.ArraySource.of("arrays", "test", images, labels, "abc")
    if request.param == "folder":
        for number, (image, label) in enumerate(zip(images, labels)):
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


def evaluate(source, path, *, per_image, model=predict, depends=lambda name: name, log=lambda _: None, **options):
    config = evaluation.EvalConfig(**{"evaluations": EVALUATIONS, "severities": (5,), "per_image": per_image, **options})
    training = data.ArraySource.of("arrays", "train", *arrays(), "abc")
    shift = [Shift("moved", data.ArraySource.of("moved", "test", *arrays(), "abc"), (2, 0, 1), None)]
    path.parent.mkdir(parents=True, exist_ok=True)
    return evaluation.evaluate(model, source, training, config, path=str(path), depends=depends, shifts=shift, log=log)


def test_records_from_shards_are_those_of_the_complete_sets_and_results_of_images_those_of_the_model(source, tmp_path, monkeypatch):
    chosen = EVALUATIONS
    if source.name != "arrays":  # of files and streams: noise by the position of an image
        chosen = ("clean", "noise", "corruptions")
        monkeypatch.setattr(corruptions, "CORRUPTIONS", {"gaussian_noise": corruptions.CORRUPTIONS["gaussian_noise"]})
    at_once = evaluate(source, tmp_path / "once" / "measured.jsonl", per_image=False, evaluations=chosen)
    lines = []
    divided = evaluate(source, tmp_path / "shards" / "measured.jsonl", per_image=True, log=lines.append, evaluations=chosen)
    assert divided.records == at_once.records and divided.metrics == at_once.metrics
    assert {record["count"] for record in divided.records} == {SIZE}
    assert sum("shard 3 of 3" in line for line in lines) == len([one for one in divided.sets if one.part_batches]) >= 5
    check_results_of_images(source, divided, str(tmp_path / "shards"))


def check_results_of_images(source, done, folder):
    sets = {one.name: one for one in done.sets}
    for name in {"clean", "un", "corruptions/gaussian_noise/5", "nun/floor_0.02", "shift/moved"} & sets.keys():
        one = sets[name]
        images, labels = (np.concatenate(parts) for parts in zip(*one.batches().as_numpy_iterator()))
        logits = predict(images).numpy().astype(np.float64)
        probabilities = scipy.special.softmax(logits, axis=1)
        found = pandas.read_parquet(evaluation.per_image_folder(folder, name))
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
        clean = pandas.read_parquet(evaluation.per_image_folder(folder, "clean"))
        assert clean["path"].tolist() == list(source.paths)
        assert [pathlib.Path(path).parent.name for path in clean["path"]] == ["abc"[label] for label in clean["label"]]


def test_a_subset_names_positions_of_the_complete_set(tmp_path):
    source = data.ArraySource.of("arrays", "test", *arrays(), "abc").subset(np.array([20, 3, 4, 11, 12, 13, 14, 15, 22]))
    chosen = {"evaluations": ("clean", "noise", "corruptions")}
    at_once = evaluate(source, tmp_path / "once" / "measured.jsonl", per_image=False, **chosen)
    divided = evaluate(source, tmp_path / "measured.jsonl", per_image=True, **chosen)
    assert divided.records == at_once.records
    found = pandas.read_parquet(evaluation.per_image_folder(str(tmp_path), "corruptions/gaussian_noise/5"))
    assert found["position"].tolist() == source.positions.tolist()


@pytest.mark.parametrize("kind", sweep(["npy", "tfds"], ["npy"]))
def test_corrupted_sets_on_disk_are_read_in_shards(tmp_path, monkeypatch, kind):
    sets.quick(monkeypatch)
    source = data.ArraySource.of("arrays", "test", *arrays(), "abc")
    folder = str(tmp_path / "corrupted")
    options = {"dataset_format": kind} if kind == "tfds" else {}
    write(lambda: source, folder, WriterConfig(**options), CorruptionConfig())
    settings = {"corrupted_dir": folder, "evaluations": ("clean", "corruptions"), "severities": (2, 5)}
    at_once = evaluate(source, tmp_path / "once" / "measured.jsonl", per_image=False, **settings)
    assert evaluate(source, tmp_path / "measured.jsonl", per_image=True, **settings).records == at_once.records
    assert len({record["which"] for record in at_once.records if record["set"].startswith("corruptions/")}) == 4  # of different images


def test_a_corrupted_set_in_another_order_is_divided_after_it_is_matched(tmp_path):
    images, labels = arrays()
    source = data.ArraySource.of("arrays", "test", images, labels, "abc")
    order = np.random.RandomState(0).permutation(SIZE)
    np.save(tmp_path / "contrast.npy", np.concatenate([images[order] // severity for severity in range(1, 6)]))
    np.save(tmp_path / "labels.npy", np.tile(labels[order], 5))
    settings = {"corrupted_dir": str(tmp_path), "evaluations": ("corruptions",)}
    at_once = evaluate(source, tmp_path / "once" / "measured.jsonl", per_image=False, **settings)
    divided = evaluate(source, tmp_path / "shards" / "measured.jsonl", per_image=True, **settings)
    assert divided.records == at_once.records and divided.records[0]["correct"] > 0
    found = pandas.read_parquet(evaluation.per_image_folder(str(tmp_path / "shards"), "corruptions/contrast/5"))
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
    source = data.ArraySource.of("arrays", "test", *arrays(), "abc")
    write(lambda: source, str(tmp_path), WriterConfig(dataset_format="tfds"), CorruptionConfig())
    corrupted = reader.open_corrupted(str(tmp_path), source, "contrast", 3)
    complete = np.concatenate([images for images, _ in corrupted.ordered(4)])
    for kept in (np.arange(7, 12), np.array([2, 5, 6])):
        np.testing.assert_array_equal(np.concatenate([images for images, _ in corrupted.subset(kept).ordered(4)]), complete[kept])


def test_shards_that_are_there_are_not_computed_again(tmp_path):
    source = data.ArraySource.of("arrays", "test", *arrays(), "abc")
    path, settings = tmp_path / "measured.jsonl", {"evaluations": ("clean",), "per_image": True}
    first = evaluate(source, path, **settings)
    calls = []

    def counted(images):
        calls.append(len(images))
        return predict(images)

    folder = pathlib.Path(evaluation.per_image_folder(str(tmp_path), "clean"))
    names = sorted(os.listdir(folder))
    assert names == [f"0000{number}-of-00003.parquet" for number in range(3)]
    os.truncate(folder / names[1], os.path.getsize(folder / names[1]) // 2)  # damaged
    assert evaluate(source, path, model=counted, **settings).records == first.records
    assert calls == [4, 4]
    os.remove(folder / names[2])
    path.unlink()
    assert evaluate(source, path, model=counted, **settings).records == first.records
    assert calls[2:] == [4, 3]  # records are computed from shards that are there


def test_results_of_another_model_or_number_of_images_are_replaced(tmp_path):
    source = data.ArraySource.of("arrays", "test", *arrays(), "abc")
    path, settings = tmp_path / "measured.jsonl", {"evaluations": ("clean",), "per_image": True}
    evaluate(source, path, **{**settings, "evaluations": ("clean", "noise")})
    other = evaluate(source, path, model=lambda images: -predict(images), depends=lambda name: f"{name} other", **settings)
    folder = evaluation.per_image_folder(str(tmp_path), "clean")
    assert pandas.read_parquet(folder)["correct"].sum() == other.records[0]["correct"]
    assert not os.path.exists(evaluation.per_image_folder(str(tmp_path), "un"))
    few = evaluate(source.subset(np.arange(9)), path, depends=lambda name: f"{name} few", **settings)
    assert sorted(os.listdir(folder)) == ["00000-of-00002.parquet", "00001-of-00002.parquet"]
    assert len(pandas.read_parquet(folder)) == few.records[0]["count"] == 9


def test_a_set_that_was_evaluated_before_gets_its_results_of_images_and_damaged_shards_are_computed_again(tmp_path):
    source = data.ArraySource.of("arrays", "test", *arrays(), "abc")
    path, settings = tmp_path / "measured.jsonl", {"evaluations": ("clean",), "per_image": True}
    before = evaluate(source, path, per_image=False, evaluations=("clean",))
    assert evaluate(source, path, **settings).records == before.records
    assert len(pandas.read_parquet(evaluation.per_image_folder(str(tmp_path), "clean"))) == SIZE
    damaged = pathlib.Path(evaluation.per_image_folder(str(tmp_path), "clean")) / "00001-of-00003.parquet"
    content = damaged.read_bytes()
    damaged.write_bytes(content[:4] + bytes(100) + content[104:])  # the footer is whole
    path.unlink()
    assert evaluate(source, path, **settings).records == before.records
    assert damaged.read_bytes() == content


def test_another_evaluation_in_the_same_folder_at_the_same_time_is_an_error(tmp_path):
    source = data.ArraySource.of("arrays", "test", *arrays(), "abc")
    path, settings = tmp_path / "measured.jsonl", {"evaluations": ("clean",), "per_image": True}

    def interrupted(line):
        if "shard 3 of 3" in line and "shift" not in line:  # between the last shard and the record
            evaluate(source, path, model=lambda images: -predict(images), depends=lambda name: f"{name} other", **settings)

    message = "Expected one model and one data set at a time in .*per_image. .* Try: another --workdir"
    with pytest.raises(ValueError, match=message):
        evaluate(source, path, log=interrupted, **settings)

    def late(line):
        if "clean" in line and "shard" not in line:  # after the record of the set
            evaluate(source, path, model=lambda images: -predict(images), depends=lambda name: f"{name} third", **settings)

    with pytest.raises(ValueError, match=message):
        evaluate(source, path, log=late, depends=lambda name: f"{name} fourth", **settings)


def test_an_empty_set_is_named(tmp_path):
    source = data.ArraySource.of("arrays", "test", *arrays(), "abc").subset(np.array([], int))
    with pytest.raises(ValueError, match="Expected images to evaluate 'clean' on. Received: none"):
        evaluate(source, tmp_path / "measured.jsonl", per_image=True, evaluations=("clean",))


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    source = data.ArraySource.of("arrays", "test", *arrays(), "abc")
    with pytest.raises(
        ImportError, match=r"Expected the package pyarrow for per_image. Not installed. Try: pip install 'tf_robust\[parquet\]'"
    ):
        evaluate(source, tmp_path / "measured.jsonl", per_image=True, evaluations=("clean",))


def test_shifts_alone_use_the_option():
    config = evaluation.EvalConfig(evaluations=("perturbations",), shifts=("digits",), per_image=True)
    assert "per_image" not in config.unused
    assert "per_image" in evaluation.EvalConfig(evaluations=("perturbations",), per_image=True).unused


def test_memory_does_not_hold_the_logits(tmp_path):
    results = evaluation.scoring.image_results(np.zeros([5, 1000], np.float32), np.zeros(5, int))
    assert sum(column.nbytes for column in results) == 5 * 5 * 8


@pytest.mark.parametrize(
    "options, message",
    [
        ({"adaptation": "batch_norm"}, "Received: adaptation=batch_norm. Try: two commands"),
        ({"calibrate": "temperature", "conformal": 0.9}, "at once. Received: calibrate=temperature, conformal=0.9. Try"),
    ],
)
def test_evaluations_of_all_images_at_once_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        evaluation.EvalConfig(per_image=True, evaluations=("clean",), **options)


def test_records_without_a_path_are_refused():
    with pytest.raises(ValueError, match="Expected a path of the records with per_image=True"):
        evaluation.records(predict, [], per_image=True)


def test_python_returns_the_results_of_images(monkeypatch):
    monkeypatch.undo()  # the flags name all corruptions
    images, labels = arrays()
    result = tfr.evaluate(predict, data=(images, labels), evaluations="clean,noise", per_image=True)
    found = result.images("un")
    assert found["correct"].mean() == pytest.approx(result.values["un"]) and "set" not in found
    np.testing.assert_array_equal(result.images()["label"], labels)
    with pytest.raises(ValueError, match="Unknown set with results of each image: 'um'. Did you mean 'un'?"):
        result.images("um")
    result.evaluation["model_digest"] = "another"
    with pytest.raises(ValueError, match="Unknown set with results of each image: 'clean'"):
        result.images()
    with pytest.raises(FileNotFoundError, match="Received: none. Try: an evaluation with per_image=True"):
        tfr.evaluate(predict, data=(images, labels), evaluations="clean").images()


WORKER = """
import sys, time
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
done = evaluation.evaluate(predict, source, None, config, path=sys.argv[1], log=log)
print(evaluation.recording.json.dumps(done.records))
"""


@pytest.mark.slow
def test_processes_share_the_shards_of_one_set_including_those_of_a_killed_process(tmp_path, monkeypatch):
    outputs = [tmp_path / f"output_{worker}" for worker in range(3)]

    def start(output, folder):
        path = tmp_path / folder / "measured.jsonl"
        path.parent.mkdir(exist_ok=True)
        with open(output, "w") as file:
            return subprocess.Popen([sys.executable, "-c", WORKER, str(path)], stdout=file, stderr=subprocess.DEVNULL, cwd=ROOT)

    workers = [start(output, "shared") for output in outputs]
    while not all(output.read_text() for output in outputs):
        assert all(worker.poll() is None for worker in workers)
        time.sleep(0.02)
    workers[0].kill()
    assert [worker.wait(300) for worker in workers][1:] == [0, 0]
    computed = [output.read_text().count("shard ") for output in outputs]
    assert min(computed) > 0 and sum(computed) in (99, 100)  # one may have been killed between writing and logging
    monkeypatch.setattr(sys, "argv", ["worker", str(tmp_path / "own" / "measured.jsonl")])
    (tmp_path / "own").mkdir()
    exec(WORKER, alone := {})  # in this process
    last = [json.loads(output.read_text().splitlines()[-1]) for output in outputs[1:]]
    assert last[0] == last[1] == json.loads(json.dumps(alone["done"].records))
    schema = pyarrow.parquet.read_schema(next((tmp_path / "shared" / "per_image" / "clean").glob("*.parquet")))
    assert schema.names == ["set", "position", *evaluation.scoring.ImageResults._fields, "correct"]


def test_shards_do_not_fill_the_cache_of_small_sets(tmp_path):
    source = dataclasses.replace(data.ArraySource.of("arrays", "test", *arrays(), "abc"), name="not cached")
    evaluation_sets._cached_sets.clear()
    evaluate(source, tmp_path / "measured.jsonl", per_image=True, evaluations=("corruptions",))
    assert not evaluation_sets._cached_sets
