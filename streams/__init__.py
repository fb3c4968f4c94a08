"""Turnstream: turns of language-model agents in, token samples out.

Rooms, in the order data walks through them: adapters, log, processor, log, trainer. What they
decide together lives in `core`, which is pure.
"""
