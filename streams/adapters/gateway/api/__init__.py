"""What is reached over HTTP: the dialects' routes and the control API."""
