"""Tricks of a user: what is sent to the api, and what is in a spec, an archive or a file of requirements."""

from __future__ import annotations

import http.client
import io
import json
import stat
import struct
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, Final
from urllib.parse import urlsplit

import grpc

from services.core.gen.weft.v1 import jobs_pb2, jobs_pb2_grpc
from tests.contract.hostile import SMALL as TEXTS
from tests.hostile.arena import BOUNDS, VICTIM, VICTIMS_KEY, Arena, archive, raw_archive
from tests.hostile.trick import Trick, judge, of_request, seen
from tests.waiting import HANG_S, eventually
from weft import WeftError
from weft._job import Job

_ANSWER_S: Final = 60.0
_ANY_END: Final = frozenset({"COMPLETED", "FAILED"})
_UP: Final = (
    "../../../../etc/passwd", "..%2f..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/secrets/service", "..\\..\\secrets",
    "/etc/passwd", "%00", "%ff", "....//....//etc/passwd", "tenants/acme", "attempts/../../../../secrets/service",
    "results/..%252f..%252fsecrets", "%c0%ae%c0%ae/", ";/../..", "worker-0/../../../../../secrets/master-key",
)  # fmt: skip


def _raw(
    arena: Arena, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> tuple[int, bytes]:
    """A request as it stands: no client puts the path in order first. Returns (status, body); (0, b"") if it is cut."""
    parts = urlsplit(arena.weft.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_ANSWER_S)
    with closing(connection):
        try:
            connection.putrequest(method, path, skip_accept_encoding=True)
            given = {
                "Authorization": f"Bearer {arena.attacker_key}",
                "Content-Length": str(len(body)),
                **(headers or {}),
            }
            for name, value in given.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            return answer.status, answer.read(1_000_000)
        except (OSError, http.client.HTTPException):
            return 0, b""


def _submit(arena: Arena, document: object) -> tuple[int, dict[str, Any]]:
    body = json.dumps(document).encode("utf-8", "surrogatepass")
    return _submit_text(arena, body, "application/json")


def _submit_text(arena: Arena, body: bytes, kind: str) -> tuple[int, dict[str, Any]]:
    status, answer = _raw(arena, "POST", "/v1/jobs", body, {"Content-Type": kind})
    try:
        return status, dict(json.loads(answer))
    except ValueError:
        return status, {}


def _never_5xx(arena: Arena, documents: Iterable[tuple[str, object]]) -> Iterator[str]:
    """Submits each; what is accepted is killed and must end."""
    for name, document in documents:
        status, answer = _submit(arena, document)
        if status == 201:
            yield from _end(arena, arena.attacker.jobs.get(str(answer["id"])))
        elif not 400 <= status < 500:
            yield f"{name}: {status} {str(answer)[:200]}"


def _end(arena: Arena, job: Job) -> Iterator[str]:
    arena.jobs.add(job.id)
    job.kill()
    yield from judge(arena, job, ends={"KILLED", "COMPLETED", "FAILED"}, reads=False)


def _spec(**fields: object) -> dict[str, object]:
    return {"name": "hostile", "command": "echo hello", **BOUNDS, **fields}


# --- other tenants ----------------------------------------------------------------------------------------------------


@of_request("tenants", quick=True)
def others_jobs_over_rest(arena: Arena) -> Iterator[str]:
    """Every route of the REST API with the ids of the victim's jobs."""
    document = json.loads(_raw(arena, "GET", "/openapi.json")[1])
    for path, methods in document["paths"].items():
        if "{job_id}" not in path:
            continue
        for job in (arena.guard.id, arena.vault.id):
            place = path.replace("{job_id}", job).replace("{path}", "attempts/1/results/worker-0/key")
            for method in methods:
                status, body = _raw(arena, method.upper(), f"{place}?kill=true", b"{}" if method != "get" else b"")
                if status != 404 and not (status == 400 and method == "patch"):
                    yield f"{method} {place}: {status} {body[:200]!r}"
                yield from seen(arena, place, body.decode("latin-1"))


@of_request("tenants")
def others_jobs_over_grpc(arena: Arena) -> Iterator[str]:
    """Every call of the gRPC API with the ids of the victim's jobs."""
    metadata = (("authorization", f"Bearer {arena.attacker_key}"),)
    requests: list[tuple[str, Callable[[str], object]]] = [
        ("GetJob", lambda job: jobs_pb2.GetJobRequest(id=job)),
        ("HaltJob", lambda job: jobs_pb2.ChangeJobRequest(id=job)),
        ("ResumeJob", lambda job: jobs_pb2.ChangeJobRequest(id=job)),
        ("KillJob", lambda job: jobs_pb2.ChangeJobRequest(id=job)),
        ("DeleteJob", lambda job: jobs_pb2.DeleteJobRequest(id=job, kill=True)),
        ("GetHistory", lambda job: jobs_pb2.GetHistoryRequest(id=job)),
        ("ExplainJob", lambda job: jobs_pb2.GetJobRequest(id=job)),
        ("GetProgress", lambda job: jobs_pb2.GetJobRequest(id=job)),
        ("GetLogs", lambda job: jobs_pb2.GetLogsRequest(id=job)),
        ("FollowLogs", lambda job: jobs_pb2.GetLogsRequest(id=job)),
        ("GetMetrics", lambda job: jobs_pb2.GetMetricsRequest(id=job)),
        ("GetSeries", lambda job: jobs_pb2.GetMetricsRequest(id=job)),
        ("FollowMetrics", lambda job: jobs_pb2.GetMetricsRequest(id=job)),
        ("FollowEvents", lambda job: jobs_pb2.FollowEventsRequest(id=job)),
        ("ListArtifacts", lambda job: jobs_pb2.ListArtifactsRequest(id=job)),
        ("GetArtifact", lambda job: jobs_pb2.GetArtifactRequest(id=job, path="attempts/1/results/worker-0/key")),
    ]
    with grpc.insecure_channel(arena.weft.home.address("api-grpc")) as channel:
        stub = jobs_pb2_grpc.JobsStub(channel)
        for name, request in requests:
            for job in (arena.guard.id, arena.vault.id):
                try:
                    reply = getattr(stub, name)(request(job), metadata=metadata, timeout=_ANSWER_S)
                    text = str(reply if not hasattr(reply, "__next__") else [*reply])
                except grpc.RpcError as error:
                    if error.code() is not grpc.StatusCode.NOT_FOUND:  # type: ignore[attr-defined]
                        yield f"{name}: {error.code()}"  # type: ignore[attr-defined]
                else:
                    yield f"{name} answers with {text[:200]}"


@of_request("tenants")
def another_tenant_is_named(arena: Arena) -> Iterator[str]:
    """The victim's tenant in parameters and headers, keys for it, its code by digest, its idempotency key."""
    spec = json.dumps(_spec()).encode()
    for path in (f"/v1/jobs?tenant={VICTIM}", "/v1/jobs?tenant=*", f"/v1/queue?tenant={VICTIM}", "/v1/queue?tenant=*"):
        status, body = _raw(arena, "GET", path)
        if status != 403:
            yield f"GET {path}: {status} {body[:200]!r}"
    status, body = _raw(arena, "POST", f"/v1/jobs?tenant={VICTIM}", spec, {"Content-Type": "application/json"})
    if status != 403:
        yield f"a job for another tenant: {status} {body[:200]!r}"
    for wanted in ({"tenant": VICTIM}, {"user": VICTIM}, {"scope": "admin"}):
        body = json.dumps({"name": "x", **wanted}).encode()
        if (status := _raw(arena, "POST", "/v1/keys", body, {"Content-Type": "application/json"})[0]) != 403:
            yield f"a key for {wanted}: {status}"
    headers = {
        "X-Weft-Tenant": VICTIM,
        "X-Forwarded-User": "admin",
        "X-Weft-User": "admin",
        "X-Original-URL": "/v1/keys",
    }
    who = json.loads(_raw(arena, "GET", "/v1/whoami", headers=headers)[1])
    if who["tenant"] == VICTIM or who["scope"] == "admin":
        yield f"headers change the caller: {who}"
    digest = arena.vault.document["code"]["digest"] if arena.vault.document.get("code") else ""
    kind = {"Content-Type": "application/json"}
    status, body = _raw(arena, "POST", f"/v1/jobs?code_digest={digest}", spec, kind)
    if digest and status == 201:
        yield f"the victim's code by its digest: {status} {body[:200]!r}"
    status, body = _raw(arena, "POST", "/v1/jobs", spec, {**kind, "Idempotency-Key": VICTIMS_KEY})
    if arena.vault.id.encode() in body:
        yield "the victim's idempotency key gives the victim's job"
    if status == 201:
        yield from _end(arena, arena.attacker.jobs.get(str(json.loads(body)["id"])))


@of_request("tenants")
def paths_lead_above(arena: Arena) -> Iterator[str]:
    """Paths that lead above, in every parameter of every route, raw and encoded once and twice."""
    job = arena.submit({"name": "own", "command": "echo own > $RESULT_DIR/own"})
    yield from judge(arena, job, finishes=False)
    for up in _UP:
        for path in (
            f"/v1/jobs/{up}", f"/v1/jobs/{job.id}/artifacts/{up}", f"/v1/jobs/{job.id}/artifacts?prefix={up}",
            f"/v1/jobs/{job.id}/logs?role={up}", f"/v1/jobs/{job.id}/metrics?name={up}", f"/v1/keys/{up}",
            f"/{up}", f"/v1/jobs/{job.id}/{up}", f"/v1/jobs?tag={up}&name={up}&after={up}",
        ):  # fmt: skip
            status, body = _raw(arena, "GET", path)
            if status >= 500:
                yield f"GET {path}: {status} {body[:200]!r}"
            yield from seen(arena, path, body.decode("latin-1"))
            if b"root:x:0" in body:
                yield f"GET {path} gives /etc/passwd"


@of_request("tenants")
def requests_are_malformed(arena: Arena) -> Iterator[str]:
    """Two lengths, endless headers, chunks that lie, a body that is never sent, and bytes that are no HTTP."""
    parts = urlsplit(arena.weft.url)
    key = arena.attacker_key.encode()
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + key + b"\r\n"
    smuggled = b"GET /v1/keys HTTP/1.1\r\nHost: x\r\n\r\n"
    for text in (
        head + b"Content-Length: 5\r\nContent-Length: 60\r\n\r\n" + smuggled,
        head + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n" + smuggled,
        head + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\n" + b"x" * 1_000,
        head + b"Content-Length: -1\r\n\r\n", head + b"Content-Length: 99999999999999999999\r\n\r\n{}",
        head + b"X: " + b"y" * 2_000_000 + b"\r\n\r\n", b"GET " + b"/" * 500_000 + b" HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00" + b"\x00" * 100, b"\x00" * 1_000, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 1_000,
    ):  # fmt: skip
        connection = http.client.socket.create_connection((parts.hostname or "", parts.port or 0), timeout=3)
        with closing(connection):
            answer = b""
            try:
                connection.sendall(text)
                while chunk := connection.recv(65_536):
                    answer += chunk
            except OSError:
                pass
            if b" 500 " in answer[:50] or b'"keys"' in answer:
                yield f"{text[:80]!r}: {answer[:200]!r}"


@of_request("tenants")
def uploads_are_cut_off(arena: Arena) -> Iterator[str]:
    """Uploads of code that end in the middle, and such that promise more than is accepted."""
    parts = urlsplit(arena.weft.url)
    before = len([*(arena.weft.home.root / "uploads").rglob("*")])
    for number in range(20):
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_ANSWER_S)
        with closing(connection):
            boundary = f"b{number}"
            body = (
                f'--{boundary}\r\nContent-Disposition: form-data; name="spec"\r\n\r\n{json.dumps(_spec())}\r\n'
                f'--{boundary}\r\nContent-Disposition: form-data; name="code"; filename="../../x.zip"\r\n\r\n'
            )
            connection.putrequest("POST", "/v1/jobs")
            connection.putheader("Authorization", f"Bearer {arena.attacker_key}")
            connection.putheader("Content-Type", f"multipart/form-data; boundary={boundary}")
            connection.putheader("Content-Length", str(10**8 * (1 + number % 2 * 100)))
            connection.endheaders(body.encode() + b"x" * 100_000)
    eventually(lambda: len([*(arena.weft.home.root / "uploads").rglob("*")]) <= before)
    yield from ()


