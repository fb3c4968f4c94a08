"""Whatever publishes turn events.

    an agent's request ──► dialects ──► Call ──► gateway ──► engines
                                                   │  sampled ids and logprobs
    the agent's answer ◄── dialects ◄── pieces ◄───┤
                                                   └──► a turn event, durable before the answer ends

`dialects` are pure: one wire format a file. `engines` are what samples. `gateway` is between.
"""
