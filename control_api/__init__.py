"""The control API: profiles, live pacing, and experiments stored in a database."""
