"""Tricks of what a spec says."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from tests.contract.hostile import SMALL as TEXTS
from tests.hostile.arena import Arena
from tests.hostile.sending import (
    ANY_END,
    is_refusal,
    refused_or_ended,
    spec_with,
    submit,
    submit_text,
)
from tests.hostile.trick import Trick, judge, of_request
from weft import WeftError


@of_request("specs")
def texts_are_hostile(arena: Arena) -> Iterator[str]:
    """Names, tags, descriptions, roles and variables with NUL, operators of stores, surrogates, and 100 kB."""
    for name, text in TEXTS.items():
        yield from refused_or_ended(
            arena,
            [
                (f"name: {name}", spec_with(name=text)),
                (f"tag: {name}", spec_with(tags=[text])),
                (f"description: {name}", spec_with(description=text)),
                (f"role: {name}", spec_with(roles={text: {"count": 1}})),
                (f"variable: {name}", spec_with(env={text: text, "A": text})),
                (f"framework: {name}", spec_with(framework=text)),
            ],
        )


@of_request("specs")
def variables_are_huge(arena: Arena) -> Iterator[str]:
    """Two hundred variables of 60 kB: more than a process can be given."""
    try:
        job = arena.submit({"name": "env", "command": "true", "env": {f"V{n}": "x" * 60_000 for n in range(3)}})
    except WeftError as refused:
        if not is_refusal(refused.status or 0):
            yield str(refused)
    else:
        yield from judge(arena, job, ends=ANY_END, finishes=False)
    yield from refused_or_ended(arena, [("variables", spec_with(env={f"V{n}": "x" * 60_000 for n in range(200)}))])
    yield from refused_or_ended(arena, [("many variables", spec_with(env={f"V{n}": "" for n in range(15_000)}))])


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
    yield from refused_or_ended(
        arena,
        [("learners", spec_with(learners=10_000, resources={"cpus": 0.0001, "memory": "1MiB"}))],
    )


@of_request("specs")
def commands_are_huge(arena: Arena) -> Iterator[str]:
    """Commands of a megabyte, and of the longest that is accepted."""
    status, answer = submit(arena, spec_with(command="x" * 2**20))
    if not is_refusal(status):
        yield f"a command of 1 MiB: {status} {str(answer)[:200]}"
    try:
        job = arena.submit({"name": "long", "command": "true " + "\u00e9" * 32_000})
    except WeftError as refused:
        if not is_refusal(refused.status or 0):
            yield str(refused)
    else:
        yield from judge(arena, job, ends=ANY_END, finishes=False)


@of_request("specs", quick=True)
def yaml_is_a_bomb(arena: Arena) -> Iterator[str]:
    """YAML that doubles itself, is nested 5,000 deep, makes objects of Python, or holds numbers of 10,000 digits."""
    letters = "abcdefghijklmnopqrstu"
    doubling = [f"{name}: &{name} [{','.join([f'*{last}'] * 9)}]" for last, name in pairwise(letters)]
    texts = {
        "aliases": "\n".join(["a: &a [x,x,x,x,x,x,x,x,x]", *doubling]),
        "nested lists": "name: " + "[" * 5_000 + "]" * 5_000,
        "nested maps": "{a: " * 5_000 + "}" * 5_000,
        "object": "!!python/object/apply:os.system ['touch /tmp/hostile']",
        "tags": "name: !<tag:yaml.org,2002:python/name:os.system> x",
        "digits": "name: " + "9" * 10_000,
        "sexagesimal": "name: " + "1:" * 5_000 + "1",
        "merge": "<<: &x {<<: *x}\nname: x\ncommand: x",
        "self": "&a [*a]",
        "key": "? [a, b]\n: c",
        "bytes": "name: !!binary x",
        "NUL": "name: \0",
        "BOM": "\ufeff\ufeffname: x",
        "documents": "---\n" * 50_000,
        "anchors": "\n".join(f"k{number}: &a{number} x" for number in range(20_000)),
    }
    for name, text in texts.items():
        began = time.monotonic()
        status, answer = submit_text(arena, text.encode("utf-8", "surrogatepass"), "application/yaml")
        if not is_refusal(status):
            yield f"{name}: {status} {str(answer)[:200]}"
        if (took := time.monotonic() - began) > 20:
            yield f"{name}: answered after {took:.0f} s"
    status, answer = submit_text(arena, b"[" * 100_000, "application/json")
    if not is_refusal(status):
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
    urls += arena.cluster.inner_urls()
    urls += ["http://169.254.169.254/latest", "http://[::1]:80/", "http://localhost/", "http://0/", "http://127.1/"]
    stores += [{"type": "http", "url": url} for url in urls]
    for store in stores:
        spec = {"name": "input", "command": "find $DATA_DIR/ -type f | head -50 | xargs cat"}
        status, answer = submit(arena, spec_with(**spec, data_stores=[{"id": "s", **store}], inputs=[{"store": "s"}]))
        if status == 201:
            job = arena.attacker.jobs.get(str(answer["id"]))
            arena.jobs.add(job.id)
            for failure in judge(arena, job, ends={"FAILED"}, finishes=False):
                yield f"{store}: {failure}"
        elif not is_refusal(status):
            yield f"{store}: {status}"


@of_request("specs")
def paths_of_a_spec_lead_above(arena: Arena) -> Iterator[str]:
    """Mounts inside one another, and paths of checkpoints, metrics and inputs that lead above."""
    store = {"id": "s", "type": "local", "path": str(arena.data)}
    documents: list[tuple[str, object]] = []
    for up in ("..", "../x", "a/../../x", "/etc", "a/../..", ".", "a\\..\\..", "~", "a//../.."):
        documents += [
            (f"checkpoint {up}", spec_with(checkpoint={"path": up})),
            (f"metrics {up}", spec_with(metrics=[{"type": "jsonl", "path": up}])),
            (f"mount {up}", spec_with(data_stores=[store], inputs=[{"store": "s", "mount": up}])),
            (f"input {up}", spec_with(data_stores=[store], inputs=[{"store": "s", "path": up}])),
        ]
    yield from refused_or_ended(arena, documents)
    for mounts in (("a", "a/imagenet"), ("a/imagenet", "a"), ("a", "a"), ("a", "./a/b"), ("a/", "a//b")):
        inputs = [{"store": "s", "mount": mount} for mount in mounts]
        status, answer = submit(arena, spec_with(data_stores=[store], inputs=inputs))
        if not is_refusal(status):
            yield f"mounts {mounts}: {status} {str(answer)[:200]}"


TRICKS: Final[tuple[Trick, ...]] = (
    texts_are_hostile,
    variables_are_huge,
    variables_have_lines,
    learners_are_ten_thousand,
    commands_are_huge,
    yaml_is_a_bomb,
    inputs_are_of_others,
    paths_of_a_spec_lead_above,
)
