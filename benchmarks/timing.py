"""How long calls take, on the CPU's clock and on the wall's."""

import math
import time

import numpy as np


def seconds(call, count):
    """[CPU, wall] that `count` calls take."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(count):
        call()
    return np.array([time.process_time() - cpu, time.perf_counter() - wall])


def calls_needed(call, wanted):
    """How many calls take `wanted` seconds of CPU; the first two trace, compile, read and warm up."""
    seconds(call, 2)
    count = 1
    while (taken := seconds(call, count)[0]) < wanted / 4:
        count *= 2
    return math.ceil(count * wanted / taken)
