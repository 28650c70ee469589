"""Runs: training of one row with one seed, tables of runs, sweeps."""
