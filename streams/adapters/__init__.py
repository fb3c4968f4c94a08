"""Whatever publishes turn events.

    an agent's request ──► dialects ──► Call ──► gateway ──► engines
                                                   │  sampled ids and logprobs
    the agent's answer ◄── dialects ◄── pieces ◄───┤
                                                   └──► a turn event, durable before the answer ends

`dialects` are pure: one wire format a file. `engines` are what samples. `gateway` is between.
`client` opens and ends sessions for whoever starts agents; `environments` make sessions of the
episodes of wrapped environments, without the gateway; `judgers` give sessions their rewards.
"""
