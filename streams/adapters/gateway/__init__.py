"""Between agent and engine: builds prompts from recorded tokens, records every turn, answers."""
