"""The only room that speaks to the kernel."""
