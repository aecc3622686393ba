"""The commands: the only room that prints and exits."""