# --- specs ------------------------------------------------------------------------------------------------------------


@of_request("specs")
def texts_are_hostile(arena: Arena) -> Iterator[str]:
    """Names, tags, descriptions, roles, variables and commands with NUL, operators of stores, surrogates, and 100 kB."""
    for name, text in TEXTS.items():
        yield from _never_5xx(
            arena,
            [
                (f"name: {name}", _spec(name=text)),
                (f"tag: {name}", _spec(tags=[text])),
                (f"description: {name}", _spec(description=text)),
                (f"role: {name}", _spec(roles={text: {"count": 1}})),
                (f"variable: {name}", _spec(env={text: text, "A": text})),
                (f"framework: {name}", _spec(framework=text)),
            ],
        )


@of_request("specs")
def variables_are_huge(arena: Arena) -> Iterator[str]:
    """Two hundred variables of 60 kB: more than a process can be given."""
    try:
        job = arena.submit({"name": "env", "command": "true", "env": {f"V{n}": "x" * 60_000 for n in range(3)}})
    except WeftError as refused:
        if not 400 <= refused.status < 500:
            yield str(refused)
    else:
        yield from judge(arena, job, ends=_ANY_END, finishes=False)
    yield from _never_5xx(arena, [("variables", _spec(env={f"V{n}": "x" * 60_000 for n in range(200)}))])
    yield from _never_5xx(arena, [("many variables", _spec(env={f"V{n}": "" for n in range(15_000)}))])


