"""Builds the pretrained models of `tf_robust.saved_models.zoo` from trained runs."""
