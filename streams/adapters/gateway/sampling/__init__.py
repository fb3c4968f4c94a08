"""The answer of an engine: when it may be asked, how it is sampled, what it gave so far."""
