"""Gateways killed in the middle of sessions, and others that go on from the log."""
