"""Owner of lifetimes: what runs from the launch to the closed experiment."""
