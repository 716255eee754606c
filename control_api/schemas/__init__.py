"""What the control API takes and answers, as pydantic types."""
