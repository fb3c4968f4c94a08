"""`turnstream doctor`: one module a thing that is looked at."""
