"""When sessions and one-time codes end."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from services.api.access import Principal
from services.api.keys import Keys
from services.api.sessions import CODE_MS, CODES, KIND, Sessions, SignedIn
from services.core.adapters.system_clock import SystemClock
from services.core.domain.errors import NotFound, Unauthenticated, Unavailable
from services.core.ports.record_store import Record
from services.core.runtime.quarantine import Quarantine
from tests.testbed.memory.records import MemoryRecordStore

HOUR_MS = 3_600_000
ADMIN = Principal(key_id="", user="admin", tenant="default", scope="admin")
ADA = Principal(key_id="", user="ada", tenant="acme", scope="user")


class SetClock(SystemClock):
    """Moves by hand."""

    def __init__(self) -> None:
        self.ms = 1_800_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def boottime(self) -> float:
        return self.ms / 1000


class Records(MemoryRecordStore):
    """Counts reads and writes; does not answer while ``away``."""

    away = False
    reads = writes = 0

    async def get(self, kind: str, record_id: str) -> Record | None:
        self.reads += 1
        if self.away:
            raise Unavailable("the store is away")
        return await super().get(kind, record_id)

    async def replace(self, record: Record) -> Record:
        self.writes += 1
        return await super().replace(record)


class Api:
    """Keys and sessions over one record store: idle sessions end after 8 hours, others after 20."""

    def __init__(self, records: Records, clock: SetClock, cache_s: float = 0) -> None:
        self.records, self.clock = records, clock
        quarantine = Quarantine(clock.now_ms, CollectorRegistry())
        self.keys = Keys(records, pepper=b"p", clock=clock, quarantine=quarantine, cache_s=cache_s, most_of_user=100)
        self.sessions = Sessions(
            records,
            self.keys,
            pepper=b"p",
            clock=clock,
            quarantine=quarantine,
            cache_s=cache_s,
            idle_ms=8 * HOUR_MS,
            most_ms=20 * HOUR_MS,
        )

    async def key(self, name: str = "") -> tuple[str, Principal]:
        made = await self.keys.create(ADMIN, name=name, user="ada", tenant="acme")
        return made.text, await self.keys.authenticate(made.text)

    async def authenticates(self, cookie: str) -> SignedIn | None:
        try:
            return await self.sessions.authenticate(cookie)
        except Unauthenticated:
            return None


@pytest.fixture
def api() -> Api:
    return Api(Records(), SetClock())


async def test_a_session_that_is_not_used_ends(api: Api) -> None:
    _, cookie = await api.sessions.sign_in(key=(await api.key())[0])
    api.clock.ms += 8 * HOUR_MS - 1
    assert await api.authenticates(cookie)
    api.clock.ms += 8 * HOUR_MS
    assert not await api.authenticates(cookie)
    assert await api.sessions.visible(ADMIN) == []


async def test_use_prolongs_a_session_up_to_its_longest_life(api: Api) -> None:
    signed_in, cookie = await api.sessions.sign_in(key=(await api.key())[0])
    for _ in range(4):
        api.clock.ms += 5 * HOUR_MS - 1
        again = await api.sessions.authenticate(cookie)
        assert again.csrf == signed_in.csrf
        assert again.expires <= signed_in.session.created + 20 * HOUR_MS
    api.clock.ms += 4
    assert not await api.authenticates(cookie)


async def test_requests_in_a_session_cost_no_write_each(api: Api) -> None:
    _, cookie = await api.sessions.sign_in(key=(await api.key())[0])
    for _ in range(100):
        api.clock.ms += 72_000  # two hours in all
        assert await api.authenticates(cookie)
    assert api.records.writes == 2


async def test_a_cached_session_costs_no_read() -> None:
    api = Api(Records(), SetClock(), cache_s=2)
    _, cookie = await api.sessions.sign_in(key=(await api.key())[0])
    assert await api.authenticates(cookie)
    reads = api.records.reads
    for _ in range(10):
        assert await api.authenticates(cookie)
    assert api.records.reads == reads


async def test_a_session_goes_on_while_the_store_is_away() -> None:
    api = Api(Records(), SetClock(), cache_s=2)
    _, cookie = await api.sessions.sign_in(key=(await api.key())[0])
    assert await api.authenticates(cookie)
    api.records.away = True
    api.clock.ms += 60_000
    assert await api.authenticates(cookie)
    other = Api(api.records, api.clock)
    with pytest.raises(Unavailable):
        await other.sessions.authenticate(cookie)


async def test_an_ended_session_stops_working_at_another_api_within_the_cache_time() -> None:
    records, clock = Records(), SetClock()
    api, other = Api(records, clock, cache_s=2), Api(records, clock, cache_s=2)
    signed_in, cookie = await api.sessions.sign_in(key=(await api.key())[0])
    assert await other.authenticates(cookie)
    await api.sessions.end(ADA, signed_in.session.id)
    assert not await api.authenticates(cookie)
    clock.ms += 2_000
    assert not await other.authenticates(cookie)


async def test_only_its_user_and_admins_end_a_session(api: Api) -> None:
    signed_in, cookie = await api.sessions.sign_in(key=(await api.key())[0])
    for stranger in (
        Principal(key_id="", user="ada", tenant="other", scope="user"),
        Principal(key_id="", user="bob", tenant="acme", scope="user"),
    ):
        with pytest.raises(NotFound):
            await api.sessions.end(stranger, signed_in.session.id)
        assert await api.sessions.visible(stranger) == []
    assert await api.authenticates(cookie)
    await api.sessions.end(ADMIN, signed_in.session.id)
    assert not await api.authenticates(cookie)


async def test_the_oldest_session_of_a_key_ends_when_it_has_fifty(api: Api) -> None:
    text, _ = await api.key()
    cookies = []
    for _ in range(51):
        api.clock.ms += 1
        cookies.append((await api.sessions.sign_in(key=text))[1])
    assert [bool(await api.authenticates(cookie)) for cookie in cookies] == [False] + [True] * 50


async def test_a_code_works_once_within_a_minute_while_its_key_does(api: Api) -> None:
    _, ada = await api.key()
    used, late, revoked = [(await api.sessions.make_code(ada))[0] for _ in range(3)]
    signed_in, _ = await api.sessions.sign_in(code=used)
    assert signed_in.principal.user == "ada"
    await api.keys.revoke(ADMIN, ada.key_id)
    refused = [used, revoked, f"{late[:-1]}{'0' if late[-1] != '0' else '1'}"]
    _, other = await api.key("other")
    late, _ = await api.sessions.make_code(other)
    api.clock.ms += CODE_MS
    for code in [*refused, late]:
        with pytest.raises(Unauthenticated):
            await api.sessions.sign_in(code=code)


async def test_a_sweep_removes_what_is_over_and_nothing_else(api: Api) -> None:
    text, ada = await api.key()
    await api.sessions.sign_in(key=text)
    await api.sessions.make_code(ada)
    api.clock.ms += 7 * HOUR_MS
    _, cookie = await api.sessions.sign_in(key=text)
    code, _ = await api.sessions.make_code(ada)
    api.clock.ms += HOUR_MS
    code, _ = await api.sessions.make_code(ada)
    await api.sessions.sweep()
    assert await api.authenticates(cookie)
    assert len(await api.records.find(KIND, {})) == 1
    assert [record.id for record in await api.records.find(CODES, {})] == [code.split("_")[1]]


async def test_a_damaged_record_signs_nobody_in_and_harms_no_other_session(api: Api) -> None:
    text, _ = await api.key()
    signed_in, damaged = await api.sessions.sign_in(key=text)
    _, sound = await api.sessions.sign_in(key=text)
    record = await api.records.get(KIND, signed_in.session.id)
    assert record
    for body in ({}, {**record.body, "used": "x"}, {**record.body, "created": -1}, {**record.body, "mac": None}):
        current = await api.records.get(KIND, record.id)
        assert current
        await api.records.replace(Record(kind=KIND, id=record.id, body=body, index=record.index, rev=current.rev))
        assert not await api.authenticates(damaged)
        assert await api.authenticates(sound)
