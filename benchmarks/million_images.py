"""Evaluates many small synthetic images in shards: the time over the number of processes, the memory over the images, and the metrics.

    python benchmarks/million_images.py FOLDER --output=results            # 1,000,000 images of 32 pixels; an hour, 9 GB

Images are written once to FOLDER, as PNG files in class folders and as a TFDS set of records. A small network is evaluated on them with
`tf-robust evaluate --per_image` in one and in two processes, each on a core of its own, by two tasks of Ray (extra `ray`), and without
shards. Memory is the sum over the processes of memory that belongs to them alone, once a second.
"""

import hashlib
import io
import itertools
import json
import os
import pathlib
import subprocess
import sys
import threading
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import PIL.Image
import psutil
import tensorflow as tf
import tensorflow_datasets as tfds
from absl import app, flags

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.timing import provenance
from tf_robust.utils.files import atomic_file, read_json, write_json

SIDE, CLASSES, CHUNK = 32, 10, 1000
FILES = 64  # of the TFDS set
THREADS = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
flags.DEFINE_integer("images", 1_000_000, "number of images.", lower_bound=1)
flags.DEFINE_multi_enum("kinds", ["records", "folder"], ["records", "folder"], "how the images are stored.")
flags.DEFINE_string("evaluations", "clean,noise", "of the network.")
flags.DEFINE_string("output", "", "folder for million_images.json and million_images.md; empty: print only.")
FLAGS = flags.FLAGS


def chunk(number, count):
    """Returns images `number` * CHUNK and following, uint8 [N, 32, 32, 3], of the classes 0 to 9 in turn: smooth patterns, with noise."""
    random = np.random.default_rng(number)
    hues = np.cos(2 * np.pi * (np.arange(count)[:, None] % CLASSES / CLASSES + np.arange(3) / 3))
    coarse = random.random((count, 4, 4, 3)) + 0.6 * hues[:, None, None]
    smooth = coarse.repeat(8, axis=1).repeat(8, axis=2) * 90 + 90
    return np.clip(smooth + random.integers(-8, 8, smooth.shape), 0, 255).astype(np.uint8)


