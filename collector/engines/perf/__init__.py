"""The engine on top of perf_event_open(2): the kernel writes records, we read its rings (``--engine perf``)."""
