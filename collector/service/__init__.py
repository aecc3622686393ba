"""Profiling as something a machine has: a daemon that records what it is told to, and that any user may ask.

    client --one JSON message a line--> daemon -> peers (who may?) -> targets (which processes?)
                                          |
                                          +-> sessions -> runs: a process each, `collect -P ...`, its owner's rights
                                          +-> facts -> spool: what is known of them, on the disk
                                          +-> rotation, retention, budget: when, how much is kept, at what cost

Pure: protocol, peers, wishes, config, rotation, retention, budget. The daemon composes them in one event loop.
"""
