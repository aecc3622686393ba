"""Registers, stack bytes and tables in; frames out. Pure."""
