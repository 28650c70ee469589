"""Export of models, and models of any format."""
