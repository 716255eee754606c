"""What Alembic runs to migrate: always on a connection that the caller holds, inside the caller's transaction."""

from alembic import context

from paceline.control_api.db.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    # SQLite can't alter most things in place: Alembic rebuilds the table instead.
    render_as_batch=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
