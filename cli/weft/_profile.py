"""Which platform to talk to, and with which key.

In this order: what the caller gives, WEFT_URL and WEFT_KEY, the profile that the caller or WEFT_PROFILE names, the
current profile of the configuration file ($XDG_CONFIG_HOME/weft/config.json):

    {"current": "local", "profiles": {"local": {"url": "http://127.0.0.1:8080", "key": "weft_..."}}}

The file holds keys: it is only ever written with mode 0600, whole, by rename, so that a crash leaves the old one.
A key belongs to the address it came with: naming another address does not send it there. So WEFT_KEY beside a WEFT_URL
is for that address alone.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from weft._errors import InvalidRequest, NotFound, Unauthenticated, WeftError

_PAGE: Final = re.compile(r"(?<![:/])/ui(?:[/?#].*)?$")


@dataclass(frozen=True, slots=True)
class Profile:
    name: str
    """Empty for one that comes from the environment or from arguments."""
    url: str
    key: str = field(repr=False)
    home: str = ""
    """The folder of a platform on this machine; empty for one elsewhere."""


@dataclass(frozen=True, slots=True)
class Config:
    current: str
    """Name of the current profile; empty where none is."""
    profiles: Mapping[str, Profile]

    def with_profile(self, profile: Profile, *, current: bool) -> Config:
        now = profile.name if current else self.current
        return Config(now, {**self.profiles, profile.name: profile})

    def without(self, name: str) -> Config:
        rest = {other: profile for other, profile in self.profiles.items() if other != name}
        return Config("" if self.current == name else self.current, rest)

    def without_home(self, home: str) -> Config:
        """Without the profiles of the platform in this folder."""
        config = self
        for profile in self.profiles.values():
            if profile.home == home:
                config = config.without(profile.name)
        return config

    def using(self, name: str) -> Config:
        if name not in self.profiles:
            raise no_such_profile(name, self)
        return replace(self, current=name)


def config_file(environ: Mapping[str, str] = os.environ) -> Path:
    base = environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else home_folder(environ) / ".config") / "weft" / "config.json"


def home_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The user's own folder. Raises InvalidRequest where there is none: HOME is unset and the user is in no list."""
    try:
        home = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    except RuntimeError:
        raise InvalidRequest("there is no home folder: set HOME, or XDG_CONFIG_HOME and WEFT_HOME") from None
    return home


def read_config(path: Path | None = None) -> Config:
    """The stored configuration; an empty one without a file. Raises InvalidRequest if the file cannot be read."""
    path = path or config_file()
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        profiles = {
            str(name): Profile(str(name), str(entry["url"]), str(entry["key"]), str(entry.get("home") or ""))
            for name, entry in document.get("profiles", {}).items()
        }
        return Config(str(document.get("current") or ""), profiles)
    except FileNotFoundError:
        return Config("", {})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as broken:
        message = f"{path} cannot be used as a configuration ({broken}); correct or delete it, then `weft login`"
        raise InvalidRequest(message) from None


@contextmanager
def locked_config(path: Path | None = None) -> Generator[Config]:
    """The stored configuration, for ``write_config`` within the block: no other program changes it meanwhile.

    Raises as ``read_config``. Where the folder cannot be locked (some network file systems), nothing is.
    """
    import fcntl  # noqa: PLC0415 - most commands only read

    path = path or config_file()
    with ExitStack() as at_end:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            at_end.callback(os.close, folder)
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield read_config(path)


def write_config(config: Config, path: Path | None = None) -> None:
    """Replace the file, readable by its owner alone."""
    path = path or config_file()
    profiles = {
        name: {"url": entry.url, "key": entry.key, **({"home": entry.home} if entry.home else {})}
        for name, entry in sorted(config.profiles.items())
    }
    document = {"current": config.current, "profiles": profiles}
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    import tempfile  # noqa: PLC0415 - most commands only read

    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".config-")  # made with mode 0600
    with ExitStack() as on_failure:
        on_failure.callback(Path(temporary).unlink, missing_ok=True)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
        on_failure.pop_all()


def resolve(
    url: str | None = None,
    key: str | None = None,
    profile: str | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
) -> Profile:
    """The address and key to use. Unauthenticated where there is none, NotFound for an unknown profile."""
    if not profile:  # a profile that the caller names is meant more than the environment
        url = url or environ.get("WEFT_URL") or None
        key = key or environment_key(url, environ)
    if url and key:
        return Profile("", _address(url), key)
    config = read_config(config_file(environ))
    name = profile or environ.get("WEFT_PROFILE") or config.current
    if name and name not in config.profiles:
        raise no_such_profile(name, config)
    if name:
        stored = config.profiles[name]
        if url and _address(url) != stored.url:
            raise Unauthenticated(f"there is no key for {url}: set WEFT_KEY, or `weft login {url}`")
        return Profile(name, stored.url, key or stored.key, stored.home)
    if url:
        raise Unauthenticated(f"there is no key for {url}: set WEFT_KEY, or `weft login {url}`")
    if config.profiles:
        there = ", ".join(sorted(config.profiles))
        raise Unauthenticated(f"no profile is current: choose one with `weft profile NAME` (there are: {there})")
    raise Unauthenticated(
        "not signed in anywhere: start a platform on this machine with `weft up`, or sign in with `weft login URL`"
    )


def environment_key(url: str | None, environ: Mapping[str, str] = os.environ) -> str | None:
    """WEFT_KEY; None without it, or if WEFT_URL is not ``url`` and so says that the key is for another address."""
    own = environ.get("WEFT_URL")
    if url and own and own.rstrip("/") != url.rstrip("/"):
        return None
    return environ.get("WEFT_KEY") or None


def no_such_profile(name: str, config: Config) -> WeftError:
    there = ", ".join(sorted(config.profiles)) or "none"
    return NotFound(f"there is no profile '{name}' (there are: {there}); `weft login URL --name {name}` makes it")


def _address(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise InvalidRequest(f"'{url}' is no address of a platform: write it as http://HOST:PORT or https://HOST")
    return url.rstrip("/")


def normal_address(url: str) -> str:
    """The address without a trailing slash; ``HOST:PORT`` alone means https, or http on this machine.

    The URL of a dashboard page stands for its platform: the part before ``/ui``.
    """
    url = _PAGE.sub("", url)
    if "://" not in url:
        host = url.split("/", 1)[0].rsplit(":", 1)[0]
        url = f"{'http' if is_loopback(host) else 'https'}://{url}"
    return _address(url)


def is_loopback(host: str) -> bool:
    host = host.strip("[]").lower()
    return host in {"localhost", "::1"} or host.startswith("127.") or host.endswith(".localhost")
