"""The experiment on disk: one format, one door for writing (recorder), one for reading (reader)."""
