"""Attacks on real processes: one session, key, record or client that tries to stop the rest."""
