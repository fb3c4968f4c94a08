"""The prompt of a call: recorded tokens wherever there are some, rendered ones for the rest."""
