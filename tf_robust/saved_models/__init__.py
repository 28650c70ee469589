"""Export of models, and models of any format."""

__all__ = ["formats", "loading", "zoo"]
