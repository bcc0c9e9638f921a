"""Profiles: which platform and key are used, and how they are stored."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from weft import InvalidRequest, NotFound, Unauthenticated
from weft._profile import (
    Config,
    Profile,
    config_file,
    is_loopback,
    locked_config,
    normal_address,
    read_config,
    resolve,
    write_config,
)

LOCAL = Profile("local", "http://127.0.0.1:8080", "weft_a_b")
OTHER = Profile("other", "https://weft.example", "weft_c_d")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    write_config(Config("local", {"local": LOCAL, "other": OTHER}), config_file(environ))
    return environ


def test_the_file_is_readable_by_its_owner_alone_from_the_first_byte(tmp_path: Path) -> None:
    path = tmp_path / "weft" / "config.json"
    write_config(Config("local", {"local": LOCAL}), path)
    path.chmod(0o644)  # a careless user
    write_config(Config("local", {"local": LOCAL}), path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o077 == 0
    assert list(path.parent.iterdir()) == [path]


def test_written_configuration_is_read_back(environ: dict[str, str]) -> None:
    config = read_config(config_file(environ))
    assert config == Config("local", {"local": LOCAL, "other": OTHER})
    document = json.loads(config_file(environ).read_text())
    assert document["profiles"]["local"] == {"url": LOCAL.url, "key": LOCAL.key}


def test_logins_at_the_same_time_all_leave_their_profiles(environ: dict[str, str]) -> None:
    path = config_file(environ)

    def log_in(number: int) -> None:
        with locked_config(path) as config:
            write_config(config.with_profile(Profile(f"p{number}", LOCAL.url, "weft_a_b"), current=True), path)

    with ThreadPoolExecutor(8) as users:
        for _ in users.map(log_in, range(40)):
            pass
    assert set(read_config(path).profiles) == {"local", "other", *(f"p{number}" for number in range(40))}
    assert list(path.parent.iterdir()) == [path]


def test_repr_of_a_profile_hides_the_key() -> None:
    assert LOCAL.key not in repr(LOCAL)


@pytest.mark.parametrize(
    ("arguments", "more", "used"),
    [
        ({}, {}, LOCAL),
        ({"profile": "other"}, {}, OTHER),
        ({}, {"WEFT_PROFILE": "other"}, OTHER),
        ({"profile": "local"}, {"WEFT_PROFILE": "other"}, LOCAL),
        ({}, {"WEFT_URL": "http://env:1/", "WEFT_KEY": "k"}, Profile("", "http://env:1", "k")),
        ({"profile": "other"}, {"WEFT_URL": "http://env:1", "WEFT_KEY": "k"}, OTHER),
        ({"url": "http://given:1", "key": "k"}, {"WEFT_URL": "http://env:1"}, Profile("", "http://given:1", "k")),
        ({}, {"WEFT_KEY": "k2"}, Profile("local", LOCAL.url, "k2")),
        ({"url": LOCAL.url}, {}, LOCAL),
        ({"url": "http://env:1"}, {"WEFT_URL": "http://env:1/", "WEFT_KEY": "k"}, Profile("", "http://env:1", "k")),
        ({"url": "http://given:1"}, {"WEFT_KEY": "k"}, Profile("", "http://given:1", "k")),
        ({"url": LOCAL.url}, {"WEFT_URL": "http://env:1", "WEFT_KEY": "k"}, LOCAL),
    ],
)
def test_option_wins_over_environment_over_profile(
    environ: dict[str, str], arguments: dict[str, str], more: dict[str, str], used: Profile
) -> None:
    assert resolve(**arguments, environ={**environ, **more}) == used


def test_a_stored_key_is_never_sent_to_another_address(environ: dict[str, str]) -> None:
    with pytest.raises(Unauthenticated, match="no key for http://elsewhere"):
        resolve("http://elsewhere:1", environ=environ)
    with pytest.raises(Unauthenticated, match="no key for http://elsewhere"):
        resolve(environ={**environ, "WEFT_URL": "http://elsewhere:1"})


def test_missing_profile_error_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(Unauthenticated, match=r"weft up.*weft login"):
        resolve(environ={"XDG_CONFIG_HOME": str(tmp_path)})


def test_an_unknown_profile_names_those_there_are(environ: dict[str, str]) -> None:
    with pytest.raises(NotFound, match="there are: local, other"):
        resolve(profile="othr", environ=environ)


@pytest.mark.parametrize("text", ["{", "[]", '{"profiles": {"x": {}}}', '{"profiles": []}', "\xff"])
def test_a_broken_file_is_one_clear_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(InvalidRequest, match="correct or delete it"):
        read_config(path)


def test_removing_the_current_profile_leaves_no_current_profile() -> None:
    config = Config("local", {"local": LOCAL, "other": OTHER})
    assert config.without("local") == Config("", {"other": OTHER})
    assert config.without("other") == Config("local", {"local": LOCAL})


@pytest.mark.parametrize(
    ("typed", "address"),
    [
        ("127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("localhost:80/", "http://localhost:80"),
        ("weft.example", "https://weft.example"),
        ("https://weft.example/", "https://weft.example"),
        ("http://127.0.0.1:8080/ui/", "http://127.0.0.1:8080"),
        ("https://weft.example/team/ui/jobs?q=status%3DFAILED#top", "https://weft.example/team"),
        ("https://weft.example/ui", "https://weft.example"),
        ("https://ui", "https://ui"),
        ("ui/", "https://ui"),
        ("https://weft.example/uis", "https://weft.example/uis"),
    ],
)
def test_an_address_may_be_typed_short(typed: str, address: str) -> None:
    assert normal_address(typed) == address


def test_loopback_addresses_are_recognized() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "localhost", "::1", "[::1]", "LOCALHOST")))
    assert not any(map(is_loopback, ("10.0.0.1", "weft.example", "localhost.example", "")))


def test_the_key_beside_weft_url_is_not_sent_to_another_address(environ: dict[str, str]) -> None:
    environment = {**environ, "WEFT_URL": "https://production", "WEFT_KEY": "weft_of_production"}
    with pytest.raises(Unauthenticated, match="there is no key for http://staging"):
        resolve("http://staging", environ=environment)
