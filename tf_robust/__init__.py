"""Train, measure and ship image classifiers that keep working when the picture gets worse."""
