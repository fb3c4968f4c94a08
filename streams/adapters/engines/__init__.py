"""What samples: token ids in, token ids with logprobs out."""
