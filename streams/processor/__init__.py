"""The stream processor: turn events in, per-session trees as table state, samples out.

    rows             how state is written: keys that are written once, values that are events
    partition_state  what a partition holds, and what follows from one more event
    offsets          which events are done, in order, so that a commit never runs ahead
    closing          a session's last acts, each after the one before it is acknowledged
    faust_hooks      the private parts of Faust we lean on, each with its reason
    faust_app        the app: topic, table, agent, rebalance; the only room that knows Faust

The one idea: everything a worker writes is a pure function of the source log up to there, under
a key that is written once. Zombies, replays and double processing can then only repeat bytes.
"""
