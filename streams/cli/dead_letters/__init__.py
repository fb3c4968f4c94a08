"""`turnstream dead-letters`: refused events, read, explained and sent again."""
