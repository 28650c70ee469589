"""Writes a corrupted set, or one part of it: its pixels, its files, its card. Interrupted at any moment, the same command resumes."""

import contextlib
import dataclasses
import errno
import functools
import os
import shutil
import typing
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

from tf_robust import corruptions, metrics
from tf_robust.configs.data import WriterConfig, part_of
from tf_robust.corrupted_datasets.layouts import ArrayLayout, Layout, Plan, RecordLayout, Unit
from tf_robust.corrupted_datasets.reader import open_corrupted
from tf_robust.data.source import Arrays, Source
from tf_robust.ops import image_ops
from tf_robust.utils import environment
from tf_robust.utils.errors import unknown
from tf_robust.utils.files import disk_is_full, read_json, save_figure, write_json
from tf_robust.utils.locks import file_lock
from tf_robust.utils.progress import Progress, print_line, print_note

PROTOCOLS = ("cifar_c", "imagenet_c")
_BATCH_VALUES = 3 * 2**20  # values corrupted at once: 1,024 images of 32x32x3, 20 of 224x224x3
LAYOUTS: dict[str, type[Layout]] = {"npy": ArrayLayout, "tfds": RecordLayout}
_FREE = {"versions", "corruptions", "user_code"}  # parts of a card that may change while a set is written
_ADVICE = "Try: free disk space, or write fewer corruptions. Completed chunks stay valid; the same command resumes"
_INCHES = 0.9  # the side of an image of the sheet


@dataclasses.dataclass(frozen=True)
class CorruptionConfig:
    """Everything besides the clean images that the pixels of a corrupted set depend on, as in `corruptions.corrupt`.

    Raises:
        ValueError: unknown protocol, or `float`, which no file format stores.
    """

    seed: int = 0
    constants: str = "auto"
    protocol: str = "cifar_c"
    frost_dir: str | None = None

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise unknown("protocol for files", self.protocol, PROTOCOLS)


