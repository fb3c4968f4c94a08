"""`python -m tests.chaos SESSIONS SEED`."""

from tests.chaos.run import main

if __name__ == "__main__":
    main()
