"""`turnstream up`: the pipeline in one process, and the sinks beside it."""
