"""Deliberate faults in the package, and how many of them the tests notice."""
