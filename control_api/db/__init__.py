"""The control API's database: tables, sessions and migrations, alike on SQLite and PostgreSQL."""