def encoded(total):
    """Yields (number, PNG file) of the first images."""
    for first in range(0, total, CHUNK):
        for number, pixels in enumerate(chunk(first // CHUNK, min(CHUNK, total - first)), first):
            file = io.BytesIO()
            PIL.Image.fromarray(pixels).save(file, "png", compress_level=1)
            yield number, file.getvalue()


def write(folder):
    """Writes the images as files in class folders and as a set of TFDS."""
    for label in range(CLASSES):
        (folder / "folder" / f"class_{label}").mkdir(parents=True, exist_ok=True)
    features = tfds.features.FeaturesDict(
        {"image": tfds.features.Image(shape=(SIDE, SIDE, 3)), "label": tfds.features.ClassLabel(names=[str(c) for c in range(CLASSES)])}
    )
    target = folder / "records" / "many_images" / "1.0.0"
    target.mkdir(parents=True, exist_ok=True)
    template = tfds.core.ShardedFileTemplate(data_dir=target, dataset_name="many_images", filetype_suffix="tfrecord")
    splits = []
    for split, total, files in (("train", min(FLAGS.images, 5 * CHUNK), 1), ("test", FLAGS.images, FILES)):
        lengths, num_bytes, images = np.diff(np.arange(files + 1) * total // files).tolist(), 0, encoded(total)
        for part, length in enumerate(lengths):
            with tf.io.TFRecordWriter(str(target / f"many_images-{split}.tfrecord-{part:05d}-of-{files:05d}")) as file:
                for number, png in itertools.islice(images, length):
                    if split == "test":
                        (folder / "folder" / f"class_{number % CLASSES}" / f"{number:07d}.png").write_bytes(png)
                    record = serialized(png, number % CLASSES)
                    file.write(record)
                    num_bytes += len(record)
        own = template.replace(split=split)
        splits.append(tfds.core.SplitInfo(name=split, shard_lengths=lengths, num_bytes=num_bytes, filename_template=own))
    tfds.folder_dataset.write_metadata(data_dir=target, features=features, split_infos=splits, check_data=False)


def serialized(png, label):
    """Returns an example of a set of TFDS."""
    fields = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[png])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    return tf.train.Example(features=tf.train.Features(feature=fields)).SerializeToString()


def train(path):
    """Trains a small network on the first images."""
    images, labels = chunk(0, CHUNK), np.arange(CHUNK) % CLASSES
    keras.utils.set_random_seed(0)
    layers = [
        keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
        keras.layers.Conv2D(32, 3, strides=2, activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(CLASSES),
    ]
    model = keras.Sequential([keras.Input((SIDE, SIDE, 3)), *layers])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(images / np.float32(255), labels, batch_size=50, epochs=8, verbose=0)
    model.save(path)


def evaluate(kind, folder, launcher, processes, divided, cores):
    """Evaluates the network in a new workdir, and returns {"seconds", "memory": [[images, MiB]], "values", "records"}.

    Args:
        kind: of `--kinds`.
        folder: of the images, the network and the workdirs.
        launcher: `local`, which starts the command once for each process, or `ray`, whose tasks are the processes.
        processes: number of processes, each with one thread.
        divided: whether in shards.
        cores: numbers of those that processes use.
    """
    workdir = folder / "workdirs" / f"{kind}_{launcher}_{processes}_{'shards' if divided else 'at_once'}"
    if (workdir / "measured.json").exists():
        return read_json(workdir / "measured.json")
    data = [f"--data=folder:{folder / 'folder'}"] if kind == "folder" else ["--data=many_images", f"--data_dir={folder / 'records'}"]
    command = [sys.executable, str(ROOT / "run_experiment.py"), "evaluate", str(folder / "model.keras"), *data]
    command += [f"--evaluations={FLAGS.evaluations}", f"--workdir={workdir}", *(["--per_image"] if divided else [])]
    memory, done, began = [], threading.Event(), time.monotonic()
    workdir.mkdir(parents=True, exist_ok=True)
    used, environment = [[core] for core in itertools.islice(itertools.cycle(cores), processes)], dict(os.environ)
    if launcher == "ray":
        used, environment = [cores[:processes]], {**environment, **dict.fromkeys(THREADS, "1")}
        environment.pop("RAY_ADDRESS", None)
        command.append("--launcher=ray")
    running = []
    for number, own in enumerate(used):
        with open(workdir / f"log_{number}", "w") as log:
            pinned = ["taskset", "-c", ",".join(map(str, own)), *command]
            running.append(subprocess.Popen(pinned, stdout=log, stderr=subprocess.STDOUT, env=environment))

    def watch():
        shard = 0
        while not done.wait(1):
            shard = sum(1 for _ in workdir.glob("per_image/*/*.parquet"))
            memory.append([round(time.monotonic() - began), shard, round(sum(map(own_bytes, running)) / 2**20)])

    watcher = threading.Thread(target=watch)
    watcher.start()
    codes = [one.wait() for one in running]
    seconds = time.monotonic() - began
    done.set()
    watcher.join()
    if any(codes):
        raise SystemExit(f"Exit codes {codes}: see {workdir}/log_0")
    evaluation = read_json(workdir / "evaluation.json")
    records = {}
    for text in (workdir / "measured.jsonl").read_text().splitlines():
        if text:
            record = {key: value for key, value in json.loads(text).items() if key != "crc32"}
            records[record["set"]] = record
    found = {
        "kind": kind,
        "launcher": launcher,
        "processes": processes,
        "shards": divided,
        "seconds": round(seconds, 1),
        "memory": memory,
        "values": {row["metric"]: row["value"] for row in evaluation["rows"]},
        "records": hash_of(records),
    }
    write_json(workdir / "measured.json", found)
    return found


def own_bytes(process):
    """Returns the memory in bytes that belongs alone to a process and to the Ray tasks below it; 0 if it has ended."""
    try:
        command = psutil.Process(process.pid)
        tasks = [one for one in command.children(recursive=True) if one.name().startswith("ray::")]
        return sum(one.memory_full_info().uss for one in (command, *tasks))
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0


def hash_of(records):
    return hashlib.sha256(json.dumps(records, sort_keys=True).encode()).hexdigest()[:16]


def memory_at(found, fraction):
    """Returns the memory in MiB at a fraction of the shards, or of the time without shards: the median of the 15 samples around it."""
    samples, column = found["memory"], 1 if found["shards"] else 0
    total = samples[-1][column] if found["shards"] else found["seconds"]
    index = next((i for i, sample in enumerate(samples) if sample[column] >= fraction * total), len(samples) - 1)
    return int(np.median([sample[2] for sample in samples[max(0, index - 7) : index + 8]]))


def main(arguments):
    if len(arguments) != 2:
        raise SystemExit("Expected a folder. Try: python benchmarks/million_images.py FOLDER")
    folder = pathlib.Path(arguments[1])
    if not (folder / "complete").exists():
        began = time.monotonic()
        write(folder)
        (folder / "complete").touch()
        print(f"written in {time.monotonic() - began:.0f} s", flush=True)
    if not (folder / "model.keras").exists():
        train(folder / "model.keras")
    cores = sorted(os.sched_getaffinity(0))
    rows = []
    for kind in FLAGS.kinds:
        for launcher, processes, divided in (("local", 1, True), ("local", 2, True), ("ray", 2, True), ("local", 1, False)):
            found = evaluate(kind, folder, launcher, processes, divided, cores)
            rows.append({name: value for name, value in found.items() if name != "memory"})
            rows[-1]["memory"] = {f"{fraction:.0%}": memory_at(found, fraction) for fraction in (0.1, 0.5, 0.9)}
            rows[-1]["first_shard"] = next((sample[0] for sample in found["memory"] if sample[1]), None)
            rows[-1]["peak"] = max(sample[2] for sample in found["memory"])
            print(json.dumps(rows[-1]), flush=True)
    if FLAGS.output:
        source = provenance("pyarrow")
        source["command"] = source["command"].replace(arguments[1], "FOLDER")
        write_json(f"{FLAGS.output}/million_images.json", {**source, "images": FLAGS.images, "rows": rows})
        with atomic_file(f"{FLAGS.output}/million_images.md") as file:
            file.write(page(rows, source))


def page(rows, source):
    sets = len([name for name in rows[0]["values"] if "/" not in name])
    lines = [
        f"# Evaluation of {FLAGS.images:,} images in shards",
        "",
        f"Synthetic images of {SIDE} pixels, as files in class folders and as a TFDS set of records; a small convolutional network;",
        f"`--evaluations={FLAGS.evaluations}`, {sets} set{'s' * (sets > 1)}. Each process has one thread. Those of `local` are pinned",
        "to a core each; those of Ray, two tasks of one command, are not. Memory: what belongs to the processes alone (with Ray also to",
        "the command), summed, when 10, 50 and 90 % of the shards are there (without shards: of the time has passed), and the peak.",
        "",
        "```sh",
        f"{source['command']}",
        "```",
        f"Commit {source['commit']}; {source['machine']}.",
        "",
        "| images | launcher | processes | shards | first shard after | time | images/s | memory at 10 / 50 / 90 % | peak | records |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        memory = " / ".join(map(str, row["memory"].values()))
        rate = FLAGS.images * sets / row["seconds"]
        first = f"{row['first_shard']} s" if row["first_shard"] else ""
        lines.append(
            f"| {row['kind']} | {row['launcher']} | {row['processes']} | {'yes' if row['shards'] else 'no'} "
            f"| {first} | {row['seconds']:.0f} s | {rate:,.0f} "
            f"| {memory} MiB | {row['peak']} MiB | {row['records']} |"
        )
    lines += [
        "",
        "Equal digests of the records mean that all metrics and the results of each image in them are the same. Before its first shard a",
        "process lists the files of a folder and reads their sizes.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    app.run(main)
