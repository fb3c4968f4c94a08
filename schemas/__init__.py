"""The contract: every event and record that crosses the log, and its two spellings.

    events        what adapters publish about a session, in the order it happened
    samples       what the trainer reads: samples, their revisions, one outcome per session
    traces        the readable record of a closed session
    dead_letters  what could not be used, untouched, with the reason
    trained       what the trainer says of a step
    control       weight updates, as every gateway reads them
    codec         bytes and JSON lines to objects and back; how the contract may change

Invariant: this package imports nothing of `streams`, so any tool may depend on it alone.
"""
