"""train: plan, upload, queue, follow."""

from __future__ import annotations

import dataclasses
import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from weft._cli.after_submit import FOLLOW, IDEMPOTENCY_KEY, METRIC, noting_how_to_repeat, show_or_follow
from weft._cli.call import Call, Stop, command
from weft._cli.completion import complete_field, complete_setting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weft._archive import Archive
    from weft._cli.answers import Answers
    from weft._cli.groups import Group
    from weft._job import Job
    from weft._spec_file import SpecFile

ANSWERS: Final[Answers] = {
    "train": "Job",
    "train --dry-run": "JobPlan",
    "train --array": {
        "group": ("text", "Name of the group."),
        "jobs": ("list of Job", "Its jobs."),
    },
}

CANNOT_BE_PLACED = 6


def _field_help(ctx: click.Context, _param: click.Parameter, field: str | None) -> None:
    if field is None or ctx.resilient_parsing:
        return
    if not field:
        click.echo(ctx.get_help())
    else:
        from weft._cli.fields import explain_field

        click.echo(explain_field(field))
    ctx.exit()


@command("train", add_help_option=False)
@click.argument("where", required=False, metavar="[FOLDER]")
@click.argument("code", required=False, metavar="[CODE]")
@click.option("--file", "-f", "file", type=click.Path(path_type=Path), help="The spec; by default FOLDER/weft.yaml.")
@click.option("--name", metavar="NAME", help="Another name for the job.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="FIELD=VALUE",
    shell_complete=complete_setting,
    help="Change a field, e.g. resources.gpus=1.",
)
@click.option("--array", "arrays", multiple=True, metavar="NAME=V,V", help="A job for each value of a variable.")
@click.option("--repeat", type=click.IntRange(1, 1000), default=1, metavar="N", help="Each N times: SEED=0, 1, ...")
@click.option("--group", metavar="NAME", help="Name of the group of jobs; made by default.")
@click.option("--dry-run", is_flag=True, help="Only check and plan; works without a platform, too.")
@FOLLOW
@METRIC
@click.option(
    "--wait-placed", type=click.FloatRange(min=0), metavar="SECONDS", help="Exit code 6 if it still waits then."
)
@IDEMPOTENCY_KEY
@click.option(
    "-h",
    "--help",
    "_help",
    is_flag=False,
    flag_value="",
    metavar="[FIELD]",
    is_eager=True,
    shell_complete=complete_field,
    expose_value=False,
    callback=_field_help,
    help="This, or what a field of the spec means: -h resources.gpus",
)
def train_command(
    call: Call,
    where: str | None,
    code: str | None,
    file: Path | None,
    name: str | None,
    settings: tuple[str, ...],
    arrays: tuple[str, ...],
    repeat: int,
    group: str | None,
    dry_run: bool,
    follow: bool | None,
    metric: str | None,
    wait_placed: float | None,
    idempotency_key: str | None,
) -> None:
    """Submit a job: plan, upload, queue, follow.

    \b
    weft train                    the job in this folder (weft.yaml)
    weft train FOLDER             the job in another folder
    weft train -f FILE            a spec; the code is what its `code:` names
    weft train -f FILE CODE       a spec and a folder or zip of code
    weft train MANIFEST CODE      the same (as in FfDL)
    weft train --array lr=0.1,0.01 --repeat 3
                                  six jobs, with the variables lr and SEED

    Following, the exit code is the job's end: 0 COMPLETED, 100 FAILED, 103 KILLED or HALTED. Ctrl-C only stops
    following.
    """  # noqa: D301 - \b is click's: the lines after it stay as they are
    from weft._cli.notices import warn
    from weft._cli.output import emit
    from weft._errors import ConnectionFailed, Unauthenticated

    is_group = bool(arrays or repeat > 1 or group)
    _check_alone(is_group=is_group, follow=follow, wait_placed=wait_placed)
    spec, code_path, implied = _read(where, code, file, name=name, settings=settings)
    with ExitStack() as stack:
        archive: Archive | None = None
        if code_path is not None:
            from weft._archive import make_archive

            archive = stack.enter_context(make_archive(code_path))
        for skipped in archive.listing.skipped if archive else ():
            warn(f"{skipped} is no plain file and is left out")
        try:
            plan = _planned(call, spec, archive)
        except (ConnectionFailed, Unauthenticated) as away:
            if not dry_run:
                raise
            _offline(call, spec, archive, away.message)
            return
        key = idempotency_key or os.urandom(16).hex()
        group_jobs: Group | None = None
        if is_group:
            group_jobs = _planned_group(call, spec, archive, key, arrays=arrays, repeat=repeat, group=group)
        if dry_run:
            emit(
                call,
                plan,
                people=lambda _wide: _plan_text(plan, archive, implied),
                names=[str(plan["spec"].get("name"))],
            )
            return
        if call.for_people:
            print(_plan_text(plan, archive, implied), flush=True)
        for warning in plan.get("warnings") or ():
            if not call.for_people or warning != plan.get("fits_message"):  # the plan has shown it
                warn(warning)
        if group_jobs is not None:
            _submit_group(call, spec, archive, plan, key, group_jobs)
            return
        with noting_how_to_repeat(key):
            job = _submitted(call, spec, archive, plan, key)
    _after(call, job, plan, follow=follow, metric=metric, wait_placed=wait_placed)