@of_request("specs")
def variables_have_lines(arena: Arena) -> Iterator[str]:
    """Variables whose values hold lines, assignments and commands of a shell: they stay values."""
    value = "a\nLD_PRELOAD=x\n$(touch /tmp/hostile)\n`id`\n'\"; exit 1\n"
    job = arena.submit({"name": "lines", "command": 'printf %s "$V" > $RESULT_DIR/v', "env": {"V": value}})
    yield from judge(arena, job, finishes=False)
    stored = [path for path in arena.weft.home.root.glob(f"objects/tenants/*/jobs/{job.id}/**/v") if path.is_file()]
    if [path.read_text() for path in stored] != [value]:
        yield f"the value has become {[path.read_text() for path in stored]}"


@of_request("specs")
def learners_are_ten_thousand(arena: Arena) -> Iterator[str]:
    """Ten thousand learners of a ten-thousandth of a CPU each."""
    yield from _never_5xx(
        arena,
        [("learners", _spec(learners=10_000, resources={"cpus": 0.0001, "memory": "1MiB"}))],
    )


@of_request("specs")
def commands_are_huge(arena: Arena) -> Iterator[str]:
    """Commands of a megabyte, and of the longest that is accepted."""
    status, answer = _submit(arena, _spec(command="x" * 2**20))
    if not 400 <= status < 500:
        yield f"a command of 1 MiB: {status} {str(answer)[:200]}"
    try:
        job = arena.submit({"name": "long", "command": "true " + "\u00e9" * 32_000})
    except WeftError as refused:
        if not 400 <= refused.status < 500:
            yield str(refused)
    else:
        yield from judge(arena, job, ends=_ANY_END, finishes=False)


