"""`python -m tests.under_fire SESSIONS FAULTS SEED`."""

from tests.under_fire.run import main

if __name__ == "__main__":
    main()
