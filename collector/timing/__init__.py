"""How long every thread was in which state. Pure; sees threads as slots."""
