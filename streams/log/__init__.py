"""The durable log: one small interface, its stores, its topics, and blobs beside it.

    interface     what every store does: publish, read, commit, positions and lag
    kafka         the store on Kafka
    sqlite        the store in one file
    opening       which of the two
    partitioner   which partition a key belongs to, the same for every producer
    topics        what each topic has to be; creates and checks them
    blobs         large channels beside the log

Invariant: what `publish` returned is durable, at the position it returned.
"""
