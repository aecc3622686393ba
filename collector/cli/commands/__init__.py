"""What er_print can do: the commands, a module for each group, and the session that they act on."""
