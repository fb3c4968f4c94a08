"""Soak: the whole path for an hour; and many small sessions, and what workers hold of them."""
