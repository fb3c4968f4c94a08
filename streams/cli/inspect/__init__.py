"""`turnstream inspect`: a session or a training step, found on the log and drawn as text."""
