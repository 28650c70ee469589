"""Converts models of other frameworks to trainable Keras models, and writes their trained weights back: `converted`."""
