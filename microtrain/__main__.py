"""`python -m microtrain`: the command line."""

import sys

from microtrain.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
