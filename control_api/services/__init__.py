"""What the control API does, apart from HTTP."""