@of_request("specs", quick=True)
def yaml_is_a_bomb(arena: Arena) -> Iterator[str]:
    """YAML that doubles itself, is nested a thousand deep, makes objects of Python, or holds numbers of 10,000 digits."""
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [{','.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(20)
    )
    texts = {
        "aliases": bomb, "nested lists": "name: " + "[" * 5_000 + "]" * 5_000, "nested maps": "{a: " * 5_000 + "}" * 5_000,
        "object": "!!python/object/apply:os.system ['touch /tmp/hostile']", "digits": "name: " + "9" * 10_000,
        "merge": "<<: &x {<<: *x}\nname: x\ncommand: x", "self": "&a [*a]", "key": "? [a, b]\n: c", "bytes": "name: !!binary x",
        "sexagesimal": "name: " + "1:" * 5_000 + "1", "NUL": "name: \0", "BOM": "\ufeff\ufeffname: x", "documents": "---\n" * 50_000,
        "tags": "name: !<tag:yaml.org,2002:python/name:os.system> x", "anchors": "\n".join(f"k{n}: &a{n} x" for n in range(20_000)),
    }  # fmt: skip
    for name, text in texts.items():
        began = time.monotonic()
        status, answer = _submit_text(arena, text.encode("utf-8", "surrogatepass"), "application/yaml")
        if not 400 <= status < 500:
            yield f"{name}: {status} {str(answer)[:200]}"
        if (took := time.monotonic() - began) > 20:
            yield f"{name}: answered after {took:.0f} s"
    status, answer = _submit_text(arena, b"[" * 100_000, "application/json")
    if not 400 <= status < 500:
        yield f"JSON: {status} {str(answer)[:200]}"


@of_request("specs")
def inputs_are_of_others(arena: Arena) -> Iterator[str]:
    """Data stores at the platform's own folders, at links to them, and at addresses inside the machine."""
    home = arena.weft.home.root
    addresses = arena.weft.home.addresses()
    stores = [
        {"type": "local", "path": str(path)}
        for path in (home, home / "secrets", home / "objects", "/", "/etc", f"{arena.data}/../..", "/proc/self/root")
    ]
    urls = [f"http://{address}/" for address in addresses.values() if ":" in str(address) and "/" not in str(address)]
    urls += ["http://169.254.169.254/latest", "http://[::1]:80/", "http://localhost/", "http://0/", "http://127.1/"]
    stores += [{"type": "http", "url": url} for url in urls]
    for store in stores:
        spec = {"name": "input", "command": "find $DATA_DIR/ -type f | head -50 | xargs cat"}
        status, answer = _submit(arena, _spec(**spec, data_stores=[{"id": "s", **store}], inputs=[{"store": "s"}]))
        if status == 201:
            job = arena.attacker.jobs.get(str(answer["id"]))
            arena.jobs.add(job.id)
            for failure in judge(arena, job, ends={"FAILED"}, finishes=False):
                yield f"{store}: {failure}"
        elif not 400 <= status < 500:
            yield f"{store}: {status}"


@of_request("specs")
def paths_of_a_spec_lead_above(arena: Arena) -> Iterator[str]:
    """Mounts inside one another, and paths of checkpoints, metrics and inputs that lead above."""
    store = {"id": "s", "type": "local", "path": str(arena.data)}
    documents: list[tuple[str, object]] = []
    for up in ("..", "../x", "a/../../x", "/etc", "a/../..", ".", "a\\..\\..", "~", "a//../.."):
        documents += [
            (f"checkpoint {up}", _spec(checkpoint={"path": up})),
            (f"metrics {up}", _spec(metrics=[{"type": "jsonl", "path": up}])),
            (f"mount {up}", _spec(data_stores=[store], inputs=[{"store": "s", "mount": up}])),
            (f"input {up}", _spec(data_stores=[store], inputs=[{"store": "s", "path": up}])),
        ]
    yield from _never_5xx(arena, documents)
    for mounts in (("a", "a/imagenet"), ("a/imagenet", "a"), ("a", "a"), ("a", "./a/b"), ("a/", "a//b")):
        inputs = [{"store": "s", "mount": mount} for mount in mounts]
        status, answer = _submit(arena, _spec(data_stores=[store], inputs=inputs))
        if status != 422 and status != 400:
            yield f"mounts {mounts}: {status} {str(answer)[:200]}"


# --- code -------------------------------------------------------------------------------------------------------------


def _zip(*entries: tuple[str, bytes, int]) -> bytes:
    """``entries``: (name, content, mode)."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content, mode in entries:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            info.create_system = 3
            packed.writestr(info, content)
    return buffer.getvalue()


def _with_archives(arena: Arena, archives: Mapping[str, bytes], command: str = "find . | head -100") -> Iterator[str]:
    """Submits a job with each; it is refused, or ends."""
    for name, content in archives.items():
        with raw_archive(content) as code:
            try:
                job = arena.submit({"name": "archive", "command": command}, code)
            except WeftError as refused:
                if not 400 <= refused.status < 500:
                    yield f"{name}: {refused}"
                continue
        for failure in judge(arena, job, ends=_ANY_END, finishes=False):
            yield f"{name}: {failure}"


@of_request("code")
def archive_leaves_its_folder(arena: Arena) -> Iterator[str]:
    """Archives with paths that lead above, are absolute, or go through a link of the archive itself."""
    home = arena.weft.home.root
    link, file = stat.S_IFLNK | 0o777, stat.S_IFREG | 0o644
    yield from _with_archives(
        arena,
        {
            "above": _zip(("../../../hostile", b"x", file), ("ok", b"x", file)),
            "absolute": _zip((f"{home}/run/hostile", b"x", file), ("/tmp/hostile", b"x", file)),
            "backslashes": _zip(("..\\..\\hostile", b"x", file), ("C:\\hostile", b"x", file)),
            "through a link": _zip(("out", str(home).encode(), link), ("out/run/hostile", b"x", file)),
            "link to a secret": _zip(("key", f"{home}/secrets/service".encode(), link)),
            "link above": _zip(("up", b"../../..", link), ("up/learner.json", b"{}", file)),
        },
        "cat key up/* out/*; ls -la; exit 0",
    )
    for place in (home / "run" / "hostile", home / "node" / "hostile", home / "hostile"):
        if place.exists():
            yield f"the archive has written {place}"


@of_request("code")
def archive_is_a_bomb(arena: Arena) -> Iterator[str]:
    """A gibibyte of zeros in a megabyte, sizes that lie, and fifty thousand empty files."""
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed,
        packed.open("zeros", "w") as file,
    ):
        for _ in range(1_024):
            file.write(bytes(2**20))
    bomb = buffer.getvalue()
    small = bytearray(_zip(("x", b"x" * 100_000, stat.S_IFREG | 0o644)))
    at = small.rindex(b"PK\x01\x02")
    lies = bytes(small[: at + 24]) + struct.pack("<I", 10) + bytes(small[at + 28 :])
    many = _zip(*((f"{number}", b"", stat.S_IFREG | 0o644) for number in range(50_000)))
    yield from _with_archives(arena, {"bomb": bomb, "size that lies": lies, "many": many}, "ls | wc -l; du -sm .")


@of_request("code")
def archive_is_strange(arena: Arena) -> Iterator[str]:
    """Devices, duplicates, names that differ in case only or hold NUL and lines, a deep path, encryption, and no zip."""
    file = stat.S_IFREG | 0o644
    device, pipe, setuid = stat.S_IFBLK | 0o666, stat.S_IFIFO | 0o666, stat.S_IFREG | 0o6777
    plain = _zip(("a", b"x", file))
    encrypted = bytearray(plain)
    encrypted[6] |= 1
    encrypted[encrypted.rindex(b"PK\x01\x02") + 8] |= 1
    yield from _with_archives(
        arena,
        {
            "devices": _zip(("disk", b"", device), ("pipe", b"", pipe), ("root", b"x", setuid)),
            "case": _zip(("A", b"1", file), ("a", b"2", file), ("a/b", b"3", file)),
            "names": _zip(("new\nline", b"x", file), ("\x1b[2J", b"x", file), (" ", b"x", file), ("n" * 255, b"x", file)),
            "long": _zip(("n" * 5_000, b"x", file)),
            "deep": _zip(("d/" * 3_000 + "x", b"x", file)),
            "encrypted": bytes(encrypted),
            "no zip": b"PK\x03\x04" + b"\xff" * 1_000,
            "empty": b"PK\x05\x06" + bytes(18),
            "cut off": plain[:-10],
            "file and folder": _zip(("x", b"1", file), ("x/y", b"2", file)),
            "platform's names": _zip(("../exit.json", b"{}", file), ("metrics.jsonl", b"x", file)),
        },
    )  # fmt: skip


@of_request("code")
def requirements_have_options(arena: Arena) -> Iterator[str]:
    """requirements.txt with options, addresses, paths, editable packages, files of the platform, and a setup.py."""
    home = arena.weft.home.root
    setup = b"import os, pathlib\npathlib.Path('/tmp/hostile-setup').write_text('x')\nprint(os.environ)\n"
    for line in (
        f"-r {home}/secrets/service", "-r /etc/passwd", "--index-url http://127.0.0.1:1/", "-e .", "./package", ".",
        "--find-links /", "x @ file:///etc/passwd", "x @ git+https://127.0.0.1/x", "--config-settings x=y",
        "-c /etc/shadow", "pip; python_version < '0'  -e .", "x\x00y", "--extra-index-url=http://127.0.0.1:1/ x",
        "\u202ex", "a" * 50_000, "${HOME}", "--no-binary :all: x",
    ):  # fmt: skip
        files = {"requirements.txt": f"{line}\n".encode(), "setup.py": setup, "package/setup.py": setup}
        with archive(files) as code:
            job = arena.submit({"name": "requirements", "command": "true", "framework": "python"}, code)
        for failure in judge(arena, job, ends={"FAILED"}, finishes=False):
            yield f"{line[:60]!r}: {failure}"
        yield from seen(arena, f"the message for {line[:60]!r}", job.message)
        if "root:x:0" in job.message:
            yield f"the message for {line[:60]!r} shows a file of the system"


# --- load -------------------------------------------------------------------------------------------------------------


@of_request("load")
def searches_back_track(arena: Arena) -> Iterator[str]:
    """Regular expressions that take for ever, in eight searches at once, while others use the api."""
    job = arena.submit({"name": "lines", "command": "for n in $(seq 200); do printf 'a%.0s' $(seq 200); echo b; done"})
    yield from judge(arena, job, finishes=False, reads=False)
    patterns = [
        "(a+)%2B$",
        "(a|aa)*c",
        "(a*)*d",
        "((a+)%2B)%2B$",
        "(.*a){25}",
        "(a{1,1000}){1,1000}",
        "%5B",
        "(?P<x>a)(%3FP=x)",
    ]
    with ThreadPoolExecutor(8) as threads:
        searches = [
            threads.submit(_raw, arena, "GET", f"/v1/jobs/{job.id}/logs?search={pattern}") for pattern in patterns
        ]
        began = time.monotonic()
        arena.victim.jobs.get(arena.vault.id)
        if (took := time.monotonic() - began) > 20:
            yield f"another user waited {took:.0f} s"
        for pattern, search in zip(patterns, searches, strict=True):
            if (status := search.result()[0]) not in {200, 400, 422, 429}:
                yield f"search {pattern}: {status}"


@of_request("load")
def verbs_come_in_storms(arena: Arena) -> Iterator[str]:
    """Halt, resume, kill and delete, fifty at once and in any order, on one job."""
    job = arena.submit({"name": "storm", "command": "sleep 60"})
    verbs = ["halt", "resume", "kill", "halt", "resume"] * 10
    with ThreadPoolExecutor(8) as threads:
        answers = threads.map(lambda verb: _raw(arena, "POST", f"/v1/jobs/{job.id}/{verb}")[0], verbs)
        wrong = [status for status in answers if not (200 <= status < 300 or 400 <= status < 500)]
    if wrong:
        yield f"statuses {wrong}"
    yield from _end_of_storm(job)


def _end_of_storm(job: Job) -> Iterator[str]:
    job.kill()
    job.wait(HANG_S)
    if job.status != "KILLED":
        yield f"the killed job is {job.status}"


@of_request("load")
def submissions_come_in_storms(arena: Arena) -> Iterator[str]:
    """Sixty jobs at once, half of them with one idempotency key; the victim's next job is not starved."""
    body = json.dumps(_spec(command="sleep 30")).encode()

    def submit(number: int) -> tuple[int, bytes]:
        key = {"Idempotency-Key": "storm"} if number % 2 else {}
        return _raw(arena, "POST", "/v1/jobs", body, {"Content-Type": "application/json", **key})

    with ThreadPoolExecutor(8) as threads:
        answers = [*threads.map(submit, range(60))]
    made = {str(json.loads(text)["id"]) for status, text in answers if status in {200, 201}}
    arena.jobs.update(made)
    for status, text in answers:
        if status not in {200, 201} and not 400 <= status < 500:
            yield f"{status} {text[:200]!r}"
    for job_id in made:
        arena.attacker.jobs.kill(job_id)
    for job_id in made:
        arena.attacker.jobs.wait(job_id, timeout=HANG_S)
    if len(made) > 31:
        yield f"one idempotency key made {len(made) - 30} jobs"


TRICKS: Final[tuple[Trick, ...]] = (
    others_jobs_over_rest, others_jobs_over_grpc, another_tenant_is_named, paths_lead_above, requests_are_malformed,
    uploads_are_cut_off, texts_are_hostile, variables_are_huge, variables_have_lines, learners_are_ten_thousand,
    commands_are_huge, yaml_is_a_bomb, inputs_are_of_others, paths_of_a_spec_lead_above, archive_leaves_its_folder,
    archive_is_a_bomb, archive_is_strange, requirements_have_options, searches_back_track, verbs_come_in_storms,
    submissions_come_in_storms,
)  # fmt: skip
