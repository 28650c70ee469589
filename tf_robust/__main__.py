"""`python -m tf_robust` is the command line."""

from tf_robust.cli import main

if __name__ == "__main__":
    main.main()
