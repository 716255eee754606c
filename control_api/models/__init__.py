"""What is read from and written to the database, as functions of an open session."""
