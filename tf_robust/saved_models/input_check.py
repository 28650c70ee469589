"""Checks a declared pixel scale and the order of the classes by the accuracy on labelled images, before anything is measured.

An alternative counts as better only if it classifies clearly more of the same images correctly (an exact McNemar test) and its accuracy is
well above always predicting the most frequent class. Another order of the classes fits an untrained model better, too, as images of a
class resemble each other; but its classes share columns, so it must also give nearly every class a column of its own. A model that is
about as accurate as always predicting the most frequent class is not stopped, but described.

`batch_dependence` checks that the scores of an image do not depend on the other images of its batch.
"""

import contextlib
import re
import typing
from collections.abc import Callable, Sequence

import numpy as np
import scipy.optimize
import scipy.special
import scipy.stats
import tensorflow as tf

from tf_robust import data
from tf_robust.saved_models.classifier import Classifier
from tf_robust.saved_models.formats import FORMATS, format_of

RANGES = ("0,1", "-1,1", "0,255", "imagenet", "caffe", "0,1 bgr", "-1,1 bgr", "0,255 bgr", "imagenet bgr")
SCREENED = 100  # images on which every range is tried, wrong ones of a declared range; those near the best are tried on all
SCREENING_MARGIN = 0.1  # of accuracies on them
BATCH = 50
MARGIN, P_VALUE = 0.03, 1e-4  # of a clear difference of two accuracies, one of them the best of several
FEW_P_VALUE = 0.1  # of a difference on fewer than SCREENED images, which is only noted
ABOVE_CHANCE = 0.2  # of the way from the most frequent class to 1
LEVELS = ("0,255", "caffe", "0,255 bgr")  # ranges on which a model that was trained on a smaller one is more confident
CONFIDENCE = 0.1  # of the logarithms of probabilities: by less, confidence does not choose such a range
MAX_CLASSES = 100  # of which an order may fit by chance; of more, none is looked for in combination with another pixel scale
_ORDER_OF_FOLDERS = "label_map=FILE with a line 'NAME COLUMN' for every class of an image folder, or rename the classes"
_SKIP = "check_inputs=false skips this check, as images that were attacked need"
_ORDER_OF_LABELS = "give as labels these columns, the indices of the model's scores"
CHANCE = 0.02  # of as many columns of their own if every class had its column at random
ACCURATE = 0.75  # as ABOVE_CHANCE, for so few classes that chance cannot be excluded
COMPARED = 8  # images whose scores are compared
ALONE = 2  # of them, each in a batch of its own
LAYERS, SUMMANDS = 100, 1e5  # of a large network; rounding errors add up like a random walk


def with_fitting_range(
    classify: Classifier,
    images: np.ndarray,
    labels: np.ndarray,
    log: Callable[[str], typing.Any] = lambda note: None,
    logits: np.ndarray | None = None,
) -> Classifier:
    """Returns a model, with the pixel scale that fits best if it is declared as "auto".

    Raises ValueError if another pixel scale clearly fits better than the declared one. images: float32 [N, H, W, C] in [0, 1]; labels:
    int [N], columns of the logits; log: gets a note if another scale seems to fit better on images that are too few to decide; logits:
    [N, C], those with the declared scale, if they are known.
    """
    declared = classify.interface.input_range
    models = {declared: classify, **_alternatives(classify, images.shape[3])}
    models.pop("auto", None)
    scores, tried = {}, np.arange(len(labels))
    if declared != "auto":
        scores[declared] = _scores(in_batches(classify, images) if logits is None else logits, labels)
        tried = np.flatnonzero(~scores[declared][0])  # no other scale gains on the rest
    if declared != "auto" and not _can_be_better(len(tried), len(labels)):
        return classify
    some = tried[:SCREENED]
    others = [name for name in models if name not in scores]
    screened = {name: _scores(in_batches(models[name], images[some]), labels[some])[0].mean() for name in others}
    best_of = {usual: max((screened[name] for name in screened if _is_usual(name) == usual), default=0.0) for usual in (True, False)}
    for name, accuracy in screened.items():
        is_near = accuracy >= best_of[_is_usual(name)] - SCREENING_MARGIN
        if is_near and (declared == "auto" or _can_be_better(accuracy * len(tried), len(labels))):
            scores[name] = _scores(in_batches(models[name], images), labels)
    correct = {name: right for name, (right, _) in scores.items()}
    best, first = _best(scores), _best({name: one for name, one in scores.items() if _is_usual(name)} or scores)
    if not _clearly_better(correct[best], correct[first], labels):
        best = first  # images in blue, green, red are rare: a difference that may be chance does not choose them
    if declared == "auto":
        return models[best]
    if _clearly_better(correct[best], correct[declared], labels):
        raise ValueError(
            f"Expected the pixel scale with which {classify.path} was trained. Received: input_range={declared}, with which it "
            f"classifies {correct[declared].mean():.1%} of {len(labels)} images correctly; with {best} it is {correct[best].mean():.1%}. "
            f"Try: {_flag(best)} (input_range=auto takes the best one, {_SKIP})"
        )
    if len(labels) < SCREENED and _clearly_better(correct[first], correct[declared], labels, FEW_P_VALUE):
        log(
            f"{classify.path} classifies {correct[declared].mean():.1%} of {len(labels)} images correctly with input_range={declared} and "
            f"{correct[first].mean():.1%} with {_flag(first)}: these are too few images to decide which of them is wrong. "
            "Try: more images, or the pixel scale of the model's training"
        )
    return classify


