"""`weft secret`, as a user types it."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.shell_completion import BashComplete
from structlog.testing import capture_logs

from services.api.tenant_secrets import MOST_BYTES
from services.core.bootstrap import wiring
from tests.testbed.api import Api, running_api
from tests.testbed.terminal import Terminal
from weft import AsyncClient, NotFound
from weft._cli.call import Call
from weft._cli.main import weft as command

VALUE = "wJalrXUtnFEMI-the-value"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    with capture_logs():  # the log of the api, and no part of an answer
        async with running_api(tmp_path / "home") as api:
            yield api


@pytest.fixture
def weft(api: Api, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(api, monkeypatch, capsys)


async def value_of(api: Api, name: str, key: str) -> str:
    """The stored value, as a service of the platform reads it."""
    records = await wiring.record_store(api.settings)
    try:
        stored = await (await wiring.secret_store(api.settings, records)).get(f"tenant/default/{name}")
    finally:
        await records.close()
    return str(json.loads(stored or b"{}")["values"][key])


def type_in(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(text), isatty=lambda: False))


async def test_values_from_a_file_and_from_stdin_are_stored_exactly_and_shown_nowhere(
    api: Api, weft: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text(f"{VALUE} =ä@\r\n")
    type_in(monkeypatch, f"token=@{VALUE}==\n\nregion=eu\n".encode())
    made = await weft("secret", "set", "s3", f"secret_key=@{tmp_path / 'key'}", "--stdin")
    assert (made.code, made.err) == (0, "")
    assert "region, secret_key, token" in made.out
    listed = await weft("secret")
    assert "region,secret_key,token" in listed.out
    assert VALUE not in made.out + listed.out
    assert await value_of(api, "s3", "secret_key") == f"{VALUE} =ä@"
    assert await value_of(api, "s3", "token") == f"@{VALUE}=="


async def test_a_value_in_clear_is_stored_with_a_warning_about_the_shell_s_history(api: Api, weft: Terminal) -> None:
    made = await weft("secret", "set", "s3", f"secret_key={VALUE}")
    assert made.code == 0
    assert "warning: values on the command line stay in the shell's history" in " ".join(made.err.split())
    assert VALUE not in made.out + made.err
    assert await value_of(api, "s3", "secret_key") == VALUE


async def test_wrong_use_says_what_to_do_and_repeats_no_value(
    weft: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "binary").write_bytes(b"\xff" + VALUE.encode())
    (tmp_path / "large").write_bytes(VALUE.encode() + b"x" * MOST_BYTES)
    type_in(monkeypatch, VALUE.encode())
    wrong = {
        ("set",): "name the secret",
        ("set", "s3"): "write each key as KEY=@FILE",
        ("set", "s3", VALUE): "write each key as KEY=@FILE",
        ("set", "s3", f"={VALUE}"): "write each key as KEY=@FILE",
        ("set", "s3", "--stdin"): "write each key as KEY=@FILE",
        ("set", "s3", f"a={VALUE}", f"a={VALUE}"): "a key is given twice",
        ("set", "s3", f"a={VALUE}", "b="): "values.b: the value is empty",
        ("set", "s3", f"a={VALUE}", "b c=x"): "a key has 1 to 64 letters",
        ("set", "No Name", f"a={VALUE}"): "a secret's name has 1 to 63",
        ("set", "s3", "a=@/nowhere/at/all"): "No such file",
        ("set", "s3", f"a=@{tmp_path / 'binary'}"): "text in UTF-8",
        ("set", "s3", f"a=@{tmp_path / 'large'}"): "at most 65536 bytes",
        ("list", "s3", f"a={VALUE}"): "takes no values",
        ("delete", "s3", f"a={VALUE}"): "takes no values",
        ("delete", "s3"): "give --yes",
    }
    for words, message in wrong.items():
        for form in ("table", "json"):
            refused = await weft("secret", *words, "-o", form)
            assert (refused.code, refused.out) == (2, ""), words
            assert message in " ".join(refused.err.split()), (words, refused.err)
            assert VALUE not in refused.err, words
    assert (await weft("secret", "delete", "s3", "--yes")).code == 4
    assert (await weft("secret", "-o", "json")).json == {"secrets": []}


async def test_an_administrator_sets_a_secret_of_another_tenant(weft: Terminal, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(VALUE)
    made = await weft("secret", "set", "s3", f"a=@{tmp_path / 'key'}", "--tenant", "acme", "-o", "json")
    assert (made.json["name"], made.json["keys"], made.json["changed_by"]) == ("s3", ["a"], "default/admin")
    assert (await weft("secret", "-o", "name")).out == ""
    assert (await weft("secret", "list", "--tenant", "acme", "-o", "name")).out == "s3\n"
    assert (await weft("secret", "delete", "s3", "--yes", "--tenant", "acme")).code == 0
    assert (await weft("secret", "list", "--tenant", "acme", "-o", "name")).out == ""


async def test_names_of_secrets_are_completed(api: Api, weft: Terminal, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(VALUE)
    for name in ("s3", "s3-other", "web"):
        assert (await weft("secret", "set", name, f"a=@{tmp_path / 'key'}")).code == 0
    shell = BashComplete(command, {"obj": Call()}, "weft", "_WEFT_COMPLETE")
    items = await asyncio.to_thread(shell.get_completions, ["secret", "delete"], "s3")
    assert [item.value for item in items] == ["s3", "s3-other"]


async def test_a_program_sets_lists_and_deletes_secrets(api: Api) -> None:
    async with AsyncClient(api.url, api.admin_key) as client:
        made = await client.secrets.set("s3", {"a": VALUE})
        assert await client.secrets.list() == [made]
        assert made["keys"] == ["a"]
        await client.secrets.delete("s3")
        with pytest.raises(NotFound):
            await client.secrets.delete("s3")
