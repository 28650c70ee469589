"""Writes models in formats of deployment, and evaluates the files."""
