"""Images of several sizes, files and folders of them."""

import numpy as np
from PIL import Image

SIZES = [(40, 40), (31, 57), (64, 33), (24, 90)]  # width, height
SIDE = 16  # of read images


def sample_image(number, channels=3):
    """Returns a smooth RGB image whose size and color depend on the number."""
    width, height = SIZES[number % len(SIZES)]
    random = np.random.RandomState(number)
    coarse = Image.fromarray(random.randint(256, size=(6, 6, channels), dtype=np.uint8))
    return coarse.resize((width, height), Image.Resampling.BICUBIC)


def save(pixels, path):
    """Writes an image file, and its folder if that is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def write(root, counts, first=0):
    """Writes PNG files, {class name: number of images}, to one folder per class."""
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for _ in range(count):
            sample_image(first).save(root / name / f"{first:03}.png")
            first += 1


def examples(dataset):
    """Returns [(pixels, label)] of all batches."""
    return [(image.tobytes(), label) for image, label, *_ in dataset.unbatch().as_numpy_iterator()]
