"""Downloads of the SDK from the real api, over connections that are cut."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from tests.testbed.api import running_api
from tests.testbed.proxy import proxied
from weft import AsyncClient

CONTENT = bytes(range(256)) * (20 * 4096)  # more than the buffers of the connection


async def test_a_download_over_a_cut_connection_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """It began at the first byte: the ETag of the list has no quotes, and the api compared it with the quoted one."""

    async def chunks() -> AsyncIterator[bytes]:
        yield CONTENT

    async with running_api(tmp_path / "home") as api, proxied(api.url.removeprefix("http://")) as proxy:
        job = (await api.submit())["id"]
        key = f"tenants/default/jobs/{job}/attempts/1/results/worker-0/model"
        await api.services.artifacts._objects.put(key, chunks())
        cuts, counts = [len(CONTENT) // 4, len(CONTENT) // 2], [0]

        def cut(done: int, _all: int) -> None:
            counts.append(done)
            if cuts and done > cuts[0]:
                cuts.pop(0)
                proxy.cut()
                proxy.mend()

        async with AsyncClient(f"http://{proxy.address}", api.admin_key) as client:
            [path] = await client.jobs.download(job, tmp_path / "here", on_bytes=cut)
    assert path.read_bytes() == CONTENT
    assert cuts == []
    assert counts == sorted(counts), "no byte was fetched twice"
