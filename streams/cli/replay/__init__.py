"""`turnstream replay`: where events come from, what becomes of them, what is told of it."""
