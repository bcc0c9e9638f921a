"""download: what a job left behind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from weft._cli.call import Call, command
from weft._cli.completion import complete_jobs

if TYPE_CHECKING:
    from weft._cli.answers import Answers, Types

ANSWERS: Final[Answers] = {
    "download": {
        "job": ("text", "Id of the job."),
        "folder": ("text", "Where the files are."),
        "files": ("list of File", "What was fetched."),
    },
}
TYPES: Final[Types] = {
    "File": {
        "path": ("text", "Where the file is now."),
        "size": ("integer", "Its size in bytes."),
        "kind": ("text", "results, logs, checkpoints or code."),
    },
}


@command("download")
@click.argument("job", shell_complete=complete_jobs)
@click.argument("folder", required=False, type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--results",
    "--trainedmodel",
    "kinds",
    multiple=True,
    flag_value="results",
    help="What lay in RESULT_DIR (default).",
)
@click.option("--logs", "kinds", multiple=True, flag_value="logs", help="What the learners printed, and LOG_DIR.")
@click.option("--checkpoints", "kinds", multiple=True, flag_value="checkpoints", help="What lay in CHECKPOINT_DIR.")
@click.option("--code", "--definition", "kinds", multiple=True, flag_value="code", help="The code as it was submitted.")
@click.option("--attempt", type=click.IntRange(min=1), help="Of this attempt; by default the newest that left any.")
@click.option("--zip", "zipped", is_flag=True, help="With --code: code.zip as it was submitted, not unpacked.")
@click.option("--force", is_flag=True, help="Replace local files of the same names.")
def download_command(
    call: Call, job: str, folder: Path | None, kinds: tuple[str, ...], attempt: int | None, zipped: bool, force: bool
) -> None:
    """Fetch results, logs, checkpoints or code of a job.

    Files go into FOLDER (by default one named after the job), those of several kinds each into a folder of its own. A
    download that was cut goes on where it stopped when the command is given again. Local files that no download wrote
    are never replaced without --force.
    """
    from weft._cli.find import job_id
    from weft._cli.output import emit
    from weft._cli.progress import transfer_bar
    from weft._cli.text import count, plain, size

    id_ = job_id(call.client, job)
    target = folder or Path(job if job != "@last" else id_)
    wanted = tuple(dict.fromkeys(kinds)) or ("results",)
    files: list[dict[str, object]] = []
    for kind in wanted:
        place = target / kind if len(wanted) > 1 else target
        with transfer_bar(kind, shown=call.for_people) as on_bytes:
            fetched = call.client.jobs.download(
                id_,
                place,
                what=kind,
                attempt=None if kind == "code" else attempt,
                force=force,
                unpacked=not zipped,
                on_bytes=on_bytes,
            )
        files.extend({"path": str(path), "size": path.stat().st_size, "kind": kind} for path in fetched)

    def people(_wide: bool) -> str:
        total = sum(int(str(file["size"])) for file in files)
        head = f"{count(len(files), 'file')}, {size(total)} in {plain(target)}"
        shown = [f"  {size(int(str(file['size']))):>8}  {plain(file['path'])}" for file in files[:20]]
        more = [f"  and {len(files) - 20} more"] if len(files) > 20 else []
        return "\n".join([head, *shown, *more])

    emit(
        call, {"job": id_, "folder": str(target), "files": files}, people=people, names=(str(f["path"]) for f in files)
    )
