"""`python -m tilewright_runtime` is the `tilewright-run` command."""

import sys

from tilewright.runtime.command import main

if __name__ == "__main__":
    sys.exit(main())
