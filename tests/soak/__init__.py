"""Soak: many small sessions through real workers, and what they still hold afterwards."""
