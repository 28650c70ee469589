"""One run, its config and flags; suites, sweeps, comparison, dry run."""