def check_class_order(logits: np.ndarray, labels: np.ndarray, class_names: Sequence[str], in_folders: bool = True) -> None:
    """Checks that the classes of a model are in the order of the data; raises ValueError if another order clearly fits better.

    The order of the numbers in the names (class_2 before class_10) and alphabetical order are tried first. Then an assignment of columns to
    classes is found on one half of the images and confirmed on the other: it is clearly better there, and so many classes are predicted
    most often as their own column as occur with a probability of at most `CHANCE` if every class had a column at random. With up to 5
    classes that probability is larger: all must have their own, and the accuracy must be high.

    logits: [N, C]; labels: int [N]; in_folders: whether the classes are image folders, which a label map orders, for the message.
    """
    count = len(class_names)
    if logits.shape[1] != count or count < 2 or len(labels) < 2:
        return
    columns, predictions, others = _assigned_columns(logits, labels)
    candidates = []
    usual = {"the order of the numbers in their names": sorted(class_names, key=_natural_key), "alphabetical order": sorted(class_names)}
    for order, names in usual.items():
        if names != [*class_names]:
            position = {name: column for column, name in enumerate(names)}
            ordered = np.array([position[name] for name in class_names])
            candidates += [(f"in {order}: {_some(names, 5)}", ordered, logits.argmax(axis=1), labels, count <= MAX_CLASSES)]
    candidates += [(f"with the columns {_moved(class_names, columns)}", columns, predictions, others, True)]
    for text, columns, predictions, true, by_columns in candidates:
        correct, declared = predictions == columns[true], predictions == true
        if _clearly_better(correct, declared, true) and (not by_columns or _is_a_permutation(predictions, true, columns)):
            raise ValueError(
                f"Expected the classes of the model in the order of the data: {_some(class_names, 5)}. Received: scores with which "
                f"{declared.mean():.1%} of {len(true)} images are classified correctly, and {correct.mean():.1%} {text}. Try: "
                f"{_ORDER_OF_FOLDERS if in_folders else _ORDER_OF_LABELS} ({_SKIP})"
            )


