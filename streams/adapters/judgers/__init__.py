"""Reward functions: what they are given, what they may answer, and who asks them.

    judging    the protocol: a case in, a verdict out; time limits, errors, several at once
    consumer   judges sessions that ended and wait for their reward, from the log
    evaluation what eval sessions are worth together, failures counted

A judger is asked before a session is torn down (`Session.judge` of the client, `judging=` of a
wrapped environment), or later by a consumer of its own: `turnstream judge MODULE:FUNCTION`.
"""
