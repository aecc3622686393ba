"""collect: a sampling collector for Linux with the ten microstates of Solaris."""

__version__ = "0.1.0"
