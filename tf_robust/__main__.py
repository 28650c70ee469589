"""`python -m tf_robust` is the command line."""

from tf_robust import cli

if __name__ == "__main__":
    cli.main()