def _check_alone(*, is_group: bool, follow: bool | None, wait_placed: float | None) -> None:
    """Raises UsageError for options of a single job that are given for a group."""
    option = "--follow" if follow else "--wait-placed" if wait_placed is not None else ""
    if is_group and option:
        raise click.UsageError(f"{option} is for one job; `weft wait --group NAME` waits for all jobs of a group")


def _read(
    where: str | None, code: str | None, file: Path | None, *, name: str | None, settings: tuple[str, ...]
) -> tuple[SpecFile, Path | None, str]:
    """The spec with the changes of the command line, its code, and the file of the command that implies the code.

    Nothing implies code that the command line or the spec names.
    """
    from weft._errors import NotFound

    spec, code_path = _find(where, code, file)
    if name:
        spec.document["name"] = name
    for assignment in settings:
        spec.change(assignment)
    if code_path is not None:
        if not code_path.exists():
            raise NotFound(f"there is no folder or zip {code_path}")
        return spec, code_path, ""
    if spec.code is not None and not spec.code.exists():
        raise NotFound(f"{spec.path}: code: there is no folder or zip {spec.code}")
    return spec, spec.code, spec.code_file


def _find(where: str | None, code: str | None, file: Path | None) -> tuple[SpecFile, Path | None]:
    """The spec that is meant, and the code if the command line names it."""
    from weft._spec_file import find_spec, read_spec

    if file is not None and code is not None:
        raise click.UsageError("give the spec either with -f or as the first argument, not both")
    if file is not None:
        return read_spec(file), Path(where) if where else None
    place = Path(where or ".")
    path = find_spec(place) if place.is_dir() else place
    return read_spec(path), Path(code) if code else None


def _planned(call: Call, spec: SpecFile, archive: Archive | None) -> dict[str, Any]:
    from weft._errors import InvalidRequest

    try:
        return call.client.jobs.plan(spec.document, digest=archive.digest if archive else None)
    except InvalidRequest as refused:
        raise _located(refused, spec) from None


def _submitted(call: Call, spec: SpecFile, archive: Archive | None, plan: dict[str, Any], key: str) -> Job:
    from weft._cli.progress import upload_bar
    from weft._errors import InvalidRequest

    stored = bool((plan.get("code") or {}).get("stored"))
    with upload_bar(shown=archive is not None and not stored and call.for_people) as on_bytes:
        try:
            job = call.client.jobs.submit_document(
                spec.document, archive=archive, idempotency_key=key, on_upload=on_bytes, stored=stored
            )
        except InvalidRequest as refused:
            raise _located(refused, spec) from None
    return job


def _planned_group(
    call: Call,
    spec: SpecFile,
    archive: Archive | None,
    key: str,
    *,
    arrays: tuple[str, ...],
    repeat: int,
    group: str | None,
) -> Group:
    """The jobs of a group. Each was planned, so that none is submitted if the platform refuses another."""
    from weft._cli.groups import make_group
    from weft._cli.notices import note
    from weft._errors import InvalidRequest

    made = make_group(spec.document, key, arrays=arrays, repeat=repeat, name=group)
    # Repetitions differ in the seed alone.
    for document, settings in zip(made.specs[::repeat], made.settings[::repeat], strict=True):
        try:
            _planned(call, dataclasses.replace(spec, document=document), archive)
        except InvalidRequest:
            note(f"no job of the group was submitted: the platform refuses the job with {settings or 'its tag'}")
            raise
    return made


