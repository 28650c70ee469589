"""The training loop, checkpoints, callbacks, optimizers, distribution."""
