"""What readers of traces are given besides the log: files of JSON lines, and trackio's page.

    turnstream.traces ──► consuming ──┬──► jsonl      exact: every session once, in whole files
                                      └──► trackio    best effort: a bounded, fair choice

Each is a consumer of its own, with positions of its own.

Invariant: a sink only reads the log, so it changes and delays no sample.
"""
