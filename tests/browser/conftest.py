"""One platform, one browser and one session for all tests of the dashboard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from playwright.sync_api import Browser, StorageState

from services.core.runtime.processes import ProcessIdentity
from tests.testbed.browser import Visit, build_dashboard, chromium, sign_in, visit
from tests.testbed.platform import Platform, platform
from tests.waiting import HANG_S
from weft import Client, Job

SMALL = {"cpus": 0.2, "memory": "64MiB"}
JSONL = [{"type": "jsonl"}]
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
"""An image of one pixel."""
Open = Callable[..., Visit]
Submit = Callable[..., Job]
Completed = Callable[[str], str]


@pytest.fixture(scope="package")
def weft_up() -> Iterator[Platform]:
    build_dashboard()
    # A search of a million lines stops for its time again and again, and takes long on a busy machine.
    # The GPUs are slots without devices.
    with platform(
        {
            "WEFT_NODE_CPUS": "4",
            "WEFT_NODE_GPUS": "3",
            "WEFT_METRICS_SEARCH_S": "0.25",
            "WEFT_TENANT_SEARCH_S": "600",
            "WEFT_GPU_IDLE_S": "20",
            "WEFT_GPU_IDLE_SHARE": "0.5",  # a learner that waits in a shell starts a process again and again
        }
    ) as running:
        yield running


@pytest.fixture(scope="package")
def browser(weft_up: Platform) -> Iterator[Browser]:
    # Started after the platform: its library keeps an event loop running in this thread, to the last test of this
    # package.
    assert weft_up.url
    with chromium() as running:
        yield running


@pytest.fixture(scope="package")
def state(browser: Browser, weft_up: Platform) -> StorageState:
    with visit(browser, weft_up.url) as opened:
        return sign_in(opened, weft_up.key)


@pytest.fixture
def open_visit(browser: Browser, weft_up: Platform, state: StorageState) -> Iterator[Open]:
    """Opens visits that are signed in; they are checked and closed at the end of the test."""
    with ExitStack() as visits:
        yield lambda **options: visits.enter_context(visit(browser, weft_up.url, state=state, **options))


@pytest.fixture
def client(weft_up: Platform) -> Iterator[Client]:
    with Client(weft_up.url, weft_up.key) as client:
        yield client


@pytest.fixture
def submit(client: Client) -> Submit:
    def submitted(command: str, **fields: Any) -> Job:
        spec = {"name": "seen", "command": command, "resources": SMALL, "grace": "2s", "metrics": JSONL, **fields}
        return client.jobs.submit(spec)

    return submitted


@pytest.fixture(scope="package")
def begun(weft_up: Platform) -> Iterator[dict[str, Job]]:
    """Jobs that end by themselves, by what they show. Those that take long run while other tests do."""
    loss = (
        "import json,os; seed = int(os.environ['SEED'])\nfor s in range(20): print(json.dumps(dict(step=s, loss=%s)))"
    )
    curve = f'python3 -c "{loss % "1 / (s + seed)"}"'
    wrong = f"echo ordinary line; {curve}; echo 'ValueError: label 11 is out of range' >&2; exit 3"
    image = f"echo {PNG} | base64 -d > $RESULT_DIR/plot.png"
    green = r"printf '\033[32mgreen\033[0m\n'"
    colours = r"\x1b[31mx\x1b[32my"
    jobs: dict[str, dict[str, Any]] = {
        "good": {
            "name": "good",
            "command": f"{curve}; {green}; echo 42 > $RESULT_DIR/answer.txt; {image}",
            "learners": 2,
        },
        "failed": {"name": "broken", "command": wrong},
        **{
            f"seed-{seed}": {"name": "seeds", "command": curve, "env": {"SEED": str(seed)}, "tags": ["group=five"]}
            for seed in range(1, 6)
        },
        "lines": {"name": "lines", "command": "seq -f 'line %.0f' 1 2000"},
        "colours": {
            "name": "colours",
            "command": f"""python3 -c "for n in range(900): print(n, '{colours}' * 1300)" """,
        },
        "files": {"name": "files", "command": 'for n in $(seq 600); do echo $n > "$RESULT_DIR/sample-$n"; done'},
        "long": {"name": "long", "command": "seq -f 'line %.0f' 1 1000000"},
    }
    with Client(weft_up.url, weft_up.key) as client:
        common = {"resources": SMALL, "metrics": JSONL}
        yield {name: client.jobs.submit({**common, "env": {"SEED": "1"}, **spec}) for name, spec in jobs.items()}


@pytest.fixture(scope="package")
def finished(begun: dict[str, Job]) -> dict[str, str]:
    """Ids of the short ones of these jobs, which have ended."""
    short = {name: job for name, job in begun.items() if name not in {"lines", "colours", "files", "long"}}
    return {name: job.wait(HANG_S).id for name, job in short.items()}


@pytest.fixture
def completed(begun: dict[str, Job]) -> Completed:
    """Waits until one of these jobs has ended well, and returns its id."""

    def wait(name: str) -> str:
        job = begun[name].wait(4 * HANG_S)  # a million lines take long on a busy machine
        assert job.status == "COMPLETED"
        return job.id

    return wait


@pytest.fixture
def api_restarts(weft_up: Platform) -> Callable[[], ProcessIdentity]:
    """Kills the api; the supervisor starts it again."""
    return lambda: weft_up.kill("api")
