"""Randomized smoothing (Cohen et al., 2019): certified radii of a smoothed classifier, and its accuracy under PGD.

The smoothed classifier returns the class that the model returns most often for images with Gaussian noise, which are not clipped. Any
model can be certified; only the attack needs gradients. `score_certified` and `score_smoothed` compute the record of a model on an
evaluation set. Their arguments are the `positions` of the images in the data set, int [N], the standard deviation `sigma` of the noise,
numbers of noisy copies, and the copies per call of the model, `batch`.
"""

import numpy as np
import tensorflow as tf

from tf_robust import attacks, metrics
from tf_robust.attacks.attack import Predict
from tf_robust.configs.evaluation import ALPHA, MAX_SAMPLES
from tf_robust.evaluation.scoring import SEED, EvaluationSet, accuracy_record, correctness, read_batches
from tf_robust.models.outputs import checked_logits
from tf_robust.ops.draws import Draws
from tf_robust.utils.files import decoded, encoded

PGD_STEPS, PGD_SAMPLES = 20, 16  # steps of the attack, and noisy copies over which its gradient is averaged
MAX_VOTES = 1000  # noisy copies by which an attacked image is classified
ABSTAINS = (
    "the smoothed model abstains on all images: no class has a probability above 1/2 under the noise. Try: a model trained with the same "
    "noise (method=gaussian), a smaller smoothing_sigma, or more smoothing_samples"
)
_ROWS = MAX_SAMPLES + 1  # of the stream, for each image and purpose
_ATTACKED_IMAGES = 16  # per batch of the attack, each with PGD_SAMPLES copies
_SMALLEST_LOG = -1e4  # of a probability; finite, so that gradients are


def class_counts(predict: Predict, image: np.ndarray, index: int, sigma: float, samples: int, purpose: str, batch: int) -> np.ndarray:
    """Returns how often each class is predicted for noisy copies of an image [H, W, C], int64 [C].

    Sample j of an image depends on (seed, purpose, index of the image in its data set, j) alone.
    """
    counts: np.ndarray | int = 0
    for start in range(0, samples, batch):
        size = min(batch, samples - start)
        logits = checked_logits(predict(_noisy(image, index * _ROWS + start, size, sigma, purpose)), np.zeros(size, int), "noisy images")
        counts = counts + np.bincount(logits.argmax(axis=1), minlength=logits.shape[1])
    return np.asarray(counts)


def _noisy(image, first, size, sigma, purpose):
    """Returns `size` copies of an image with the noise of rows `first`, `first + 1`, ... of a stream."""
    draws = Draws(SEED, tf.range(size, dtype=tf.int64) + first, "smoothing", purpose)
    return tf.constant(image) + sigma * draws.exact_normal(image.shape)


def score_certified(
    predict: Predict, evaluation_set: EvaluationSet, positions: np.ndarray, sigma: float, selection: int, samples: int, batch: int
) -> dict:
    """Returns the record of the certified l2 radius of each image, and whether the selected class is right.

    By `selection` copies the class is selected, by `samples` further ones its probability is bounded. The count of each image is stored in
    the `parts` of the evaluation set: an interrupted evaluation resumes there.
    """
    truth, counted, parts = [], [], evaluation_set.parts  # counted: the selected class, and how often it is predicted
    for images, labels, place in read_batches(evaluation_set):
        truth.append(labels)
        for image, index in zip(images, map(int, positions[place])):
            if str(index) not in parts:
                selected = class_counts(predict, image, index, sigma, selection, "selection", batch).argmax()
                hits = class_counts(predict, image, index, sigma, samples, "estimation", batch)[selected]
                parts[str(index)] = f"{selected} {hits}"
            counted.append([int(number) for number in parts[str(index)].split()])
    classes, hits = np.transpose(counted)
    right = classes == np.concatenate(truth)
    radii = metrics.certified_radii(hits, samples, sigma, ALPHA).astype(np.float32)
    return {
        "kind": "certified",
        "count": len(radii),
        "correct": int(np.sum(right & ~np.isnan(radii))),
        "abstained": int(np.isnan(radii).sum()),
        "radii": encoded(radii),
        "which": encoded(np.packbits(right)),
    }


def certified_correct(record: dict, radius: float) -> np.ndarray:
    """Returns bool [N]: which images of a record of `score_certified` are classified correctly and certified at a radius."""
    return correctness(record) & (decoded(record["radii"], np.float32) >= np.float32(radius))  # False for NaN: abstained


def radii_of(record: dict) -> np.ndarray:
    """Returns float64 [N]: the certified radius of each image of a record, 0 where the class is wrong or the classifier abstains."""
    return np.where(certified_correct(record, 0.0), decoded(record["radii"], np.float32), 0.0).astype(np.float64)


def score_smoothed(
    predict: Predict, evaluation_set: EvaluationSet, positions: np.ndarray, sigma: float, samples: int, batch: int, radius: float
) -> dict:
    """Returns the record of the images that the smoothed classifier classifies correctly after an attack on it.

    The attack is PGD in l2 (of radius 0: none) on the mean of the probabilities over noisy copies (SmoothAdv, Salman et al., 2019), the
    same copies in each step. The attacked image is classified by a vote of `samples` further copies, at most `MAX_VOTES`, without
    abstention. The votes of each few images are stored in the `parts` of the evaluation set, as in `score_certified`.
    """
    right: list[bool] = []
    model: Predict | None = None
    attack = attacks.ProjectedGradientDescent(
        norm="l2",
        radius=radius,
        steps=PGD_STEPS,
        early_stop=False,  # of few copies the mean probability is too uncertain to stop at
        skip_misclassified=False,
        seed=SEED,
        batch_size=_ATTACKED_IMAGES,
    )
    for images, labels, place in read_batches(evaluation_set, _ATTACKED_IMAGES):
        indices = positions[place]
        part = str(indices[0])
        if part not in evaluation_set.parts:
            if radius:
                model = model or smoothed(predict, images.shape[1:], sigma)
                images = attack(model, images, labels, indices=indices).numpy()
            counts = [
                class_counts(predict, image, int(index), sigma, min(samples, MAX_VOTES), "votes", batch)
                for image, index in zip(images, indices)
            ]
            evaluation_set.parts[part] = " ".join(str(votes.argmax()) for votes in counts)
        right += [int(selected) == label for selected, label in zip(evaluation_set.parts[part].split(), labels)]
    return accuracy_record(right)


def smoothed(predict: Predict, image_shape: tuple[int, ...], sigma: float, samples: int = PGD_SAMPLES) -> Predict:
    """Returns images -> logarithms of the mean probabilities [N, C] over noisy copies, differentiable if the model is.

    All images get the same noise, so that the result for an image does not depend on its batch.
    """
    noise = sigma * Draws(SEED, samples, "smoothing", "gradient").exact_normal(image_shape)

    def predict_smoothed(images):
        copies = images[:, None] + noise[None]  # [N, samples, H, W, C]
        logits = tf.convert_to_tensor(predict(tf.reshape(copies, [-1, *image_shape])))
        log_probabilities = tf.maximum(tf.nn.log_softmax(logits), _SMALLEST_LOG)
        by_image = tf.reshape(log_probabilities, [-1, samples, logits.shape[1]])
        return tf.reduce_logsumexp(by_image, axis=1) - np.log(samples).astype(np.float32)

    return predict_smoothed
