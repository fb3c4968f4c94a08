"""`python -m tests.failover SESSIONS KILLS SEED`."""

from tests.failover.run import main

main()
