"""Parts that the tests of the control API share: a fake engine's admin port, servers, databases."""
