"""frameworks, sizes: what a spec may name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from weft._cli.call import Call, command

if TYPE_CHECKING:
    from weft._cli.answers import Answers

ANSWERS: Final[Answers] = {
    "frameworks": "GetFrameworksReply",
    "sizes": "GetSizesReply",
}

_DIGITS = 8
"""Of a lock's digest, as in the tag of its image."""


@command("frameworks")
def frameworks_command(call: Call) -> None:
    """List the environments that a job may name.

    LOCK begins the digest of an environment's packages, IMAGE is its container image where learners are pods.
    """
    from weft._cli.output import Column, emit, table

    frameworks = call.client.frameworks()

    def people(wide: bool) -> str:
        in_pods = any(framework.get("image") for framework in frameworks)
        columns = [
            Column("NAME"),
            Column("VERSION"),
            Column("MB", right=True, spare=1),
            Column("LOCK", spare=2),
            Column("IMAGE", wraps=True, wide_only=not in_pods),
            Column("WHAT", flexible=not in_pods, wide_only=in_pods),
            Column("PYTHON", wide_only=True),
            Column("ID", wide_only=True),
            Column("ALSO CALLED", wide_only=True),
        ]
        rows = [
            [
                framework["name"],
                framework["version"],
                framework.get("size_mb", ""),
                framework.get("lock_digest", "").removeprefix("sha256:")[:_DIGITS],
                framework.get("image") or "-",
                framework.get("description", ""),
                framework.get("python", ""),
                framework["id"],
                ", ".join(framework.get("aliases") or ()),
            ]
            for framework in frameworks
        ]
        return table(columns, rows, wide=wide)

    emit(call, {"frameworks": frameworks}, people=people, names=(framework["id"] for framework in frameworks))


@command("sizes")
def sizes_command(call: Call) -> None:
    """List the T-shirt sizes of learners."""
    from weft._cli.output import Column, emit, table
    from weft._cli.text import amount, size

    sizes = call.client.sizes()

    def people(wide: bool) -> str:
        columns = [Column("SIZE"), Column("GPUS", right=True), Column("CPUS", right=True), Column("MEMORY", right=True)]
        rows = [[entry["name"], amount(entry["gpus"]), amount(entry["cpus"]), size(entry["memory"])] for entry in sizes]
        return table(columns, rows, wide=wide)

    emit(call, {"sizes": sizes}, people=people, names=(entry["name"] for entry in sizes))
