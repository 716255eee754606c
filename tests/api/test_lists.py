"""Lists page by page, and times that are the same instants on both databases."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

import pytest
import sqlalchemy as sa
from api_support.apis import Api
from api_support.plans import all_items
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.bench.plan import Arm, ExperimentPlan
from paceline.control_api.config import ApiConfig
from paceline.control_api.db.engine import Database
from paceline.control_api.db.migrate import migrate
from paceline.control_api.db.tables import ExperimentRow
from paceline.control_api.db.types import UtcDateTime

PACIFIC = timezone(timedelta(hours=-8))
NOON = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=PACIFIC)


def write(url: str, rows: list[ExperimentRow]) -> None:
    async def store() -> None:
        address = ApiConfig.model_validate({"local_state": ".", "database_url": url}).sqlalchemy_url
        await migrate(address)
        database = Database(address, pool_size=1)
        try:
            async with database.write() as session:
                session.add_all(rows)
        finally:
            await database.close()

    asyncio.run(store())


def experiment(identifier: str, created_at: datetime, **values: object) -> ExperimentRow:
    plan = ExperimentPlan(name="stored", arms=(Arm(name="a"),)).model_dump(mode="json", by_alias=True)
    base = {"name": identifier, "profile_namespace": "lab", "profile_name": "tiny", "status": "Succeeded", "seed": 0}
    profile = {"metadata": {"name": "tiny"}, "spec": {"model": {"source": "file:///models/tiny"}}}
    return ExperimentRow(id=identifier, created_at=created_at, plan=plan, profile=profile, **(base | values))


@pytest.fixture
def listed(start_api: Callable[..., Api], database_url: str) -> Api:
    """Seven experiments: an hour apart in local times of several zones, and two at the very same instant."""
    zones = [PACIFIC, UTC, timezone(timedelta(hours=5, minutes=30))]
    rows = [experiment(f"e{hour}", (NOON + timedelta(hours=hour)).astimezone(zones[hour % 3])) for hour in range(6)]
    write(database_url, [*rows, experiment("e5b", NOON + timedelta(hours=5), status="Failed")])
    return start_api(database_url)


NEWEST_FIRST = ["e5b", "e5", "e4", "e3", "e2", "e1", "e0"]


def identifiers(items: list[dict]) -> list[str]:
    return [item["id"] for item in items]


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 200])
def test_pages_hold_every_row_once_the_newest_first(listed: Api, limit: int) -> None:
    assert identifiers(all_items(listed.client, "/v1/experiments", limit=limit)) == NEWEST_FIRST


def test_rows_that_come_between_two_pages_neither_repeat_nor_hide_others(listed: Api, database_url: str) -> None:
    first = listed.client.get("/v1/experiments", params={"limit": 3}).json()
    write(database_url, [experiment("e9", NOON + timedelta(hours=9))])
    rest = all_items(listed.client, "/v1/experiments", limit=3, cursor=first["nextCursor"])
    assert identifiers(first["items"]) + identifiers(rest) == NEWEST_FIRST


def test_times_are_the_instants_that_were_stored_in_utc(listed: Api) -> None:
    found = listed.client.get("/v1/experiments/e0").json()
    assert found["createdAt"] == "2026-01-31T20:00:00.123456Z"


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"createdAfter": "2026-01-31T14:00:00.123456-08:00"}, ["e5b", "e5", "e4", "e3"]),
        ({"createdAfter": "2026-01-31T22:00:00.123456Z"}, ["e5b", "e5", "e4", "e3"]),
        ({"createdBefore": "2026-02-01T03:30:00.123456+05:30"}, ["e1", "e0"]),
        ({"createdBefore": "2026-01-31T22:00:00.123456Z"}, ["e1", "e0"]),
        ({"status": "Failed"}, ["e5b"]),
        ({"profile": "lab/tiny", "createdBefore": "2026-01-31T21:00:00Z"}, ["e0"]),
        ({"profile": "lab/other"}, []),
    ],
)
def test_filters_compare_instants_whatever_the_zone(listed: Api, parameters: dict, expected: list[str]) -> None:
    assert identifiers(all_items(listed.client, "/v1/experiments", limit=2, **parameters)) == expected


def test_a_time_without_a_zone_is_refused(listed: Api) -> None:
    response = listed.client.get("/v1/experiments", params={"createdAfter": "2026-01-31T12:00:00"})
    assert response.status_code == 422
    assert response.json()["errors"][0]["field"] == "query.createdAfter"


@pytest.mark.parametrize("limit", [0, 201, -1, "many"])
def test_a_page_has_bounds(listed: Api, limit: object) -> None:
    response = listed.client.get("/v1/experiments", params={"limit": limit})
    assert response.status_code == 422
    assert response.json()["errors"][0]["field"] == "query.limit"


INSTANTS = st.datetimes(min_value=datetime(1, 1, 3), max_value=datetime(9999, 12, 29), timezones=st.timezones())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moments=st.lists(INSTANTS, min_size=1, max_size=5))
def test_every_instant_comes_back_as_itself_and_sorts_as_itself(database_url: str, moments: list[datetime]) -> None:
    table = sa.Table("moments", sa.MetaData(), sa.Column("at", UtcDateTime))

    async def store_and_load() -> list[datetime]:
        config = ApiConfig.model_validate({"local_state": ".", "database_url": database_url})
        database = Database(config.sqlalchemy_url, pool_size=1)
        try:
            async with database.engine.begin() as connection:
                await connection.run_sync(table.drop, checkfirst=True)
                await connection.run_sync(table.create)
                await connection.execute(table.insert(), [{"at": moment} for moment in moments])
                return list((await connection.execute(sa.select(table.c.at).order_by(table.c.at))).scalars())
        finally:
            await database.close()

    loaded = asyncio.run(store_and_load())
    # In UTC, since Python calls a time in a clock change's gap unequal to the same instant in any other zone.
    assert loaded == sorted(moment.astimezone(UTC) for moment in moments)
    assert all(moment.utcoffset() == timedelta(0) for moment in loaded)


def test_a_time_without_a_zone_is_never_stored(database_url: str) -> None:
    with pytest.raises(sa.exc.StatementError, match="no time zone"):
        write(database_url, [experiment("e0", datetime(2026, 1, 31, 12))])
