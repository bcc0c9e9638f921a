"""The helper beside the entry process of a pod: real processes, and folders that stand for the pod's volumes."""

from __future__ import annotations

import hashlib
import io
import shutil
import zipfile
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from pathlib import Path

import pytest

from services.core.adapters.folder.objects import FolderObjectStore
from services.core.domain.plan import Output
from tests.testbed.intake import Intake
from tests.testbed.pod import LEARNER, TENANT, Pod
from tests.testbed.server import free_address
from tests.waiting import until

UNTIL_END = "until [ -e $JOB_STATE_DIR/end ]; do sleep 0.05; done; exit 7"
ATTEMPT = f"tenants/{TENANT}/jobs/pod/attempts/1"


@pytest.fixture
async def intake(tmp_path: Path) -> AsyncGenerator[Intake]:
    """Moves objects itself, as a platform does whose store is a folder."""
    server = Intake(free_address())
    server.objects = FolderObjectStore.make(tmp_path / "objects")
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def pod(intake: Intake) -> Generator[Pod]:
    made = Pod(job="pod", metrics=intake.address)
    yield made
    made.end()
    shutil.rmtree(made.root)


async def _object(intake: Intake, key: str) -> bytes:
    assert intake.objects is not None
    return b"".join([chunk async for chunk in intake.objects.get(f"{ATTEMPT}/{key}")])


async def _upload_code(intake: Intake, **files: str) -> str:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            archive.writestr(name.replace("_", "."), content)
    digest = hashlib.sha256(out.getvalue()).hexdigest()

    async def chunks() -> AsyncIterator[bytes]:
        yield out.getvalue()

    assert intake.objects is not None
    await intake.objects.put(f"tenants/{TENANT}/code/{digest}", chunks())
    return f"sha256:{digest}"


async def test_learner_in_a_pod_gets_its_code_trains_and_its_results_are_stored(intake: Intake, pod: Pod) -> None:
    digest = await _upload_code(
        intake, train_sh="echo training; cp train.sh $RESULT_DIR/model; mkdir $CHECKPOINT_DIR/s"
    )
    pod.plan("sh train.sh", code_digest=digest)
    pod.start()
    assert await pod.until_entry_ended() == 0, pod.log
    assert await pod.end_helper() == 0
    assert intake.phases[-1] == "STORED"
    assert intake.text() == ["training"]
    assert b"RESULT_DIR" in await _object(intake, f"results/{LEARNER}/model")
    assert await _object(intake, "logs/learner-1/training-log.txt") == b"training\n"
    assert intake.last is not None
    # A report carries the whole state: on a busy machine a short phase may pass between two reports.
    assert list(intake.last.times)[-2:] == ["STORING", "STORED"]
    assert intake.last.exit is not None
    assert intake.last.exit.code == 0


async def test_links_of_an_image_in_the_learners_folder_do_not_lead_what_is_fetched_elsewhere(
    intake: Intake, pod: Pod
) -> None:
    elsewhere = pod.root / "control" / "elsewhere"
    elsewhere.mkdir()
    for name in ("fetched", ".fetched", "replaced", ".replaced", "model-code"):
        (pod.root / "job" / name).symlink_to(elsewhere)
    pod.plan("sh train.sh", code_digest=await _upload_code(intake, train_sh="echo training"))
    pod.start()
    assert await pod.until_entry_ended() == 0, pod.log
    assert intake.text() == ["training"]
    assert list(elsewhere.iterdir()) == []


async def test_training_code_in_a_pod_reports_metrics_with_the_sdk(intake: Intake, pod: Pod) -> None:
    pod.plan("python3 -c 'import weft; weft.report(step=1, loss=0.5)'")
    pod.start()
    assert await pod.until_entry_ended() == 0, (pod.root / "log").read_text()
    await until(lambda: intake.values("loss") == [(1, 0.5)])


