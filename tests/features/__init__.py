"""The claims of `tests/features.toml`, each with its test and with what breaks it."""
