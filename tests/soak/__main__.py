"""`python -m tests.soak MINUTES SEED`."""

from tests.soak.run import main

if __name__ == "__main__":
    main()
