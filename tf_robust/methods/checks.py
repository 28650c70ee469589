"""Checks of hyperparameters that several methods share."""


def positive(name: str, value: float) -> float:
    """Returns `value`; raises ValueError unless it is > 0."""
    if not value > 0:
        raise ValueError(f"Expected {name} > 0. Received: {value}")
    return value
