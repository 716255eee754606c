"""The HTTP routes: they parse and answer, and leave the work to services."""
