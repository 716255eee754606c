"""The cluster that the control API runs in: the way to its API server, and who may do what there."""
