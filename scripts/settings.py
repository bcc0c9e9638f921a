"""Write docs/settings.md from the settings classes: every field, its default, what it is for.

python scripts/settings.py          writes it
python scripts/settings.py --check  says whether the committed page is current
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from scripts.generated import write_or_check
from services.api.settings import ApiSettings
from services.core.runtime.kubernetes_settings import KubernetesSettings
from services.core.runtime.settings import Settings
from services.guardian.settings import GuardianSettings
from services.lcm.settings import LcmSettings
from services.local.settings import LocalSettings
from services.metrics.settings import MetricsSettings
from services.node.settings import NodeSettings

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"
HEAD = """# Settings

Every service reads its settings from the environment, when it starts; `weft up` hands its own environment on to all of
them. `WEFT_SETTINGS_FILE` names a file with further settings, one line `WEFT_NAME=value` each, e.g. those with a
password; the environment precedes the file. This page is made by `python scripts/settings.py` from the classes in
`services/*/settings.py`.
"""
SERVICES: tuple[tuple[str, type[Settings]], ...] = (
    ("Every service", Settings),
    ("weft up", LocalSettings),
    ("api", ApiSettings),
    ("lcm", LcmSettings),
    ("guardian", GuardianSettings),
    ("metrics", MetricsSettings),
    ("node", NodeSettings),
)
HELPER = (
    ("helper_drain_s", "`60`", "Seconds for which a learner's end waits for an unavailable metrics service."),
    ("checkpoint_quiet_s", "`3`", "An entry of CHECKPOINT_DIR counts as saved once unchanged for so many seconds."),
    ("checkpoint_every_s", "`10`", "Shortest pause between two snapshots of a learner's checkpoints, in seconds."),
    ("build_uid", "`69999`", "User id that environments are built under, if the platform runs as root; 0: as root."),
    ("data_paths", "", "Folders, separated by ':', that data stores of type local may name; empty: none."),
    ("http_allow", "", "Hosts and networks, separated by ',', that are not public and may serve data all the same."),
    ("http_max_bytes", "`1099511627776`", "Largest file that is downloaded, in bytes."),
)


def _default(field: FieldInfo) -> str:
    value = field.default
    # What depends on the machine the page was made on is no default to show.
    if field.default_factory is not None or value in {None, PydanticUndefined, ""} or sys.executable in str(value):
        return ""
    return f"`{value}`"


def _table(rows: Iterable[tuple[str, str, str]]) -> str:
    lines = [f"| `WEFT_{name.upper()}` | {default} | {purpose} |" for name, default, purpose in rows]
    return "\n".join(["| variable | default | what it is for |", "|---|---|---|", *lines]) + "\n"


def page() -> str:
    """The whole page, in Markdown."""
    parts = [HEAD]
    for title, kind in SERVICES:
        fields = {
            name: field
            for name, field in kind.model_fields.items()
            if kind is Settings or name not in Settings.model_fields
        }
        rows = [(name, _default(field), field.description or "") for name, field in fields.items()]
        parts.append(f"## {title}\n\n{_table(rows)}")
    rows = [
        (f"kubernetes_{name}", _default(field), field.description or "")
        for name, field in KubernetesSettings.model_fields.items()
    ]
    parts.append(f"## Kubernetes (lcm and guardian, with WEFT_CLUSTER=kubernetes)\n\n{_table(rows)}")
    # A helper imports no pydantic, to start fast: its settings are a plain dataclass.
    parts.append(f"## helper (beside each learner)\n\n{_table(HELPER)}")
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page()))
