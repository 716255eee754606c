"""The commands of the `paceline` program, one module each."""
