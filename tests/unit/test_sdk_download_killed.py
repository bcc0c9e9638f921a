"""A download that is killed at any moment goes on when the command is given again."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.testbed.scripted_http import Answer, Request, json_answer, scripted
from weft import Client

SMALL, LARGE = b"small", b"\0" * 1_000_000
# The kernel kills the process when it writes a file of more than 100,000 bytes: no line of Python runs after that.
KILLED = """
import resource, signal, sys
from pathlib import Path
from weft import Client
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
url, folder, what = sys.argv[1:]
Client(url, "weft_k_s").jobs.download("j1", Path(folder), what=what, force=False, unpacked=True)
"""


def archive() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr("a", SMALL)
        zipped.writestr("b", LARGE)
    return packed.getvalue()


@pytest.mark.parametrize("what", ["results", "code"])
def test_a_killed_download_goes_on_and_takes_no_file_of_its_own_for_a_local_one(tmp_path: Path, what: str) -> None:
    results = {"attempts/1/results/a": SMALL, "attempts/1/results/b": LARGE}
    contents = results if what == "results" else {"code.zip": archive()}

    def answer(request: Request, _n: int) -> Answer:
        path = request.path.partition("?")[0].partition("/artifacts")[2].lstrip("/")
        if path:
            start = int(request.headers.get("range", "").removeprefix("bytes=").rstrip("-") or 0)
            return Answer(206 if start else 200, contents[path][start:], {"ETag": '"v1"'})
        listed = [
            {"path": name, "size": len(content), "etag": "v1", "modified": "2026-11-21T13:20:00Z"}
            for name, content in contents.items()
        ]
        return json_answer({"artifacts": listed, "next": None})

    with scripted(answer) as server:
        command = [sys.executable, "-c", KILLED, server.url, str(tmp_path), what]
        assert subprocess.run(command, check=False).returncode < 0
        assert (tmp_path / "a").read_bytes() == SMALL
        with Client(server.url, "weft_k_s") as client:
            fetched = client.jobs.download("j1", tmp_path, what=what, force=False, unpacked=True)
    assert [path.read_bytes() for path in fetched] == [SMALL, LARGE]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".weft-download", "a", "b"]
