"""Names of attacks in an evaluation: a threat is a norm and a radius, `l2_0.5` or `linf_8/255`, on the [0, 1] pixel scale."""

import fractions

from tf_robust.utils.errors import unknown

ATTACKS = {
    "autoattack": "robust/",
    "pgd": "robust/pgd/",
    "square": "robust/square/",
}  # attacks of robust accuracy, and the prefixes of their metrics
BALLS = ("l2", "linf")  # norms of robust accuracy
CURVES = {"pgd": BALLS, "plb": ("l0", "l1", "l2", "linf")}  # attacks of curves, and their norms


def parse_threat(text: str) -> tuple[str, float]:
    """Returns the norm and the radius of a threat.

    Args:
        text: NORM_RADIUS, where the radius is a number or a fraction.

    Raises:
        ValueError: another format, or the norm is neither l2 nor linf.
    """
    name, _, radius = text.partition("_")
    if (number := _number(text)) is not None:
        advice = f"attack_radii=linf_{text}{'/255' * (number > 1)}"
        raise ValueError(f"Expected a threat NORM_RADIUS. Received: {text!r}, without a norm. Try: {advice}")
    if name not in BALLS:
        raise unknown("norm", name, BALLS)
    if (number := _number(radius)) is None:
        raise ValueError(f"Expected a threat NORM_RADIUS, such as l2_0.5 or linf_8/255. Received: {text!r}")
    return name, number


def _number(text):
    """The value of a number or fraction; None for other text."""
    try:
        return float(fractions.Fraction(text))
    except (ValueError, ZeroDivisionError):
        return None


def parse_curve(text: str) -> tuple[str, str]:
    """Returns the attack and the norm of an attack curve.

    Args:
        text: ATTACK_NORM, such as plb_l2.

    Raises:
        ValueError: unknown attack or norm.
    """
    name, _, norm = text.partition("_")
    if name not in CURVES:
        raise unknown("attack of a curve", name, CURVES)
    if norm not in CURVES[name]:
        raise unknown("norm", norm, CURVES[name])
    return name, norm
