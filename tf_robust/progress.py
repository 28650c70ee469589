"""How far long work is: a bar where there is a terminal, and how long things take in words."""

import tqdm


def batches(dataset, name):
    """The batches of a dataset, with a bar and the remaining time on a terminal; elsewhere without a word."""
    total = int(dataset.cardinality())
    return tqdm.tqdm(dataset, desc=f"  {name}", total=total if total >= 0 else None, unit="batch", leave=False, disable=None)


def duration(seconds):
    """A time in words: 40 s, 12 min, 3.5 h."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