@pytest.mark.parametrize("controls", [True, False], ids=["stream", "heartbeats"])
async def test_stop_reaches_the_learner_and_what_it_saved_is_stored(
    intake: Intake,
    pod: Pod,
    controls: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    intake.controls = controls
    pod.plan("trap 'echo saved > $RESULT_DIR/late; exit 3' TERM; echo up; while :; do sleep 0.05; done")
    pod.start()
    await until(lambda: intake.text() == ["up"])
    intake.stop_learner("halt", 600_000)
    assert await pod.until_entry_ended() == 3
    assert await _object(intake, f"results/{LEARNER}/late") == b"saved\n"
    await until(lambda: "STORED" in intake.phases)  # the last report may come after the learner's end
    assert intake.last is not None
    assert intake.last.exit is not None
    assert (intake.last.exit.code, intake.last.exit.stop_cause) == (3, "halt")


async def test_learner_stopped_while_it_waits_for_its_gang_never_runs(intake: Intake, pod: Pod) -> None:
    intake.go = False
    pod.plan("echo ran")
    pod.start()
    await until(lambda: "READY" in intake.phases)
    intake.stop_learner("kill", 0)
    assert await pod.until_entry_ended() == 137
    assert "PROCESSING" not in intake.phases
    assert intake.text() == []


async def test_results_are_complete_although_the_helper_is_killed_while_it_stores(intake: Intake, pod: Pod) -> None:
    pod.plan("for n in 1 2 3 4; do head -c 3000000 /dev/urandom > $RESULT_DIR/$n; done")
    results: list[str] = []

    def kill_at_the_fifth(key: str) -> None:
        if "/results/" in key:
            results.append(key)
            if len(results) == 5:
                pod.kill_helper()

    intake.on_put = kill_at_the_fifth
    pod.start()
    await until(lambda: pod.helper is not None and pod.helper.returncode is not None)
    pod.start_helper()
    assert await pod.until_entry_ended() == 0, pod.log
    assert await pod.end_helper() == 0
    for name in "1234":
        assert await _object(intake, f"results/{LEARNER}/{name}") == (pod.root / "job/results" / name).read_bytes()
    assert intake.last is not None
    assert intake.last.message == ""


KEPT = Output(type="pvc", location="kept", path="out")


def on_claim(pod: Pod, *, attempt: int = 1) -> Path:
    """Where the learner's results are on the claim of ``KEPT``."""
    return pod.root / "results" / "out" / "pod" / "attempts" / str(attempt) / LEARNER


async def test_results_are_on_the_claim_of_the_spec_in_place_of_the_platforms_store(intake: Intake, pod: Pod) -> None:
    pod.plan("mkdir $RESULT_DIR/a; echo trained | tee $RESULT_DIR/a/model; touch $CHECKPOINT_DIR/c", output=KEPT)
    pod.start()
    assert await pod.until_entry_ended() == 0, pod.log
    assert await pod.end_helper() == 0
    assert (on_claim(pod) / "a" / "model").read_text() == "trained\n"
    assert [path.name for path in on_claim(pod).parent.iterdir()] == [LEARNER], "nothing unfinished is left"
    assert intake.objects is not None
    keys = [meta.key.removeprefix(f"{ATTEMPT}/").split("/")[0] for meta in await intake.objects.list("tenants/")]
    assert sorted(set(keys)) == ["checkpoints", "logs"]
    assert intake.last is not None
    assert intake.last.message == ""


async def test_results_on_a_claim_are_complete_although_the_helper_is_killed_while_it_stores(
    intake: Intake, pod: Pod
) -> None:
    pod.plan("for n in 1 2 3 4; do head -c 30000000 /dev/urandom > $RESULT_DIR/$n; done", output=KEPT)
    pod.start()
    await until((on_claim(pod) / "1").exists)
    pod.kill_helper()
    sent = intake.sent
    pod.start_helper()
    assert await pod.until_entry_ended() == 0, pod.log
    await until(lambda: intake.sent > sent)  # where all was stored before, the entry ends while the helper still starts
    assert await pod.end_helper() == 0
    for name in "1234":
        assert (on_claim(pod) / name).read_bytes() == (pod.root / "job/results" / name).read_bytes()
    assert [path.name for path in on_claim(pod).parent.iterdir()] == [LEARNER]


@pytest.mark.parametrize("kind", ["file", "link"])
async def test_job_whose_results_cannot_be_stored_on_its_claim_fails_before_it_trains(
    intake: Intake, pod: Pod, kind: str
) -> None:
    place = pod.root / "results" / "out"
    place.touch() if kind == "file" else place.symlink_to(pod.root / "private")
    pod.plan("echo ran", output=KEPT)
    pod.start_helper()
    await until(lambda: intake.last is not None and intake.last.reason == "DataStoreDenied")
    assert intake.last is not None
    assert "results cannot be stored on the claim kept: out/pod/attempts/1/worker-0" in intake.last.message
    assert "learners here have the user id" in intake.last.message
    assert not (pod.root / "private" / "pod").exists()


async def test_result_that_cannot_be_stored_on_the_claim_is_named_and_the_others_are_stored(
    intake: Intake, pod: Pod
) -> None:
    (on_claim(pod) / "first").mkdir(parents=True)
    pod.plan("echo 1 > $RESULT_DIR/first; echo 2 > $RESULT_DIR/second", output=KEPT)
    pod.start()
    assert await pod.until_entry_ended() == 0, pod.log
    assert (on_claim(pod) / "second").read_text() == "2\n"
    await until(lambda: "STORED" in intake.phases)  # the last report may come after the learner's end
    assert intake.last is not None
    assert intake.last.message.startswith(
        "one file could not be stored, the first is out/pod/attempts/1/worker-0/first:"
    )


async def test_helper_waits_while_the_metrics_service_is_away_and_nothing_is_lost(intake: Intake, pod: Pod) -> None:
    pod.plan("echo one; until [ -e $JOB_STATE_DIR/end ]; do sleep 0.05; done; echo two > $RESULT_DIR/file")
    pod.start()
    await until(lambda: intake.text() == ["one"])
    await intake.stop()
    (pod.root / "job" / "end").touch()
    await until(lambda: pod.folder.exit() is not None)
    await intake.start()
    assert await pod.until_entry_ended() == 0
    assert await _object(intake, f"results/{LEARNER}/file") == b"two\n"


async def test_learner_whose_container_ended_without_a_record_is_reported_as_lost(intake: Intake, pod: Pod) -> None:
    pod.plan("echo kept > $RESULT_DIR/file; echo $$ > $JOB_STATE_DIR/pid; echo up; kill -KILL $PPID; exec sleep 600")
    pod.start()
    await until(lambda: intake.text() == ["up"])
    assert await pod.until_entry_ended() == -9
    assert await pod.end_helper() == 0
    assert intake.last is not None
    assert intake.last.exit is not None
    assert intake.last.exit.lost
    assert await _object(intake, f"results/{LEARNER}/file") == b"kept\n"


async def test_helper_is_not_ready_before_the_learners_container_runs(intake: Intake, pod: Pod) -> None:
    pod.plan("echo up")
    pod.start_helper()
    await until(lambda: (pod.root / "control/prepared.json").exists() and len(intake.progress) > 1)
    assert "READY" not in intake.phases
    pod.start_entry()
    assert await pod.until_entry_ended() == 0
    assert intake.text() == ["up"]


async def test_job_with_requirements_fails_with_advice_to_name_an_image(intake: Intake, pod: Pod) -> None:
    pod.plan("true", code_digest=await _upload_code(intake, requirements_txt="rich"))
    pod.start_helper()
    await until(lambda: intake.last is not None and intake.last.reason == "EnvironmentFailed")
    assert intake.last is not None
    assert "image:" in intake.last.message


@pytest.mark.parametrize(
    "record",
    ['{"time": "x"}', "[" * 100_000, "", '{"schema": 1, "time": 99999999999999999999, "code": 0}', "x" * 100_000],
)
async def test_forged_record_of_an_end_is_ignored_and_the_real_end_counts(
    intake: Intake, pod: Pod, record: str
) -> None:
    """As a loss it would cost no retry: the job would be tried again for ever."""
    pod.plan(UNTIL_END)
    pod.start()
    await until(lambda: "PROCESSING" in intake.phases)
    (pod.root / "runs/1/exit.json").write_text(record)
    (pod.root / "job" / "end").touch()
    await until(lambda: "STORED" in intake.phases)
    assert intake.last is not None
    assert intake.last.exit is not None
    assert (intake.last.exit.code, intake.last.exit.lost) == (7, False)


async def test_record_that_is_a_link_to_the_helpers_token_is_not_followed(intake: Intake, pod: Pod) -> None:
    pod.plan(UNTIL_END)
    pod.start()
    await until(lambda: "PROCESSING" in intake.phases)
    (pod.root / "runs/1/exit.json").symlink_to(pod.root / "token/token")
    (pod.root / "job" / "end").touch()
    await until(lambda: "STORED" in intake.phases)
    assert intake.last is not None
    assert intake.last.exit is not None
    assert (intake.last.exit.code, intake.last.exit.lost) == (7, False)
