"""`python -m tests.fuzz MINUTES SEED`."""

import sys

from tests.fuzz.run import main

if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2])))
