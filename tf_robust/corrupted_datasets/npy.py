"""The layout of CIFAR-10-C: NAME.npy, uint8 [5 * N, H, W, C], severity 1 first, and labels.npy, int64 [5 * N].

As in the original, labels are repeated for each severity; readers of the original convert them to a 64-bit label tensor.
"""

import os
import shutil
from collections.abc import Sequence

import numpy as np

from tf_robust.corrupted_datasets.layout import Layout
from tf_robust.corrupted_datasets.npy_files import array_header
from tf_robust.corrupted_datasets.plan import Unit
from tf_robust.metrics import SEVERITIES
from tf_robust.utils.files import atomic_file

_LABELS = "labels.npy"


class ArrayLayout(Layout):
    """One .npy file for each corruption, and one for the labels."""

    def group(self, name: str, severity: int) -> str:
        return f"{name}.npy"

    def path(self, unit: Unit) -> str:
        return self.unfinished(f"{unit.name}.npy", f"{unit.severity}-{unit.chunk:05d}.npy")

    def is_finished(self, group: str) -> bool:
        return all(os.path.exists(os.path.join(self.folder, name)) for name in (group, _LABELS))

    def write(self, unit: Unit, levels: np.ndarray, labels: np.ndarray) -> None:
        if not any(map(os.path.exists, (os.path.join(self.folder, _LABELS), self._labels_path(unit.chunk)))):
            _save(self._labels_path(unit.chunk), labels)
        _save(self.path(unit), levels)

    def _finish(self, group, paths):
        if not os.path.exists(os.path.join(self.folder, _LABELS)):
            parts = [np.load(self._labels_path(chunk)) for chunk in range(self.plan.chunks)]
            _save(os.path.join(self.folder, _LABELS), np.tile(np.concatenate(parts), len(SEVERITIES)))
        _join(os.path.join(self.folder, group), paths)
        shutil.rmtree(self.unfinished("labels"), ignore_errors=True)

    def room(self, units: Sequence[Unit]) -> int:
        """Counts the chunks, and one final file in addition to its chunks."""
        final = len(SEVERITIES) * self.plan.size * int(np.prod(self.plan.image_shape))
        return self.plan.values(units) + (0 if all(map(self.is_finished, self.groups())) else final)

    def _labels_path(self, chunk):
        return self.unfinished("labels", f"{chunk:05d}.npy")


def _save(path, array):
    with atomic_file(path, "wb") as file:
        np.save(file, array)


def _join(path, parts):
    """Writes one .npy file with the rows of many, without holding them in memory."""
    headers = [array_header(part) for part in parts]
    rows = sum(header.shape[0] for header in headers)
    with atomic_file(path, "wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": np.lib.format.dtype_to_descr(headers[0].dtype), "fortran_order": False, "shape": (rows, *headers[0].shape[1:])}
        )
        for part, header in zip(parts, headers):
            with open(part, "rb") as chunk:
                chunk.seek(header.offset)
                shutil.copyfileobj(chunk, file, 2**20)
