"""Checks of hyperparameters that several methods share."""


def positive(name, value):
    """`value`, or a ValueError if it is not > 0."""
    if not value > 0:
        raise ValueError(f"Expected {name} > 0. Received: {value}")
    return value
