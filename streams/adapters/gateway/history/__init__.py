"""What one session has recorded, as a tree of messages, and where a request goes on from."""