def _natural_key(name):
    """Sorts class_2 before class_10."""
    return [(int(part), part) if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def note_on_chance(classify: Classifier, logits: np.ndarray, images: np.ndarray, labels: np.ndarray, class_names: Sequence[str]) -> str:
    """Returns a note on a model that is hardly more accurate than always predicting the most frequent class; empty for all others.

    If some pixel scale together with another order of the classes is clearly better, the note names them: with few classes that is no
    proof, since an untrained model can fit them by chance. logits: [N, C], of the images [N, H, W, C] in [0, 1]; labels: int [N].
    """
    correct = logits.argmax(axis=1) == labels
    if len(labels) < 2 or len(np.unique(labels)) < 2 or _above_chance(correct, labels) >= ABOVE_CHANCE:
        return ""
    note = (
        f"{classify.path} classifies {correct.mean():.1%} of {len(labels)} images correctly; always predicting the most frequent class "
        f"would be right for {np.bincount(labels).max() / len(labels):.1%}"
    )
    best, hint = 0.0, "the pixel scale or the order of the classes may be others"
    if logits.shape[1] == len(class_names) <= MAX_CLASSES:
        declared = classify.interface.input_range
        for name, model in {declared: classify, **_alternatives(classify, images.shape[3])}.items():
            if name != declared and not _is_usual(name):
                continue
            columns, predictions, half = _assigned_columns(in_batches(model, images), labels)
            accuracy = (predictions == columns[half]).mean()
            if accuracy > best and _clearly_better(predictions == columns[half], predictions == half, half):
                scale = "" if name == declared else f" {_flag(name)} and"
                best, hint = accuracy, f"with{scale} the columns {_moved(class_names, columns)} it would be {accuracy:.1%}"
    return f"{note}. See input_range and label_map: {hint}."


def _assigned_columns(logits, labels):
    """Finds the column of each class on every second image; returns (int [C], predictions and labels of the other images)."""
    order = np.argsort(labels, kind="stable")
    predictions, labels = logits.argmax(axis=1)[order], labels[order]
    confusion = 0.5 * np.eye(logits.shape[1])  # of equal assignments, the identity
    np.add.at(confusion, (labels[::2], predictions[::2]), 1)
    return scipy.optimize.linear_sum_assignment(confusion, maximize=True)[1], predictions[1::2], labels[1::2]


def _moved(class_names, columns):
    return _some([f"{name} {column}" for i, (name, column) in enumerate(zip(class_names, columns, strict=True)) if i != column])


def in_batches(function: Callable[[np.ndarray], tf.Tensor], images: np.ndarray) -> np.ndarray:
    """Returns what a function of images [n, H, W, C] returns, for all images in batches."""
    return np.concatenate([np.asarray(function(images[start : start + BATCH])) for start in range(0, len(images), BATCH)])


def _alternatives(classify, channels):
    """{range: model} of the ranges that a model can have."""
    models = {}
    for name in RANGES if channels == 3 else RANGES[:3]:
        with contextlib.suppress(ValueError):  # such as any but 0,255 for uint8
            models[name] = classify.with_interface(input_range=name)
    return models


def _is_usual(name):
    """Whether a pixel scale has the channels in the order red, green, blue."""
    return name != "caffe" and not name.endswith("bgr")


def _best(scores):
    """The most accurate of several ranges; of about equal ones that of the highest likelihood. scores: {range: as from `_scores`}.

    A model that hardly depends on the scale, such as a network of ReLUs, is more confident on larger values.
    """
    most = max(right.mean() for right, _ in scores.values())
    likelihoods = {name: likelihood.mean() for name, (right, likelihood) in scores.items() if right.mean() >= most - MARGIN}
    best = max(likelihoods, key=likelihoods.__getitem__)
    smaller = [name for name in likelihoods if name not in LEVELS and likelihoods[name] >= likelihoods[best] - CONFIDENCE]
    return max(smaller, key=likelihoods.__getitem__) if best in LEVELS and smaller else best


def _scores(scores, labels):
    """(bool [N]: classified correctly, float [N]: logarithm of the probability of the label, which decides between equal accuracies)."""
    data.check_labels(labels, scores.shape[1], "a sample of the images, by the columns of the logits")
    logits = np.nan_to_num(scores.astype(np.float64), nan=-1e30, neginf=-1e30, posinf=1e30)
    rows = np.arange(len(labels))
    others = logits.copy()
    others[rows, labels] = -np.inf
    return logits[rows, labels] > others.max(axis=1), scipy.special.log_softmax(logits, axis=1)[rows, labels]


def _can_be_better(gained, count):
    """Whether a number of images that only one of two models classifies correctly, of `count`, can make it clearly better."""
    return gained >= MARGIN * count and 0.5**gained < (P_VALUE if count >= SCREENED else FEW_P_VALUE)


def _clearly_better(correct, other, labels, p_value=P_VALUE):
    """Whether more images are classified correctly than otherwise, beyond chance. correct, other: bool [N]."""
    gained, lost = int((correct & ~other).sum()), int((other & ~correct).sum())
    if gained - lost < MARGIN * len(labels) or not gained:
        return False
    above_chance = _above_chance(correct, labels) >= ABOVE_CHANCE
    return bool(above_chance and scipy.stats.binomtest(gained, gained + lost, alternative="greater").pvalue < p_value)


def _above_chance(correct, labels):
    """The accuracy on a scale from 0, for always predicting the most frequent class, to 1."""
    most_frequent = np.bincount(labels).max() / len(labels)
    return (correct.mean() - most_frequent) / (1 - most_frequent) if most_frequent < 1 else 0.0


def _is_a_permutation(predictions, labels, columns):
    """Whether nearly every class is predicted most often as its own column. columns: int [C]."""
    confusion = np.zeros([len(columns)] * 2)
    np.add.at(confusion, (labels, predictions), 1)
    present = np.flatnonzero(confusion.sum(axis=1))
    own = confusion[present, columns[present]]
    confusion[present, columns[present]] = -1
    confirmed = int((own > confusion[present].max(axis=1)).sum())
    if probability_of_distinct(confirmed, len(present), len(columns)) <= CHANCE:
        return True
    few = probability_of_distinct(len(present), len(present), len(columns)) > CHANCE
    return few and confirmed == len(present) and _above_chance(predictions == columns[labels], labels) >= ACCURATE


def probability_of_distinct(least: int, classes: int, columns: int) -> float:
    """Returns the probability that `classes` draws of `columns` columns with replacement give `least` different ones or more."""
    counts = np.arange(classes + 1)
    probability = np.zeros(classes + 1)  # of each number of different columns
    probability[0] = 1
    for _ in range(classes):
        fresh = probability * (1 - counts / columns)
        probability = probability - fresh
        probability[1:] += fresh[:-1]
    return float(probability[least:].sum())


def _some(names, most=20):
    return ", ".join([*names[:most], *(["..."] if len(names) > most else [])])


def _flag(input_range):
    return f"input_range='{input_range}'" if " " in input_range else f"input_range={input_range}"


def tolerance(float_type: tf.DType) -> float:
    """Returns the largest difference of two scores, relative to the largest score, that the rounding of a type of floats explains.

    Every layer rounds its outputs once to a half precision, and sums in float32 in an order that depends on the size of the batch.
    """
    rounding = {tf.float32: np.sqrt(SUMMANDS) * np.finfo(np.float32).eps, tf.float16: 2.0**-11, tf.bfloat16: 2.0**-8}
    return float(2 * np.sqrt(LAYERS) * rounding[float_type])


def batch_dependence(classify: Classifier, images: np.ndarray) -> dict[str, typing.Any]:
    """Returns how the scores of a model depend on the other images of a batch, for JSON; {} if they do not, up to rounding.

    The scores of some images in a batch are compared with those of the same batch again, of each image alone, and of another batch.
    images: float32 [N, H, W, C] in [0, 1], preferably of all classes. Returns {"largest_difference": of two scores of one image,
    "largest_score", "tolerance": relative to the largest score, "cause": the likely one}.
    """
    batch, others = images[:COMPARED], images[COMPARED : 2 * COMPARED]
    kept = max(len(batch) // 2, 1)

    def scores(values):
        return np.asarray(classify.scores(values), np.float64)

    expected = scores(batch)
    again = np.abs(scores(batch) - expected).max()
    alone = max(np.abs(scores(batch[i : i + 1]) - expected[i]).max() for i in range(min(ALONE, len(batch))))
    mixed = np.abs(scores(np.concatenate([batch[:kept], others[: len(batch) - kept]]))[:kept] - expected[:kept]).max()
    difference, largest = max(again, alone, mixed), np.abs(expected).max()
    if not difference > tolerance(tf.float32) * largest:  # also if it is NaN
        return {}
    allowed = tolerance(classify.float_type(images.shape[1:]))
    if difference <= allowed * largest:
        return {}
    cause = "dropout or noise in training mode" if again > allowed * largest else "batch normalization in training mode"
    if format_of(classify.path) is FORMATS["onnx"] and again <= allowed * largest:
        cause += " or dynamic quantization, whose range is that of the batch"
    return {"largest_difference": float(difference), "largest_score": float(largest), "tolerance": allowed, "cause": cause}


def note_on_batches(classify: Classifier) -> str:
    """Returns a note on a model with `Classifier.batch_dependence`; empty for others."""
    if not (found := classify.batch_dependence):
        return ""
    return (
        f"the outputs of {classify.path} for an image depend on the other images of its batch or differ between calls: by up to "
        f"{found['largest_difference']:.2g}, with outputs up to {found['largest_score']:.2g}. Values depend on the order of the images. "
        f"Likely cause: {found['cause']}. Try: export the model in inference mode (training=False in Keras and TensorFlow, model.eval() in "
        "PyTorch)"
    )
