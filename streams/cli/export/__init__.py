"""`turnstream export`: which records are taken, and the files they become."""
