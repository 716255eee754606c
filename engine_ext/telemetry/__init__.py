"""What the engine did, step by step: counters and a ring of the newest records."""
