"""Messages become token ids: tokenizers, chat templates, and what they do by themselves."""
