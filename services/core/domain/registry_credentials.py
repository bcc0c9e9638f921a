"""Credentials of a container registry in a tenant's secret, and the Docker config that a kubelet reads of them: pure.

A secret has ``username`` and ``password``, with ``server`` if it must not be used for another registry, or
``.dockerconfigjson``, the file that ``docker login`` writes and the key that Kubernetes uses. The Docker config has the
credentials of the image's registry only, whatever else the file contains. No error shows any part of a value.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from services.core.domain.codec import MALFORMED
from services.core.domain.errors import InvalidRequest

CONFIG_KEY: Final = ".dockerconfigjson"
"""Key of a secret with a whole Docker config file; also the key of the Secret in the cluster."""
HOW_TO_SET: Final = "`weft secret set {name} username=NAME password=@FILE`"
"""For messages; ``name``: of the secret."""
_DOCKER_HUB: Final = "docker.io"
_HUB_HOSTS: Final = frozenset({_DOCKER_HUB, "index.docker.io", "registry-1.docker.io"})
_HUB_SERVER: Final = "https://index.docker.io/v1/"
"""The name of Docker Hub in a Docker config: what `docker login` writes and kubelets look for."""
_SCHEME: Final = re.compile(r"^https?://")
_API_PATH: Final = re.compile(r"^v[12](/|$)")


class _Image(NamedTuple):
    """Where an image is."""

    registry: str
    """``host`` or ``host:port``."""
    path: str
    """Its repository in the registry."""


class _Login(NamedTuple):
    username: str
    password: str


def docker_config(values: Mapping[str, str], image: str) -> str:
    """Returns the Docker config file with these credentials for the image's registry, as JSON text.

    ``values``: of the tenant's secret. Raises InvalidRequest if they are not credentials of this
    registry; its message says what is wrong, and its subject is the secret.
    """
    place = _parsed(image)
    logins = _of_file(values[CONFIG_KEY], place) if CONFIG_KEY in values else _of_keys(values, place)
    auths = {
        server: {
            "username": login.username,
            "password": login.password,
            "auth": base64.b64encode(f"{login.username}:{login.password}".encode()).decode(),
        }
        for server, login in logins.items()
    }
    return json.dumps({"auths": auths})


def wrong_credentials(values: Mapping[str, str], image: str) -> str:
    """Returns what is wrong with the values, e.g. ``has no password``; empty: ``docker_config`` takes them."""
    try:
        docker_config(values, image)
    except InvalidRequest as wrong:
        return wrong.message
    return ""


def _parsed(image: str) -> _Image:
    """As Docker reads an image's name: the first part is a registry if it has a dot or a port, or is localhost."""
    name = image.partition("@")[0]
    first, slash, rest = name.partition("/")
    if slash and (first == "localhost" or "." in first or ":" in first):
        registry = first.lower()
        return _Image(_DOCKER_HUB if registry in _HUB_HOSTS else registry, rest)
    return _Image(_DOCKER_HUB, name)


def _of_keys(values: Mapping[str, str], image: _Image) -> dict[str, _Login]:
    missing = " and ".join(key for key in ("username", "password") if key not in values)
    if missing:
        raise InvalidRequest(f"has no {missing}")
    if ":" in values["username"]:
        raise InvalidRequest("has a username with ':'")
    if "server" in values and not _serves(values["server"], image):
        raise InvalidRequest(f"has another server than the image's registry, {image.registry}")
    server = _HUB_SERVER if image.registry == _DOCKER_HUB else image.registry
    return {server: _Login(values["username"], values["password"])}


def _of_file(text: str, image: _Image) -> dict[str, _Login]:
    try:
        auths = json.loads(text)["auths"]
        entries = {server: dict(entry) for server, entry in auths.items() if _serves(server, image)}
    except MALFORMED:
        raise InvalidRequest(f"has a {CONFIG_KEY} that is no Docker config file with 'auths'") from None
    if not entries:
        raise InvalidRequest(f"has no credentials of the image's registry, {image.registry}")
    logins = {server: login for server, entry in entries.items() if (login := _login(entry)) is not None}
    if not logins:
        raise InvalidRequest(
            f"has no password of {image.registry} in its {CONFIG_KEY}: a credentials helper may have it"
        )
    return logins


def _login(entry: Mapping[str, Any]) -> _Login | None:
    """The credentials of an entry of ``auths``: ``auth``, else ``username`` and ``password``; None without."""
    username, password = entry.get("username"), entry.get("password")
    if auth := entry.get("auth"):
        try:
            username, _, password = base64.b64decode(f"{auth}==", validate=False).decode().partition(":")
        except (binascii.Error, ValueError):
            return None
    if not (isinstance(username, str) and isinstance(password, str) and username and password):
        return None
    return _Login(username, password) if ":" not in username else None


def _serves(server: str, image: _Image) -> bool:
    """Whether a kubelet uses the credentials of this server for the image.

    The parts of a host may contain '*'; a path is the beginning of the repository.
    https://kubernetes.io/docs/concepts/containers/images#config-json
    """
    host, _, path = _SCHEME.sub("", server.strip()).partition("/")
    host, path = host.lower(), _API_PATH.sub("", path)
    if image.registry == _DOCKER_HUB:
        return host in _HUB_HOSTS
    parts, patterns = image.registry.split("."), host.split(".")
    matches = len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))
    return matches and image.path.startswith(path)
