"""vLLM's real scheduler in virtual time: what a setting would do on hardware that is not here."""
