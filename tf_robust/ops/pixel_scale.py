"""Pixel scales: LOW,HIGH or a normalization by mean and standard deviation, relative to [0, 1]."""

import re

import numpy as np

FORMS = "LOW,HIGH (0,1 or -1,1 or 0,255), or 'mean=M,M,M std=S,S,S' with M in [0, 1] and S > 0 (divide values for 0..255 by 255)"

_NUMBER = r"-?\d+(?:\.\d+)?"


def affine(text: str, argument: str, others: str = "") -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns (scale, offset), tuples of 1 or C numbers: values on the described scale are scale * image + offset, image in [0, 1].

    Args:
        text: LOW,HIGH, or "mean=0.485,0.456,0.406 std=0.229,0.224,0.225" with one number or one per channel.
        argument: name of the argument, for the message.
        others: further values of the argument, for the message.

    Raises:
        ValueError: another text.
    """
    normalization = re.fullmatch(r"\s*mean=(\S+)\s+std=(\S+)\s*", text)
    try:
        if normalization:
            mean, std = np.broadcast_arrays(*(np.array(part.split(","), float) for part in normalization.groups()))
            if ((0 <= mean) & (mean <= 1) & (0 < std) & (std < np.inf)).all():
                return tuple(1 / std), tuple(-mean / std)
        else:
            low, high = np.array(text.split(","), float)
            if -np.inf < low < high < np.inf:
                return (high - low,), (low,)
    except ValueError:  # not numbers, or not as many as expected
        pass
    limits = re.fullmatch(rf"\W*?({_NUMBER})(?:[\s,;:-]+|\.\.|\s*to\s*)({_NUMBER})\W*", text)
    hint = f". Did you mean {limits[1]},{limits[2]}?" if limits and float(limits[1]) < float(limits[2]) else ""
    raise ValueError(f"Expected {argument} as {FORMS}{others}. Received: {text!r}{hint}")
