"""Who may come in: secrets, the keys and ids signed with them, and how many sessions begin."""
