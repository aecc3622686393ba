"""The model of what is profiled: processes, lineage, address spaces, microstates. Pure; fed with events."""