def _submit_group(
    call: Call, spec: SpecFile, archive: Archive | None, plan: dict[str, Any], key: str, group: Group
) -> None:
    """Submit every job of a group. The same key makes the same jobs."""
    from weft._cli.notices import note
    from weft._cli.output import emit

    jobs: list[Job] = []
    try:
        for number, document in enumerate(group.specs):
            job_spec = dataclasses.replace(spec, document=document)
            jobs.append(_submitted(call, job_spec, archive, plan, f"{key}-{number}"))
            plan = {**plan, "code": {"stored": True}}
    finally:  # also after an error or Ctrl-C: what is submitted runs
        is_whole = len(jobs) == len(group.specs)
        if jobs:
            document = {"group": group.name, "jobs": [job.document for job in jobs]}
            emit(
                call,
                document,
                people=lambda _wide: _group_text(group, jobs, is_whole=is_whole),
                names=[job.id for job in jobs],
            )
        if not is_whole:
            note(
                f"stopped after {len(jobs)} of {len(group.specs)} jobs of the group {group.name}. "
                f"`weft list --group {group.name}` shows those that are submitted, `weft kill --group {group.name}` "
                f"ends them. The same command with --idempotency-key {key} submits the rest, and none twice"
            )


def _group_text(group: Group, jobs: Sequence[Job], *, is_whole: bool) -> str:
    """The jobs that are submitted, in the order of the group; what can be done with the whole group."""
    lines = [
        f"submitted {job.id}  {job.name}  {settings}".rstrip()
        for job, settings in zip(jobs, group.settings, strict=False)
    ]
    if is_whole:
        lines.append(f"{len(jobs)} jobs of the group {group.name}:")
        lines += [f"  weft {verb} --group {group.name}" for verb in ("list", "wait", "metrics", "kill", "delete")]
    return "\n".join(lines)


def _located(refused: Any, spec: SpecFile) -> Any:
    """The same error, its fields with the lines where they stand."""
    from weft._cli.fields import located

    return located(refused, spec)


def _plan_text(plan: dict[str, Any], archive: Archive | None, code_file: str) -> str:
    from weft._cli.plan import plan_text

    return plan_text(plan, archive, code_file)


def _offline(call: Call, spec: SpecFile, archive: Archive | None, why: str) -> None:
    """Check a spec without a platform that answers, by the code of one that is installed."""
    from weft._cli.local import find_platform
    from weft._cli.notices import note
    from weft._cli.output import emit
    from weft._cli.plan import left_out_lines, listing_lines
    from weft._cli.text import count, size
    from weft._errors import FieldError, InvalidSpec, Unavailable

    platform = find_platform()
    if platform is None:
        raise Unavailable(f"no platform could check the spec: {why}")
    checked = platform.check_spec(spec.document)
    errors = tuple(FieldError(e["pointer"], e["message"], e.get("hint") or "") for e in checked["errors"])
    if errors:
        raise _located(InvalidSpec(f"{spec.path}: {len(errors)} wrong", errors=errors), spec)
    note(f"checked without a platform: {why}")

    def people(_wide: bool) -> str:
        lines = [f"{spec.document.get('name')}: the spec is right"]
        if archive is not None:
            listing = archive.listing
            what = f"{count(len(listing.files), 'file')}, {size(listing.size)}, {size(archive.size)} compressed"
            lines += [f"  {'upload':<10}{what}", *listing_lines(listing), *left_out_lines(listing)]
        return "\n".join(lines)

    document = {"dry_run": True, "spec": checked["spec"], "fits": "unknown", "warnings": []}
    emit(call, document, people=people, names=[str(spec.document.get("name"))])


def _after(
    call: Call, job: Job, plan: dict[str, Any], *, follow: bool | None, metric: str | None, wait_placed: float | None
) -> None:
    if wait_placed is None:
        show_or_follow(call, job, follow=follow, metric=metric)
    else:
        show_or_follow(call, job, follow=bool(follow), metric=metric)
        raise Stop(_placed(job, plan, wait_placed))


def _placed(job: Job, plan: dict[str, Any], seconds: float) -> int:
    """0 once the job has left the queue; 6 if it cannot, or did not in time."""
    import time

    from weft._cli.notices import note

    deadline = time.monotonic() + seconds
    while job.status == "QUEUED":
        if plan.get("fits") == "never" or time.monotonic() >= deadline:
            note(f"{job.id} is accepted but waits: `weft explain {job.id}`")
            return CANNOT_BE_PLACED
        time.sleep(min(0.25, max(0.0, deadline - time.monotonic())))
        job.refresh()
    return 0
