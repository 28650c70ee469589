"""Stateless image operations and random numbers: batched, float32 NHWC, on nothing but TensorFlow."""
