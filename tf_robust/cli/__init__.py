"""The command line: `tf-robust COMMAND --flag=value ...`."""

import time

BEGIN = time.monotonic()  # when the command began, before the import of TensorFlow
