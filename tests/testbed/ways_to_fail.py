"""Ways in which a job fails, as jobs that do so, and the page that shows what `weft explain` prints of each."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from services.local.commands import PLATFORM
from tests.testbed.platform import Platform
from tests.waiting import HANG_S, eventually
from weft import Client
from weft._cli.explanation import explanation
from weft._job import Job

COLUMNS: Final = 110
PAGE: Final = Path(__file__).parents[2] / "docs" / "failures.md"
SETTINGS: Final = {"WEFT_NODE_CPUS": "4"}
"""Of the platform on which the page is made."""
_PYTHON: Final = "python3 train.py"
_SMALL: Final = {"cpus": 0.1, "memory": "64MiB"}
HEAD: Final = """# How jobs fail

Each job of this page was run, and the text below it is what `weft explain JOB` prints (without the steps of the
start-up). `python scripts/failures.py` runs all of them again and writes the page; a test compares it. Numbers that
differ from run to run are replaced by N.
"""


@dataclass(frozen=True, slots=True)
class Way:
    """A job that fails in one way."""

    title: str
    code: str = ""
    """Content of train.py; empty: no code is sent."""
    command: str = _PYTHON
    spec: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the spec."""
    requirements: str = ""
    waits_for: str = ""
    """The reason for which it waits in the queue; empty: it ends by itself."""
    killed: bool = False
    """Its owner kills it."""
    enforced: str = ""
    """What the machine must enforce for this failure: memory. Empty: nothing."""


