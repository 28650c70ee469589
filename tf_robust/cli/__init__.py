"""The command line: `tf-robust COMMAND --flag=value ...`."""
