"""The command line from a checkout: `python run_experiment.py` alone is the quick start."""

from tf_robust.cli import main

if __name__ == "__main__":
    main.main()
