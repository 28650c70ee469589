"""Shows what `tf-robust harden` does: models trained by plain Keras, hardened, and compared with what a Keras user would do otherwise."""
