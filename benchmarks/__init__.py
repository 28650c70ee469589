"""Benchmarks: speed and memory of the package, beside other libraries; `python -m benchmarks` runs all."""
