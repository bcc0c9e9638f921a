"""Which secrets have credentials of an image's registry, and the Docker config that kubelets read of them."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from services.core.domain.registry_credentials import docker_config, wrong_credentials

LOGIN = {"username": "ada", "password": "canary:1"}
AUTH = base64.b64encode(b"ada:canary:1").decode()
HUB = "https://index.docker.io/v1/"


def auths(values: dict[str, str], image: str) -> dict[str, Any]:
    document = json.loads(docker_config(values, image))
    assert set(document) == {"auths"}
    return dict(document["auths"])


def file(**servers: dict[str, str]) -> dict[str, str]:
    return {".dockerconfigjson": json.dumps({"auths": servers, "credsStore": "desktop"})}


@pytest.mark.parametrize(
    ("image", "server"),
    [
        ("registry.example.org/team/train:1.4", "registry.example.org"),
        ("registry.example.org:5000/train@sha256:" + "0" * 64, "registry.example.org:5000"),
        ("localhost/train", "localhost"),
        ("localhost:5000/train:1", "localhost:5000"),
        ("ada/train:1", HUB),
        ("train", HUB),
        ("docker.io/ada/train:1", HUB),
        ("index.docker.io/ada/train", HUB),
    ],
)
def test_username_and_password_are_of_the_registry_of_the_image(image: str, server: str) -> None:
    assert auths(LOGIN, image) == {server: {**LOGIN, "auth": AUTH}}


@pytest.mark.parametrize(
    ("server", "image"),
    [
        ("registry.example.org", "registry.example.org/train"),
        ("https://registry.example.org/v2/", "registry.example.org/train"),
        ("Registry.Example.org/team", "registry.example.org/team/train:1"),
        ("*.example.org:5000", "registry.example.org:5000/train"),
        ("docker.io", "train"),
        (HUB, "docker.io/ada/train"),
    ],
)
def test_server_of_a_secret_may_be_written_as_docker_writes_it(server: str, image: str) -> None:
    assert wrong_credentials({**LOGIN, "server": server}, image) == ""


@pytest.mark.parametrize(
    "server",
    [
        "other.example.org",
        "example.org",
        "*.org",
        "registry.example.org:5000",
        "registry.example.org/other",
        "",
        "*",
        HUB,
    ],
)
def test_credentials_of_another_server_are_not_sent_to_the_registry_of_the_image(server: str) -> None:
    image = "registry.example.org/team/train"
    assert wrong_credentials({**LOGIN, "server": server}, image).startswith("has another server")
    assert wrong_credentials(file(**{server: {"auth": AUTH}}), image).startswith("has no credentials of the image")


def test_of_a_docker_config_file_only_the_entries_of_the_registry_are_given() -> None:
    values = file(
        **{
            "https://registry.example.org": {"auth": AUTH.rstrip("=")},
            "other.example.org": {"auth": base64.b64encode(b"eve:secret").decode()},
        }
    )
    assert auths(values, "registry.example.org/train") == {"https://registry.example.org": {**LOGIN, "auth": AUTH}}
    plain = file(**{"registry.example.org": LOGIN})
    assert auths(plain, "registry.example.org/train") == {"registry.example.org": {**LOGIN, "auth": AUTH}}


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        ({}, "has no username and password"),
        ({"username": "canary"}, "has no password"),
        ({"password": "canary"}, "has no username"),
        ({"username": "canary:x", "password": "canary"}, "has a username with ':'"),
        (file(**{"r.example": {"identitytoken": "canary"}}), "has no password of r.example"),
        (file(**{"r.example": {}}), "has no password of r.example"),
        (file(**{"r.example": {"auth": "canary"}}), "has no password of r.example"),
        (file(**{"r.example": {"auth": base64.b64encode(b"canary").decode()}}), "has no password of r.example"),
        (file(**{"r.example": {"auth": "/w=="}}), "has no password of r.example"),
        (file(**{"r.example": {"username": "canary:x", "password": "canary"}}), "has no password of r.example"),
        ({".dockerconfigjson": "canary"}, "is no Docker config file"),
        ({".dockerconfigjson": "[]"}, "is no Docker config file"),
        ({".dockerconfigjson": '{"auths": null}'}, "is no Docker config file"),
        ({".dockerconfigjson": '{"auths": {"r.example": "canary"}}'}, "is no Docker config file"),
        ({".dockerconfigjson": "[" * 60_000}, "is no Docker config file"),
        ({".dockerconfigjson": '{"auths": {}}'}, "has no credentials of the image's registry, r.example"),
    ],
)
def test_message_about_a_wrong_secret_contains_none_of_its_values(values: dict[str, str], wrong: str) -> None:
    message = wrong_credentials(values, "r.example/train")
    assert wrong in message
    assert "canary" not in message
