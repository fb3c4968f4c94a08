"""What this gateway knows of each session, and how it learns it from the log."""
