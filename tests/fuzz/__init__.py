"""A worker under events that nobody should send, beside a pure oracle of what has to come out."""
