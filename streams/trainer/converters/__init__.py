"""Samples in the form that each training framework reads; one module a framework.

    rows       what a converter starts from: full-length arrays, and what all of them refuse
    replay     routed experts, from the token they sampled to the position they read
    tensors    numpy to torch, imported when it is first needed

    framework     index          shift  mask outside  logprob outside  needs
    slime, miles  response only  none   0             0.0              a reward
    verl          response only  none   0             0.0              a reward
    skyrl         response only  none   0             0.0              a reward
    prime_rl      full length    none   False         0.0              an advantage, temperatures
    trl           full length    none   0             0.0              an advantage, a version
    areal         full length    none   0             0.0              a reward
    padded        full length    none   False         0.0
    tinker        full length    by 1   0.0           0.0              an advantage
    atropos       full length    none   -100          1.0              a reward

A converter reads rows: `batch.rows`, or anything with a sample, its advantage and its weights.

Invariant: every trained token is in the result once, with its own logprob, or the sample is
refused in words (`CannotConvert`). A logprob that the engine did not give is never written as 0.0
where the mask trains.
"""
