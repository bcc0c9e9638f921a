"""Several platforms on one machine: the profile of each, and the folder that a command means."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from weft._cli.call import Call
from weft._cli.homes import chosen_home, command_for, command_in, elsewhere, profile_name
from weft._errors import Conflict, InvalidRequest, NotFound
from weft._profile import Config, Profile, write_config

ADA, BOB = Profile("ada", "http://a", "k", "/srv/ada"), Profile("bob", "http://b", "k", "/srv/bob")
FAR = Profile("far", "https://far", "k")


@pytest.fixture(autouse=True)
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Config:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    config = Config("far", {profile.name: profile for profile in (ADA, BOB, FAR)})
    write_config(config)
    return config


@pytest.mark.parametrize(
    ("folder", "wanted", "named", "name"),
    [
        ("/srv/ada", None, True, "ada"),
        ("/srv/third", None, True, "third"),
        ("/elsewhere/ada", None, True, "ada-2"),
        ("/var/lib/weft", None, False, "local"),
        ("/srv/my platform", None, True, "my-platform"),
        ("/srv/third", "mine", True, "mine"),
    ],
)
def test_each_folder_has_a_profile_of_its_own_name(
    config: Config, folder: str, wanted: str | None, *, named: bool, name: str
) -> None:
    assert profile_name(config, folder, wanted=wanted, named=named) == name


def test_profile_option_names_the_folder_too() -> None:
    assert chosen_home(Call(profile="ada"), None) == "/srv/ada"
    assert chosen_home(Call(), "/srv/bob") == "/srv/bob"
    assert chosen_home(Call(profile="new"), "/srv/new", new=True) == "/srv/new"


def test_profile_and_folder_of_different_platforms_are_refused() -> None:
    with pytest.raises(Conflict, match="is the platform in /srv/ada"):
        chosen_home(Call(profile="ada"), "/srv/bob")
    with pytest.raises(InvalidRequest, match="no platform of this machine"):
        chosen_home(Call(profile="far"), None)
    with pytest.raises(NotFound, match="there are: ada, bob, far"):
        chosen_home(Call(profile="new"), None)


def test_removal_of_one_platform_removes_its_profile_only(config: Config) -> None:
    assert set(config.without_home("/srv/ada").profiles) == {"bob", "far"}


def test_printed_commands_name_the_platform_that_they_are_for() -> None:
    assert command_in("up", "/srv/my platform") == "weft up --home '/srv/my platform'"
    assert command_in("up", None) == "weft up"
    assert command_for("train", "ada", current=False) == "weft --profile ada train"
    assert command_for("train", "ada", current=True) == "weft train"


def test_status_of_an_empty_folder_names_the_platform_that_other_commands_talk_to(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`weft list` showed jobs, and `weft status` after it said that nothing runs."""
    monkeypatch.delenv("WEFT_HOME", raising=False)
    write_config(replace(config, current="ada"))
    other = elsewhere("status", None, "/var/lib/weft")
    assert other == "the current profile 'ada' is the platform in /srv/ada: `weft status --profile ada`"
    assert elsewhere("status", "/srv/bob", "/srv/bob") == ""
    assert elsewhere("status", None, "/srv/ada") == ""


def test_status_names_the_installation_elsewhere_that_the_user_is_signed_in_to(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `weft login` at a composed installation, status said only that nothing runs and `weft up` starts it."""
    monkeypatch.delenv("WEFT_HOME", raising=False)
    write_config(config)
    url = config.profiles["far"].url
    assert config.current == "far"
    other = elsewhere("status", None, "/var/lib/weft")
    assert other == f"the current profile 'far' is {url}: `weft cluster` shows its nodes"
    assert elsewhere("status", "/srv/bob", "/srv/bob") == ""
