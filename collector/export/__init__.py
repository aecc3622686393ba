"""Tables as text and other formats."""
