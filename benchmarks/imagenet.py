"""ImageNet-C's 15 corruptions of photographs: `tf-robust evaluate` beside the original code and ONNX Runtime, in time and accuracy.

    python benchmarks/imagenet.py --model=FILE.onnx --data=folder:DIR --input_range=-1,1 --output=DIR    # half an hour

The peer is the published generator (imagenet-c, with ImageMagick), its glass blur compiled, then a JPEG file of quality 85 in memory for
each image, and ONNX Runtime. Both sides take the same photographs of 224 pixels and the same frost photographs, and draw their own random
numbers. Each is a process on one core, in turn; ONNX Runtime adds a thread on another core to ours. Times are CPU seconds of all threads,
medians over repeats. A third process times our corrupted sets alone, with reading, on 256 levels as the peer's are. Needs
benchmarks/requirements_corruptions.txt and Debian's libmagickwand-6.q16-6. Linux only.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if __name__ == "__main__":  # before importing anything that starts threads
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.environ.update({f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMBA")})

import importlib.util
import io
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
from absl import app, flags

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
QUALITY, BATCH = 85, 20
PACKAGES = ("imagenet-c", "opencv-python-headless", "scikit-image", "scipy", "pillow", "numba", "wand", "onnxruntime")
flags.DEFINE_string("model", None, "ONNX file of an ImageNet classifier.", required=True)
flags.DEFINE_string("data", None, "photographs by class, as `--data` of tf-robust.", required=True)
flags.DEFINE_string("input_range", "0,1", "pixel scale of the model.")
flags.DEFINE_integer("images", 60, "number of photographs, stratified.", lower_bound=2)
flags.DEFINE_integer("repeats", 3, "interleaved repeats.", lower_bound=1)
flags.DEFINE_list("corruptions", [], "corruptions; empty: the 15 of ImageNet-C.")
flags.DEFINE_string("output", "", "folder for imagenet.json and imagenet.md; empty: print only.")
flags.DEFINE_string("side", "", "the work of one process: peer or sets; empty: all.")
flags.DEFINE_string("work", "", "folder of the process, with the photographs.")
FLAGS = flags.FLAGS


def frost_folder():
    """The photographs of imagecorruptions: the package imagenet-c lacks them."""
    return os.path.join(os.path.dirname(importlib.util.find_spec("imagecorruptions").origin), "frost")


def evaluation_data():
    from tf_robust.configs import DataConfig, EvalConfig
    from tf_robust.evaluation.evaluation_data import EvaluationData

    config = EvalConfig(
        evaluations=("corruptions",),
        corruptions=tuple(FLAGS.corruptions),
        corruption_protocol="cifar_c",  # 256 levels
        evaluation_split="all",
        subset=FLAGS.images,
        frost_dir=frost_folder(),
    )
    return EvaluationData(DataConfig(data=FLAGS.data), config)


def photographs():
    """Returns the images, uint8 [N, 224, 224, 3], and the labels as columns of the model, as our side evaluates them."""
    from tf_robust.evaluation.model_evaluation import match_model_and_data
    from tf_robust.evaluation.scoring import clean_batches
    from tf_robust.saved_models import loading

    classifier = loading.load_classifier(FLAGS.model, loading.ModelInterface(input_range=FLAGS.input_range))
    _, _, source = match_model_and_data(classifier, evaluation_data(), True)
    images, labels = (np.concatenate(part) for part in zip(*clean_batches(source).as_numpy_iterator()))
    return np.round(255 * images).astype(np.uint8), labels


def run_peer():
    """Corrupts and classifies all images; returns the CPU seconds of each part and bool [N] of each set."""
    import cv2
    import imagenet_c
    import onnxruntime
    from PIL import Image

    from benchmarks import original

    cv2.setNumThreads(1)
    original.repair(imagenet_c)
    imagenet_c.corruptions.resource_filename = lambda _, name: os.path.join(frost_folder(), os.path.basename(name))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(FLAGS.model, options, providers=["CPUExecutionProvider"])
    found = np.load(os.path.join(FLAGS.work, "photographs.npz"))
    images, labels = found["images"], found["labels"]
    low, high = map(float, FLAGS.input_range.split(","))
    channels_first = session.get_inputs()[0].shape[1] == 3
    seconds, correct = {"jpeg": 0.0, "model": 0.0}, {}
    np.random.seed(0)

    def timed(part, call, *arguments):
        begin = time.process_time()
        result = call(*arguments)
        seconds[part] = seconds.get(part, 0.0) + time.process_time() - begin
        return result

    def stored(image):
        file = io.BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=QUALITY, optimize=True)
        return np.asarray(Image.open(file))

    def classified(batch):
        unit = batch.astype(np.float32) / 255 * (high - low) + low
        unit = np.ascontiguousarray(unit.transpose(0, 3, 1, 2)) if channels_first else unit
        return session.run(None, {session.get_inputs()[0].name: unit})[0].argmax(axis=1)

    for name in FLAGS.corruptions:
        for severity in range(1, 6):
            corrupted = [timed(name, imagenet_c.corrupt, image, severity, name) for image in images]
            read = np.stack([timed("jpeg", stored, image) for image in corrupted])
            classes = [timed("model", classified, read[first : first + BATCH]) for first in range(0, len(read), BATCH)]
            correct[f"{name}/{severity}"] = (np.concatenate(classes) == labels).tolist()
    return {"seconds": seconds, "correct": correct, "imagemagick": magick_version()}


def magick_version():
    import wand.version

    return wand.version.MAGICK_VERSION


def run_sets():
    """Computes our corrupted sets; returns the CPU seconds of each corruption, with tracing and reading."""
    import tensorflow as tf

    from tf_robust.evaluation.sets import evaluation_sets

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    given = evaluation_data()
    seconds: dict[str, float] = {}
    for one in evaluation_sets(given.evaluation_source(), None, given.eval_config):
        if one.name.startswith("corruptions/"):
            begin = time.process_time()
            for _ in one.batches():
                pass
            name = one.name.split("/")[1]
            seconds[name] = seconds.get(name, 0.0) + time.process_time() - begin
    return {"seconds": seconds}


def run_process(arguments):
    """Runs a process of this Python; returns its CPU and wall seconds."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, time.monotonic() - begin


