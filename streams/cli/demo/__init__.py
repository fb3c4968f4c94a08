"""`turnstream demo`: the path of a session, and the game that is played on it."""