WAYS: Final = (
    Way("A package is missing", "import pandos\n"),
    Way("A package has another version than the code was written for", "from json import fast_loads\n"),
    Way("An exception in the code", "def mean(values):\n    return sum(values) / len(values)\n\nprint(mean([]))\n"),
    Way("An error of syntax", "for step in range(10)\n    print(step)\n"),
    Way(
        "The loss is NaN",
        (
            "import math\nimport weft\n\nloss = math.nan\nweft.report(step=1, loss=loss)\n"
            "if math.isnan(loss):\n    raise FloatingPointError('loss is NaN at step 1')\n"
        ),
    ),
    Way("The program ends with an exit code", "import sys\nsys.exit(3)\n"),
    Way("A native library crashes (SIGSEGV)", "import ctypes\nctypes.string_at(0)\n"),
    Way("Something outside kills the process (SIGKILL)", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"),
    Way("The memory limit is reached", "data = b'x' * 2**28\n", enforced="memory"),
    Way("Python finds no memory", "data = bytearray(2**60)\n"),
    Way("A file is missing", "open('data/train.csv')\n"),
    Way("The disk is full", "with open('/dev/full', 'w') as file:\n    file.write('weights')\n"),
    Way(
        "A port is in use",
        "import socket\n\nfirst = socket.create_server(('127.0.0.1', 0))\nsocket.create_server(first.getsockname())\n",
    ),
    Way(
        "Nothing listens at an address",
        (
            "import socket\n\nlistener = socket.socket()\nlistener.bind(('127.0.0.1', 0))\n"
            "socket.create_connection(listener.getsockname())\n"
        ),
    ),
    Way("The program of the command does not exist", command="transcode --fast"),
    Way("The program of the command may not be run", "print('hello')\n", "./train.py"),
    Way("The file of the command was not sent", "print('hello')\n", "python3 main.py"),
    Way(
        "requirements.txt wants another version than the framework has",
        "import numpy\n",
        requirements="numpy==1.26.4\n",
        spec={"framework": "numpy"},
    ),
    Way("requirements.txt cannot be read", "print('hello')\n", requirements="rich\ngit+https://example.org/x\n"),
    Way(
        "The data is where the operator allows none",
        "print('hello')\n",
        spec={
            "data_stores": [{"id": "d", "type": "local", "path": "/srv/missing"}],
            "inputs": [{"store": "d", "mount": "d"}],
        },
    ),
    Way(
        "One learner of a gang fails, and its retries are used up",
        ("import os, time\n\nif os.environ['WEFT_RANK'] == '1':\n    raise ValueError('bad shard')\ntime.sleep(600)\n"),
        spec={"learners": 2, "retries": {"max": 1, "backoff": "10ms"}},
    ),
    Way("max_runtime is over", "import time\ntime.sleep(600)\n", spec={"max_runtime": "1s"}),
    Way(
        "The cluster is too small", "print('hello')\n", spec={"resources": {"cpus": 64}}, waits_for="TooLargeForCluster"
    ),
    Way("Its owner kills it", "import time\ntime.sleep(600)\n", killed=True),
)

_VOLATILE: Final = (
    (re.compile(r"\bj[0-9a-z]{22}\b"), "JOB"),
    (re.compile(r"\b\d+(?:\.\d+)? s\b|\b\d+ min \d+ s\b"), "N s"),
    (re.compile(r"place \d+"), "place N"),
    (re.compile(r"'127\.0\.0\.1', \d+"), "'127.0.0.1', N"),
    (re.compile(r"\(/\S*/json/"), "(.../json/"),
    (re.compile(r"numpy 2\.\d\.\d, and"), "numpy 2.N.N, and"),
)


def ways(platform: Platform) -> list[Way]:
    """Those that the machine can show."""
    enforced = PLATFORM.status(str(platform.home.root))["isolation"]["enforced"]
    return [way for way in WAYS if not way.enforced or way.enforced in enforced]


def sections(client: Client, chosen: Collection[Way], folder: Path) -> dict[str, str]:
    """Runs the jobs, several at a time. Returns the section of the page of each, by title."""
    with ThreadPoolExecutor(max_workers=6) as pool:
        texts = pool.map(lambda way: _section(client, way, folder), chosen)
        return {way.title: text for way, text in zip(chosen, texts, strict=True)}


def page(texts: Mapping[str, str]) -> str:
    """The whole page."""
    return "\n".join([HEAD, *texts.values()])


def written() -> dict[str, str]:
    """The sections of the committed page."""
    _, *parts = re.split(r"(?m)^(?=## )", PAGE.read_text())
    return {part.partition("\n")[0].removeprefix("## "): part.rstrip("\n") + "\n" for part in parts}


def _section(client: Client, way: Way, folder: Path) -> str:
    job = _submitted(client, way, folder)
    try:
        answer = _explained(job, way)
    finally:
        if not job.refresh().at_rest:
            job.kill()
            job.wait(HANG_S)
    shown = {"summary": _masked(answer["summary"]), "cause": _masked(answer["cause"])}
    text = explanation({**shown, "hints": [_masked(hint) for hint in answer["hints"]]}, "JOB", COLUMNS)
    return "\n".join([f"## {way.title}", "", *_source(way), "    $ weft explain JOB", *_indented(text), ""])


def _masked(text: str) -> str:
    for pattern, mask in _VOLATILE:
        text = pattern.sub(mask, text)
    return text


def _submitted(client: Client, way: Way, folder: Path) -> Job:
    code = folder / str(WAYS.index(way)) if way.code else None
    if code is not None:
        code.mkdir()
        (code / "train.py").write_text(way.code)
        if way.requirements:
            (code / "requirements.txt").write_text(way.requirements)
    spec = {"name": "fails", "command": way.command, "resources": _SMALL, "grace": "1s", **way.spec}
    return client.jobs.submit(spec, code=code)


def _explained(job: Job, way: Way) -> dict[str, Any]:
    """The explanation of the job that has ended, or that waits."""
    if way.waits_for:
        return eventually(lambda: _waits(job, way))
    if way.killed:
        eventually(lambda: job.refresh().status == "PROCESSING")
        job.kill()
    return job.wait(HANG_S).explain()


def _waits(job: Job, way: Way) -> dict[str, Any]:
    """Its explanation once it waits for the expected reason; empty without its place, which a busy dispatcher omits."""
    answer = job.explain()
    return answer if answer["pending_reason"] == way.waits_for and "queue_position" in answer else {}


def _source(way: Way) -> Iterator[str]:
    """What the user wrote: spec, requirements, code."""
    yield from _indented(
        "\n".join([f"command: {way.command}", *(f"{name}: {_flow(value)}" for name, value in way.spec.items())])
    )
    yield ""
    if way.requirements:
        yield from ["requirements.txt:", "", *_indented(way.requirements.rstrip("\n")), ""]
    if way.code:
        yield from ["train.py:", "", *_indented(way.code.rstrip("\n")), ""]


def _flow(value: object) -> str:
    return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1000).removesuffix("...\n").strip()


def _indented(text: str) -> list[str]:
    return [f"    {line}".rstrip() for line in text.split("\n")]