def own_command(workdir):
    arguments = {
        "data": FLAGS.data,
        "input_range": FLAGS.input_range,
        "evaluation_split": "all",
        "subset": FLAGS.images,
        "evaluations": "corruptions",
        "corruptions": ",".join(FLAGS.corruptions),
        "frost_dir": frost_folder(),
        "workdir": workdir,
    }
    return ["-m", "tf_robust", "evaluate", FLAGS.model, *(f"--{name}={value}" for name, value in arguments.items())]


def parity(ours, peer):
    """Rows {corruption, ours, peer, difference, low, high}: mean accuracies over severities, paired over images; the last is of all."""
    from scipy import stats

    rows = []
    for name in (*FLAGS.corruptions, "all"):
        sets = [one for one in ours if name in ("all", one.split("/")[0])]
        own, other = (np.mean([found[one] for one in sets], axis=0) for found in (ours, peer))
        difference = own - other
        half = stats.t.ppf(0.975, len(difference) - 1) * difference.std(ddof=1) / np.sqrt(len(difference))
        low, high = difference.mean() - half, difference.mean() + half
        fields = zip(("ours", "peer", "difference", "low", "high"), (own.mean(), other.mean(), difference.mean(), low, high))
        rows.append({"corruption": name, **{field: float(value) for field, value in fields}})
    return rows


def one_repeat(work, number):
    """Runs the three processes; returns {command, peer, sets: seconds} and the correct images of both sides."""
    from tf_robust.evaluation.recording import read_records
    from tf_robust.evaluation.scoring import correctness

    workdir = os.path.join(work, f"evaluation{number}")
    found, common = {}, [f"--{name}={FLAGS[name].value}" for name in ("model", "data", "input_range", "images")]
    found["command"], found["command_wall"] = run_process(own_command(workdir))
    for side in ("peer", "sets"):
        arguments = [__file__, *common, f"--corruptions={','.join(FLAGS.corruptions)}", f"--side={side}", f"--work={work}"]
        found[side], found[f"{side}_wall"] = run_process(arguments)
        with open(os.path.join(work, f"{side}.json"), encoding="utf-8") as file:
            found[f"{side}_parts"] = json.load(file)
    records = [one for one in read_records(os.path.join(workdir, "measured.jsonl")) if one["set"].startswith("corruptions/")]
    return found, {one["set"].partition("/")[2]: correctness(one) for one in records}, found["peer_parts"]["correct"]


