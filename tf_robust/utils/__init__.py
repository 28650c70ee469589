"""Files, locks, errors, progress, environment, hyperparameters."""
