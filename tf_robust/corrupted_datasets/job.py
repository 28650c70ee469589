"""The work of writing one corrupted set, whichever process does which part of it."""

import os

from tf_robust import corruptions, metrics
from tf_robust.configs.data import WriterConfig
from tf_robust.corrupted_datasets import preview
from tf_robust.corrupted_datasets.generator import CorruptionConfig, Generator
from tf_robust.corrupted_datasets.npy import ArrayLayout
from tf_robust.corrupted_datasets.plan import Plan, Unit
from tf_robust.corrupted_datasets.tfrecord import RecordLayout
from tf_robust.data.source import Source
from tf_robust.utils import environment
from tf_robust.utils.files import read_json, write_json
from tf_robust.utils.locks import file_lock

LAYOUTS = {"npy": ArrayLayout, "tfds": RecordLayout}
_FREE = ("versions", "corruptions")  # parts of a card that may change while a set is written


class Job:
    """The contents of a corrupted set: its plan, its files, and the generator of missing units.

    Args:
        source: the clean images.
        folder: of the set.
        writer_config: a `WriterConfig`.
        corruption_config: a `CorruptionConfig`.

    Raises:
        ValueError: the source is empty.
    """

    def __init__(self, source: Source, folder: str, writer_config: WriterConfig, corruption_config: CorruptionConfig) -> None:
        if not len(source):
            raise ValueError(f"Expected images to corrupt in {source.name} ({source.split}). Received: none")
        self.source, self.folder = source, folder
        chosen = writer_config.corruptions or metrics.MEANS["mean19"]
        as_files = writer_config.dataset_format == "tfds" and corruption_config.protocol == "imagenet_c"
        self.plan = Plan(
            tuple(name for name in corruptions.CORRUPTIONS if name in chosen),
            len(source),
            writer_config.chunk_size,
            tuple(source.image_shape),
            source.class_names,
            source.split,
            as_files,
        )
        self.layout = LAYOUTS[writer_config.dataset_format](folder, self.plan)
        self._generate = Generator(source, corruption_config, as_files=as_files, keep=1 if source.in_memory else 128)
        self.card = _card(source, writer_config, corruption_config)

    def begin(self) -> None:
        """Claims the folder for this set, or checks that it belongs to this set.

        Raises:
            ValueError: the folder holds something else.
        """
        try:
            with file_lock(self.layout.unfinished("lock")):
                self._claim(os.path.join(self.folder, "card.json"))
        except ValueError:
            self.layout.tidy()
            raise

    def _claim(self, card):
        others = sorted(name for name in os.listdir(self.folder) if not name.startswith("."))
        if os.path.exists(card):
            self._compare(read_json(card))
        elif others:
            raise ValueError(
                f"Expected an empty folder, or one begun by tf-robust corrupt. Received: {self.folder}, which holds "
                f"{', '.join(others[:5])}{', ...' if len(others) > 5 else ''} and no card.json"
            )
        else:
            write_json(card, self.card)

    def _compare(self, before):
        differing = [
            f"  {name}: {before.get(name)} before, {self.card.get(name)} now"
            for name in sorted({*before, *self.card} - {*_FREE})
            if before.get(name) != self.card.get(name)
        ]
        if differing:
            raise ValueError(
                f"{self.folder} holds a set of another configuration:\n"
                + "\n".join(differing)
                + "\nTry: the same flags to resume, or another folder."
            )
        if before.get("versions") != self.card["versions"]:
            print(
                f"  Note: {self.folder} was begun with {before.get('versions')} and is continued with {self.card['versions']}: "
                "pixels may differ by rounding.",
                flush=True,
            )

    def order(self, units: list[Unit]) -> list[Unit]:
        """Returns units in the order of the work: by corruption, or by chunk where reading is expensive."""
        if not self.source.in_memory:
            return units
        return sorted(units, key=lambda unit: (self.plan.names.index(unit.name), unit.severity, unit.chunk))

    def write(self, unit: Unit) -> int:
        """Generates and writes one unit. Returns the number of its images."""
        first, last = self.plan.range_of(unit.chunk)
        self.layout.write(unit, *self._generate(unit.name, unit.severity, first, last))
        return last - first

    def conclude(self, written: int) -> list[str]:
        """Finishes complete groups, the card and the image sheet. Prints the state.

        Args:
            written: number of units written by this process.

        Returns:
            the groups that are not finished
        """
        groups = self.layout.groups()
        waiting = [group for group in groups if not self.layout.finish(group)]
        with file_lock(self.layout.unfinished("lock")):
            complete = [
                name
                for name in corruptions.CORRUPTIONS
                if all(self.layout.is_finished(self.layout.group(name, severity)) for severity in metrics.SEVERITIES)
            ]
            path = os.path.join(self.folder, "card.json")
            write_json(path, {**read_json(path), "corruptions": complete})
            if not waiting:
                self._draw(complete)
        print(
            f"  {len(groups) - len(waiting)} of {len(groups)} complete in {self.folder}" + ("" if written else " (no units written)"),
            flush=True,
        )
        if waiting:
            print(
                f"  waiting for other parts: {', '.join(waiting[:4])}{', ...' if len(waiting) > 4 else ''}; the last part "
                "to finish completes them",
                flush=True,
            )
        else:
            self.layout.tidy()
        return waiting

    def _draw(self, names):
        card, (clean, _) = self.card, self._generate.chunk(0, 1)
        title = f"{card['data']['name']}: constants {card['constants']}, protocol {card['protocol']}, frost {card['frost']}"
        preview.draw(os.path.join(self.folder, "sheet.png"), self.folder, names, clean[0], title)


def _card(source, writer_config, corruption_config):
    """Returns the card of a set without its corruptions."""
    description = corruptions.describe(
        source.image_shape, corruption_config.constants, corruption_config.protocol, corruption_config.frost_dir
    )
    data = {
        "name": source.name.rstrip("/").split("/")[-1],
        "split": source.split,
        "num_images": len(source),
        "fingerprint": source.fingerprint(),
        "image_shape": list(source.image_shape),
    }
    return {
        "layout": writer_config.dataset_format,
        "data": data,
        "seed": corruption_config.seed,
        **description,
        "block": writer_config.chunk_size,
        "versions": environment.describe(),
        "corruptions": [],
    }
