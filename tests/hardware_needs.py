"""Hardware that a row of a table needs, for tests of benchmarks/hardware.py and benchmarks/scale.py."""

NEED = {
    "row": "a",
    "steps": 1000,
    "parameters": 1_000_000,
    "state": 3_000_000,
    "flops": 8e12,
    "kept": 6_000_000_000,
    "making": 2.0,
    "measured": 500,
    "forward": 1e10,
    "corrupting": 0.08,
    "disk": 2**30,
}