def to_markdown(content):
    times, ratios = content["seconds"], content["ratios"]
    count = 5 * (len(content["rows"]) - 1) * content["images"]  # the last row is of all corruptions
    lines = [
        f"# ImageNet-C's corruptions of {content['images']} photographs, beside the original code",
        f"`{content['command']}`, commit {content['commit']}, {content['machine']}; CPU seconds of all threads, medians of "
        f"{content['repeats']} interleaved repeats. ONNX Runtime adds a thread on another core to our process.",
        "| part | ours | original code and ONNX Runtime | ours over the original |\n| --- | --- | --- | --- |\n"
        f"| whole command, {count:,} images | {times['command']:.0f} | {times['peer']:.0f} | {ratios['command']:.2f} |\n"
        f"| corruptions alone | {times['corruptions_ours']:.0f} | {times['corruptions_peer']:.0f} | {ratios['corruptions']:.2f} |",
        f"Of the peer, JPEG files take {times['jpeg']:.0f} s and the model {times['model']:.0f} s. ImageMagick: {content['imagemagick']}.",
        "Accuracy, mean over severities; the difference with its 95 % interval over the images; CPU seconds of the corruption alone:",
        "| corruption | ours | original | difference | seconds, ours | seconds, original |\n| --- | --- | --- | --- | --- | --- |\n"
        + "\n".join(
            f"| {row['corruption']} | {row['ours']:.3f} | {row['peer']:.3f} | {row['difference']:+.3f} "
            f"[{row['low']:+.3f}, {row['high']:+.3f}] | {row['seconds_ours']:.1f} | {row['seconds_peer']:.1f} |"
            for row in content["rows"]
        ),
        "Versions: " + ", ".join(f"{name} {version}" for name, version in content["versions"].items()) + ".",
    ]
    return "\n\n".join(lines) + "\n"


def main(_):
    if FLAGS.side:
        result = {"peer": run_peer, "sets": run_sets}[FLAGS.side]()
        with open(os.path.join(FLAGS.work, f"{FLAGS.side}.json"), "w", encoding="utf-8") as file:
            json.dump(result, file)
        return
    from benchmarks.timing import provenance
    from tf_robust import metrics
    from tf_robust.utils.files import atomic_file, write_json

    FLAGS.corruptions = FLAGS.corruptions or list(metrics.MEANS["mean15"])
    with tempfile.TemporaryDirectory() as work:
        images, labels = photographs()
        np.savez(os.path.join(work, "photographs.npz"), images=images, labels=labels)
        repeats = [one_repeat(work, number) for number in range(FLAGS.repeats)]
    found, ours, peer = repeats[0]

    def of_corruption(side, name):
        return statistics.median(one[f"{side}_parts"]["seconds"][name] for one, *_ in repeats)

    def total(side):
        return [sum(one[f"{side}_parts"]["seconds"][name] for name in FLAGS.corruptions) for one, *_ in repeats]

    rows = parity(ours, peer)
    for row in rows:
        names = FLAGS.corruptions if row["corruption"] == "all" else [row["corruption"]]
        row["seconds_ours"], row["seconds_peer"] = (sum(of_corruption(side, name) for name in names) for side in ("sets", "peer"))
    seconds = {side: statistics.median(one[side] for one, *_ in repeats) for side in ("command", "peer", "command_wall", "peer_wall")}
    seconds |= {part: of_corruption("peer", part) for part in ("jpeg", "model")}
    seconds |= {f"corruptions_{name}": statistics.median(total(side)) for name, side in (("ours", "sets"), ("peer", "peer"))}
    content = {
        **provenance(*PACKAGES),
        "imagemagick": found["peer_parts"]["imagemagick"],
        "images": FLAGS.images,
        "repeats": FLAGS.repeats,
        "seconds": seconds,
        "ratios": {
            "command": statistics.median(one["command"] / one["peer"] for one, *_ in repeats),
            "corruptions": statistics.median(own / other for own, other in zip(total("sets"), total("peer"))),
        },
        "rows": rows,
    }
    print(to_markdown(content))
    if FLAGS.output:
        os.makedirs(FLAGS.output, exist_ok=True)
        write_json(os.path.join(FLAGS.output, "imagenet.json"), content)
        with atomic_file(os.path.join(FLAGS.output, "imagenet.md")) as file:
            file.write(to_markdown(content))


if __name__ == "__main__":
    app.run(main)
