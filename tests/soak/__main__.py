"""`python -m tests.soak SESSIONS`."""

from tests.soak.run import main

if __name__ == "__main__":
    main()
