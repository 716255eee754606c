"""Experiments, their arms, blocks, requests and results"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "experiments",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("profile_namespace", sa.String(length=63), nullable=False),
        sa.Column("profile_name", sa.String(length=253), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("plan", sa.JSON(), nullable=False),
        sa.Column("profile", sa.JSON(), nullable=False),
        sa.Column("engine", sa.JSON(), nullable=True),
        sa.Column("clock", sa.JSON(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("failure", sa.Text(), nullable=True),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("runner_id", sa.String(length=64), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("settings_before", sa.JSON(), nullable=True),
        sa.Column("restore_pending", sa.Boolean(), nullable=False),
        sa.Column("progress", sa.JSON(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("idempotency_key", sa.String(length=255), nullable=True),
        sa.Column("request_digest", sa.String(length=64), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_experiments"),
        sa.UniqueConstraint("idempotency_key", name="uq_experiments_idempotency_key"),
    )
    op.create_index("ix_experiments_created_at_id", "experiments", ["created_at", "id"])
    op.create_index("ix_experiments_status_created_at", "experiments", ["status", "created_at"])
    # The database itself keeps a profile from being measured by two runs at once.
    op.create_index(
        "uq_experiments_running_profile",
        "experiments",
        ["profile_namespace", "profile_name"],
        unique=True,
        sqlite_where=sa.text("status = 'Running'"),
        postgresql_where=sa.text("status = 'Running'"),
    )

    op.create_table(
        "arms",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("experiment_id", sa.String(length=32), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], name="fk_arms_experiment_id_experiments", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_arms"),
        sa.UniqueConstraint("experiment_id", "name", name="uq_arms_experiment_id_name"),
    )
    op.create_table(
        "audits",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("experiment_id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("arm", sa.String(length=64), nullable=True),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], name="fk_audits_experiment_id_experiments", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_audits"),
    )
    op.create_index("ix_audits_experiment_id", "audits", ["experiment_id"])

    op.create_table(
        "results",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("experiment_id", sa.String(length=32), nullable=False),
        sa.Column("arm", sa.String(length=64), nullable=False),
        sa.Column("baseline", sa.String(length=64), nullable=False),
        sa.Column("metric", sa.String(length=64), nullable=False),
        sa.Column("ratio", sa.Float(), nullable=True),
        sa.Column("ratio_low", sa.Float(), nullable=True),
        sa.Column("ratio_high", sa.Float(), nullable=True),
        sa.Column("blocks", sa.Integer(), nullable=True),
        sa.Column("verdict", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], name="fk_results_experiment_id_experiments", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_results"),
        sa.UniqueConstraint("experiment_id", "arm", "metric", name="uq_results_experiment_id_arm_metric"),
    )
    op.create_table(
        "blocks",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("experiment_id", sa.String(length=32), nullable=False),
        sa.Column("arm_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("block", sa.Integer(), nullable=False),
        sa.Column("warm_up", sa.Boolean(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=True),
        sa.Column("record", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["arm_id"], ["arms.id"], name="fk_blocks_arm_id_arms", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], name="fk_blocks_experiment_id_experiments", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_blocks"),
        sa.UniqueConstraint("experiment_id", "position", name="uq_blocks_experiment_id_position"),
    )
    op.create_index("ix_blocks_arm_id", "blocks", ["arm_id"])

    op.create_table(
        "requests",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("experiment_id", sa.String(length=32), nullable=False),
        sa.Column("arm_id", sa.Integer(), nullable=False),
        sa.Column("block", sa.Integer(), nullable=False),
        sa.Column("warm_up", sa.Boolean(), nullable=False),
        sa.Column("request_id", sa.String(length=128), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("record", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["arm_id"], ["arms.id"], name="fk_requests_arm_id_arms", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], name="fk_requests_experiment_id_experiments", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_requests"),
        sa.UniqueConstraint("experiment_id", "request_id", name="uq_requests_experiment_id_request_id"),
    )
    op.create_index("ix_requests_arm_id", "requests", ["arm_id"])
    op.create_index("ix_requests_experiment_id_id", "requests", ["experiment_id", "id"])


def downgrade() -> None:
    for table in ("requests", "blocks", "results", "audits", "arms", "experiments"):
        op.drop_table(table)
