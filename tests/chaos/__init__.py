"""Chaos: the processor's promise, kept while its workers and its broker are killed."""