class Generator:
    """Generates chunks of corrupted images. A chunk is divided into the same batches wherever and whenever it is generated.

    `as_files`: omit what the protocol's file format does to an image, since the file itself will do it.
    """

    def __init__(self, source: Source, corruption_config: CorruptionConfig, *, as_files: bool = False) -> None:
        self.source, self.corruption_config = source, corruption_config
        self._protocol = "cifar_c" if as_files else corruption_config.protocol
        self._batch = max(1, _BATCH_VALUES // int(np.prod(source.image_shape)))
        traced = 1 if source.in_memory else 128  # in memory, one corruption of all chunks follows another; else they alternate
        self._corruption = functools.lru_cache(maxsize=traced)(self._traced)
        self.chunk = functools.lru_cache(maxsize=1)(source.read_range)

    def __call__(self, name: str, severity: int, first: int, last: int) -> Arrays:
        """Returns the images `first`..`last` - 1 corrupted: (uint8 [n, H, W, C], int64 labels [n])."""
        images, labels = self.chunk(first, last)
        positions, corrupt = self.source.positions[first:last], self._corruption(name, severity)
        corrupted = np.empty_like(images)
        for start in range(0, last - first, self._batch):
            cut = slice(start, start + self._batch)
            corrupted[cut] = corrupt(tf.constant(images[cut]), tf.constant(positions[cut], tf.int64))
        return corrupted, labels

    def _traced(self, name, severity):
        config = self.corruption_config
        options = {"constants": config.constants, "protocol": self._protocol, "frost_dir": config.frost_dir}
        specs = [tf.TensorSpec([None, *self.source.image_shape], tf.uint8), tf.TensorSpec([None], tf.int64)]

        @tf.function(autograph=False, input_signature=specs)
        def levels(images, positions):
            corrupted = corruptions.corrupt(image_ops.to_float(images), name, severity, config.seed, positions, **options)
            return tf.cast(tf.round(corrupted * 255.0), tf.uint8)

        return levels.get_concrete_function()


class Job:
    """The contents of a corrupted set: its plan, its files, and the generator of missing units. Arguments are as in `write`."""

    def __init__(
        self, open_source: Callable[[], Source], folder: str, writer_config: WriterConfig, corruption_config: CorruptionConfig
    ) -> None:
        self.source = source = open_source()
        if not len(source):
            raise ValueError(f"Expected images to corrupt in {source.name} ({source.split}). Received: none")
        chosen = writer_config.corruptions or metrics.MEANS["mean19"]
        names = tuple(name for name in corruptions.CORRUPTIONS if name in chosen)
        as_files = writer_config.dataset_format == "tfds" and corruption_config.protocol == "imagenet_c"
        shape = tuple(source.image_shape)
        self.plan = Plan(names, len(source), writer_config.chunk_size, shape, source.class_names, source.split, as_files)
        self.folder, self.layout = folder, LAYOUTS[writer_config.dataset_format](folder, self.plan)
        self._generate = Generator(source, corruption_config, as_files=as_files)
        self._card_path = os.path.join(folder, "card.json")
        self.card: dict[str, typing.Any] = {
            "layout": writer_config.dataset_format,
            "data": {
                "name": source.name.rstrip("/").split("/")[-1],
                "split": source.split,
                "num_images": len(source),
                "fingerprint": source.fingerprint(),
                "image_shape": list(shape),
            },
            "seed": corruption_config.seed,
            **corruptions.describe(shape, corruption_config.constants, corruption_config.protocol, corruption_config.frost_dir, names),
            "block": writer_config.chunk_size,
            "versions": environment.describe(),
            "corruptions": [],
        }

    def begin(self) -> None:
        """Claims the folder for this set; raises ValueError if it holds another set or something else."""
        try:
            with file_lock(self.layout.unfinished("lock")):
                if os.path.exists(self._card_path):
                    self._compare(read_json(self._card_path))
                elif others := sorted(name for name in os.listdir(self.folder) if not name.startswith(".")):
                    raise ValueError(
                        f"Expected an empty folder, or one begun by tf-robust corrupt. Received: {self.folder}, which holds "
                        f"{', '.join(others[:5])}{', ...' if len(others) > 5 else ''} and no card.json"
                    )
                else:
                    write_json(self._card_path, self.card)
        except ValueError:
            self.layout.tidy()
            raise

    def _compare(self, before):
        """Raises ValueError if the card of a set that was begun has another configuration."""
        fields = [(name, before.get(name), self.card.get(name)) for name in sorted({*before, *self.card} - _FREE)]
        code, now = before.get("user_code", {}), self.card.get("user_code", {})
        fields += [(f"code of {name}", code.get(name, now[name]), now[name]) for name in now]
        if differing := "\n".join(f"  {name}: {one} before, {other} now" for name, one, other in fields if one != other):
            raise ValueError(
                f"{self.folder} holds a set of another configuration:\n{differing}\nTry: the same flags to resume, or another folder."
            )
        if code | now:
            self.card["user_code"] = code | now
        if before.get("versions") != self.card["versions"]:
            print_note(
                f"{self.folder} was begun with {before.get('versions')} and is continued with {self.card['versions']}: "
                "pixels may differ by rounding."
            )

    def write(self, unit: Unit) -> int:
        """Generates and writes one unit. Returns the number of its images."""
        first, last = self.plan.range_of(unit.chunk)
        self.layout.write(unit, *self._generate(unit.name, unit.severity, first, last))
        return last - first

    def check_disk_space(self, units: Sequence[Unit]) -> None:
        """Raises OSError unless the disk has room for `units`, as far as their size is known in advance."""
        needed, free = self.layout.room(units), shutil.disk_usage(self.folder).free
        if needed > free:
            text = f"Expected {_bytes(needed)} of free disk space for the remaining chunks. Received: {_bytes(free)}. {_ADVICE}"
            raise OSError(errno.ENOSPC, text, self.folder)

    @contextlib.contextmanager
    def explain_full_disk(self, units: Sequence[Unit]) -> Iterator[None]:
        """Turns the error of a full disk, while writing `units`, into one that states the space that is needed."""
        try:
            yield
        except (OSError, tf.errors.OpError) as error:
            if not disk_is_full(error):
                raise
            remaining = self.layout.missing(units)
            needed = _bytes(self.layout.room(remaining) or self.plan.values(remaining))
            done = f"{len(units) - len(remaining)} of {len(units)} chunks"
            text = f"The disk is full. {done} are written and stay valid; the rest needs at most about {needed}. {_ADVICE}"
            raise OSError(errno.ENOSPC, text, self.folder) from error

    def conclude(self, written: int) -> list[str]:
        """Finishes complete groups, the card and the image sheet; returns the groups that wait for other parts of the work.

        Prints the state; `written` is the number of units that this process wrote.
        """
        groups = self.layout.groups()
        waiting = [group for group in groups if not self.layout.finish(group)]
        with file_lock(self.layout.unfinished("lock")):
            complete = [
                name
                for name in corruptions.CORRUPTIONS
                if all(self.layout.is_finished(self.layout.group(name, severity)) for severity in metrics.SEVERITIES)
            ]
            code = {"user_code": self.card["user_code"]} if "user_code" in self.card else {}
            write_json(self._card_path, {**read_json(self._card_path), **code, "corruptions": complete})
            if not waiting:
                card, (clean, _) = self.card, self._generate.chunk(0, 1)
                title = f"{card['data']['name']}: constants {card['constants']}, protocol {card['protocol']}, frost {card['frost']}"
                draw_sheet(os.path.join(self.folder, "sheet.png"), self.folder, complete, clean[0], title)
        text = f"  {len(groups) - len(waiting)} of {len(groups)} complete in {self.folder}{'' if written else ' (no units written)'}"
        if waiting:
            text += f"\n  waiting for other parts: {', '.join(waiting[:4])}{', ...' if len(waiting) > 4 else ''}; the last part "
            text += "to finish completes them"
        else:
            self.layout.tidy()
        print_line(text)
        return waiting


def write(open_source: Callable[[], Source], folder: str, writer_config: WriterConfig, corruption_config: CorruptionConfig) -> list[str]:
    """Writes a corrupted set, or a part of it, with the engine of `writer_config`. Prints progress.

    Args:
        open_source: () -> the clean images, a `Source`; picklable for Beam, such as
            `functools.partial(data.open_source, "cifar10", "test")`.
        folder: of the set; created if it is missing. On a file system shared by all processes, if there are many.
        writer_config: a `WriterConfig`.
        corruption_config: a `CorruptionConfig`.

    Returns:
        names of the files or folders that are not finished, because other parts of the work are not done

    Raises:
        ValueError: the folder holds something else, or Beam is not installed.
        OSError: the folder cannot be written or the disk is full; completed chunks stay valid.
        WorkdirLocked: another process writes the same part.
    """
    open_job = functools.partial(Job, open_source, folder, writer_config, corruption_config)
    if writer_config.engine == "beam":
        try:
            from tf_robust.corrupted_datasets.beam import write_with_beam
        except ModuleNotFoundError as error:
            raise ValueError(f"Expected Apache Beam for engine=beam. Try: pip install 'tf_robust[beam]' ({error})") from error
        return write_with_beam(open_job, writer_config.beam_options)
    (part, parts), job = part_of(writer_config.shard), open_job()
    job.begin()
    with file_lock(job.layout.unfinished(f"lock-{part}-of-{parts}"), wait=False):
        units = job.layout.missing(job.plan.part(part, parts))
        if job.source.in_memory:  # corruption by corruption; where reading is expensive, chunk by chunk
            units.sort(key=lambda unit: (job.plan.names.index(unit.name), unit.severity, unit.chunk))
        job.check_disk_space(units)
        with job.explain_full_disk(units):
            progress = Progress(sum(job.plan.images(unit.chunk) for unit in units), "images")
            groups = [job.layout.group(unit.name, unit.severity) for unit in units]
            for number, (unit, group) in enumerate(zip(units, groups)):
                progress.step(job.write(unit), f"{unit.name} {unit.severity}, chunk {unit.chunk + 1} of {job.plan.chunks}")
                if group not in groups[number + 1 :]:
                    job.layout.finish(group)
            return job.conclude(len(units))


def _bytes(count):
    units = ("bytes", "kB", "MB", "GB", "TB")
    power = min(len(units) - 1, (len(str(int(count))) - 1) // 3)
    return f"{count / 1000**power:.3g} {units[power]}"


def draw_sheet(path: str, folder: str, names: Sequence[str], clean: np.ndarray, title: str) -> str:
    """Draws one row per corruption as a PNG file: a clean image, uint8 [H, W, C], then severities 1 to 5, as stored in `folder`."""

    def first_image(name, severity):
        return next(open_corrupted(folder, None, name, severity).ordered(1).take(1).as_numpy_iterator())[0][0]

    lines = np.array([[clean, *(first_image(name, severity) for severity in metrics.SEVERITIES)] for name in names])
    height, width = clean.shape[:2]
    gap = 1 + width // 16
    cells = np.pad(lines, [(0, 0), (0, 0), (0, gap), (0, gap), (0, 0)], constant_values=255)
    count, columns, row, column, _ = cells.shape
    mosaic = np.concatenate(np.concatenate(cells, axis=1), axis=1)
    figure = Figure(figsize=(_INCHES * columns + 2.0, _INCHES * count * height / width + 0.8), layout="constrained")
    figure.suptitle(title, fontsize=10)
    axes = figure.subplots()
    axes.imshow(np.broadcast_to(mosaic, (count * row, columns * column, 3)), interpolation="nearest")
    axes.set_xticks(np.arange(columns) * column + width / 2, ["clean", *map(str, metrics.SEVERITIES)])
    axes.set_yticks(np.arange(count) * row + height / 2, [name.replace("_", " ") for name in names])
    axes.set_xlabel("severity")
    axes.xaxis.set_label_position("top")
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
    return save_figure(figure, path)
