"""frameworks, sizes: what a spec may name."""

from __future__ import annotations

from weft._cli.call import Call, command


@command("frameworks")
def frameworks_command(call: Call) -> None:
    """List the environments that a job may name."""
    from weft._cli.output import Column, emit, table

    found = call.client.frameworks()

    def people(wide: bool) -> str:
        columns = [
            Column("NAME"), Column("VERSION"), Column("MB", right=True), Column("WHAT", flexible=True),
            Column("PYTHON", wide_only=True), Column("ID", wide_only=True), Column("ALSO CALLED", wide_only=True),
        ]  # fmt: skip
        rows = [
            [one["name"], one["version"], one.get("size_mb", ""), one.get("description", ""), one.get("python", ""),
             one["id"], ", ".join(one.get("aliases") or ())]
            for one in found
        ]  # fmt: skip
        return table(columns, rows, wide=wide)

    emit(call, {"frameworks": found}, people=people, names=(one["id"] for one in found))


@command("sizes")
def sizes_command(call: Call) -> None:
    """List the T-shirt sizes of learners."""
    from weft._cli.output import Column, emit, table
    from weft._cli.text import amount, size

    found = call.client.sizes()

    def people(wide: bool) -> str:
        columns = [Column("SIZE"), Column("GPUS", right=True), Column("CPUS", right=True), Column("MEMORY", right=True)]
        rows = [[one["name"], amount(one["gpus"]), amount(one["cpus"]), size(one["memory"])] for one in found]
        return table(columns, rows, wide=wide)

    emit(call, {"sizes": found}, people=people, names=(one["name"] for one in found))
