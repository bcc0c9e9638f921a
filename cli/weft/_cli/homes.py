"""Several platforms on one machine: the folder that a command means, its profile, and commands that name both.

Each folder has a profile of its own, which remembers the folder: `--profile NAME` names the folder as well. What is
printed for the user to type names the folder if this command named it.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Final

from weft._cli.call import Call
from weft._errors import Conflict, InvalidRequest
from weft._profile import Config, no_such_profile, read_config

HOME_HELP: Final = "The installation's folder; by default that of --profile, or WEFT_HOME."
DEFAULT_NAME: Final = "local"


def chosen_home(call: Call, home: str | None, *, new: bool = False) -> str | None:
    """The folder that --home or --profile names; None: the default one.

    ``new``: the profile need not exist. Raises NotFound for an unknown profile, InvalidRequest for one of a platform
    elsewhere, Conflict where both name different folders.
    """
    if not call.profile:
        return home
    config = read_config()
    profile = config.profiles.get(call.profile)
    if profile is None:
        if new:
            return home
        raise no_such_profile(call.profile, config)
    if not profile.home:
        if call.profile == DEFAULT_NAME:  # written before profiles named their folder
            return home
        raise InvalidRequest(f"profile '{profile.name}' is no platform of this machine, but {profile.url}")
    if home is not None and _absolute(home) != profile.home:
        raise Conflict(f"profile '{profile.name}' is the platform in {profile.home}, and --home is {home}; give one")
    return profile.home


def profile_name(config: Config, folder: str, *, wanted: str | None, named: bool) -> str:
    """The name of the profile of the platform in ``folder``.

    ``wanted``: from --profile. ``named``: the user named the folder. A folder keeps the name of its profile.
    """
    if wanted:
        return wanted
    for profile in config.profiles.values():
        if profile.home == folder:
            return profile.name
    first = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(folder).name).strip("-._") if named else DEFAULT_NAME
    first = first or DEFAULT_NAME
    names = (first, *(f"{first}-{number}" for number in range(2, 10_000)))
    return next(name for name in names if _is_free(config, name, named=named))


def _is_free(config: Config, name: str, *, named: bool) -> bool:
    profile = config.profiles.get(name)
    return profile is None or (not profile.home and name == DEFAULT_NAME and not named)


def command_in(words: str, home: str | None) -> str:
    """The command `weft WORDS` for the folder that this command was given."""
    return f"weft {words}" + (f" --home {shlex.quote(_absolute(home))}" if home else "")


def command_for(words: str, profile: str, *, current: bool) -> str:
    """The command `weft WORDS` for this profile."""
    return f"weft {words}" if current else f"weft --profile {shlex.quote(profile)} {words}"


def elsewhere(words: str, home: str | None, folder: str) -> str:
    """Returns a hint at the current profile's platform, if the user named no folder and it is not that of ``folder``;
    else empty.

    ``words``: the command for which nothing runs in ``folder``.
    """
    config = read_config()
    profile = config.profiles.get(config.current)
    if is_named(home) or profile is None or profile.home == folder:
        return ""
    if not profile.home:
        if profile.name == DEFAULT_NAME:  # written before profiles named their folder
            return ""
        return f"the current profile '{profile.name}' is {profile.url}: `weft cluster` shows its nodes"
    again = f"weft {words} --profile {shlex.quote(profile.name)}"
    return f"the current profile '{profile.name}' is the platform in {profile.home}: `{again}`"


def is_named(home: str | None) -> bool:
    """Whether the user named the folder."""
    return bool(home or os.environ.get("WEFT_HOME"))


def _absolute(home: str) -> str:
    return str(Path(home).absolute())
