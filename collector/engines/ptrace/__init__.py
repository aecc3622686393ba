"""The engine on top of ptrace(2): a tracer of our own looks at threads (``--engine signal``)."""
