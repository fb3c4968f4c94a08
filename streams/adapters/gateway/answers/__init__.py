"""Sampled tokens become a message, piece by piece as they come."""
