"""The entry script of learners' pods, as a real process of each shell that it is written for."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import services.core.adapters.kubernetes
from services.core.runtime import pod_layout as layout
from services.core.runtime.learner_folder import LearnerFolder, StopMark
from services.core.runtime.processes import identify
from services.helper.usage import PodUsage
from tests.waiting import eventually

pytestmark = pytest.mark.slow

ENTRY = Path(services.core.adapters.kubernetes.__file__).with_name("entry.sh")
SHELLS = {"dash": ["dash"], "busybox": ["busybox", "sh"]}


class Entry:
    """One entry process, with folders as its container has them."""

    def __init__(self, shell: list[str], root: Path) -> None:
        self.root = root
        self._shell = shell
        self._process: subprocess.Popen[bytes] | None = None
        for folder in ("control", "runs", "job/model-code"):
            (root / folder).mkdir(parents=True)

    def start(self, command: str, *, store_timeout_s: int = 600, pause_s: int = 2, **env: str) -> None:
        """``pause_s``: after which the script reads its files if nothing wakes it."""
        script = self.root / ENTRY.name
        own, replaced = f"pause={pause_s}\n", "pause=2\n"
        assert replaced in ENTRY.read_text()
        script.write_text(ENTRY.read_text().replace(replaced, own))
        variables = {
            "PATH": os.environ["PATH"],
            "MODEL_DIR": str(self.root / "job" / "model-code"),
            **env,
            layout.COMMAND_VARIABLE: command,
            layout.STORE_TIMEOUT_VARIABLE: str(store_timeout_s),
        }
        with (self.root / "log").open("wb") as log, (self.root / "errors").open("wb") as errors:
            self._process = subprocess.Popen(
                [*self._shell, str(script), str(self.root), str(self.root / "message")],
                stdout=log,
                stderr=errors,
                env=variables,
                start_new_session=True,
            )

    def go(self) -> None:
        (self.root / "control" / "go").touch()

    def stop(self, cause: str, grace_ms: int) -> None:
        mark = self.root / "control" / "stop.tmp"
        mark.write_text(json.dumps({"schema": 1, "cause": cause, "grace_ms": grace_ms}))
        mark.rename(mark.with_name("stop.json"))

    def store(self) -> None:
        (self.root / "control" / "stored").touch()

    def terminate(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(60)

    def runs(self) -> bool:
        assert self._process is not None
        return self._process.poll() is None

    def text(self, name: str) -> str:
        path = self.root / name
        return path.read_text() if path.exists() else ""

    def exit(self) -> dict[str, Any]:
        """``exit.json``, once it is there, without the time."""
        eventually(lambda: self.text("runs/1/exit.json"))
        document: dict[str, Any] = json.loads(self.text("runs/1/exit.json"))
        assert document.pop("time") > 1_700_000_000_000
        return document

    def end(self) -> None:
        """Of a test that failed, too: the script ends what it has started."""
        if self._process is not None and self._process.poll() is None:
            self.stop("kill", 0)
            self.store()
            try:
                self._process.wait(60)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()


@pytest.fixture(params=SHELLS)
def entry(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Entry]:
    shell = SHELLS[request.param]
    assert shutil.which(shell[0]), f"install Debian's {shell[0]}"
    running = Entry(shell, tmp_path)
    yield running
    running.end()


def record(**fields: object) -> dict[str, object]:
    """``exit.json`` of a command that ended with 0."""
    return {
        "schema": 1,
        "code": 0,
        "signal": None,
        "stop_cause": "",
        "lost": False,
        "oom": False,
        "run": 1,
        **fields,
    }


def test_command_starts_only_after_go_and_its_output_is_in_the_run_and_in_the_containers_log(entry: Entry) -> None:
    entry.start("pwd; printf 'no newline'; echo wrong >&2")
    assert entry.runs()
    assert not (entry.root / "runs/1/start.json").exists()
    entry.store()
    entry.go()
    assert entry.wait() == 0
    assert entry.text("runs/1/stdout") == f"{entry.root}/job/model-code\nno newline"
    assert entry.text("log") == entry.text("runs/1/stdout")
    assert entry.text("runs/1/stderr") == entry.text("errors") == "wrong\n"


def test_records_have_the_form_that_the_helper_and_the_kubelet_read(entry: Entry) -> None:
    entry.start("exit 3")
    entry.store()
    entry.go()
    assert entry.wait() == 3
    assert entry.exit() == record(code=3)
    folder = LearnerFolder(entry.root)
    assert not folder.unreadable()
    end = folder.exit()
    assert end is not None
    assert end.code == 3
    assert json.loads(entry.text("message")) == json.loads(entry.text("runs/1/exit.json"))


def test_what_the_container_uses_is_written_for_the_helper(entry: Entry) -> None:
    entry.start("sleep 600")
    entry.go()
    folder = LearnerFolder(entry.root)
    eventually(lambda: PodUsage(folder).read().clock_s > 0)
    entry.stop("kill", 0)
    entry.store()
    assert entry.wait() == 137


def test_entry_stays_until_the_helper_has_stored_everything(entry: Entry) -> None:
    entry.start("exit 7")
    entry.go()
    entry.exit()
    assert entry.runs()
    entry.store()
    assert entry.wait() == 7


def test_entry_ends_after_the_store_timeout_without_a_helper(entry: Entry) -> None:
    entry.start("true", store_timeout_s=0)
    entry.go()
    assert entry.wait() == 0


def test_command_that_dies_by_a_signal_is_recorded_with_it(entry: Entry) -> None:
    entry.start("kill -s SEGV $$")
    entry.store()
    entry.go()
    assert entry.wait() == 128 + signal.SIGSEGV
    assert entry.exit() == record(code=None, signal=signal.SIGSEGV)


def test_stopped_command_gets_its_grace_and_its_own_exit_code_is_recorded(entry: Entry) -> None:
    entry.start("trap 'echo saving; exit 9' TERM; echo up; while :; do sleep 0.05; done")
    entry.go()
    eventually(lambda: entry.text("runs/1/stdout") == "up\n")
    entry.stop("halt", 600_000)
    assert entry.exit() == record(code=9, stop_cause="halt")
    assert entry.text("runs/1/stdout") == "up\nsaving\n"
    assert (entry.root / "job/stop-requested").exists()
    entry.store()
    assert entry.wait() == 9


@pytest.mark.parametrize("times", [0, 5])
def test_entry_that_the_helper_wakes_reads_the_stop_at_once(entry: Entry, times: int) -> None:
    """Also after earlier hints with no stop."""
    pipe = entry.root / "control" / layout.WAKE_FILE
    os.mkfifo(pipe)
    entry.start("exec sleep 600", pause_s=600)
    entry.go()
    for _ in range(times):
        eventually(lambda: wake(pipe))
    eventually(lambda: entry.text("runs/1/usage.json"))
    entry.stop("kill", 0)
    entry.store()

    def has_ended() -> bool:
        wake(pipe)  # again: a hint may be lost
        return not entry.runs()

    eventually(has_ended)
    assert entry.wait() == 137
    assert entry.exit() == record(code=None, signal=9, stop_cause="kill")


@pytest.mark.parametrize(
    "command",
    [
        "while :; do cat $PIPE; done",
        "trap '' PIPE; while :; do echo > $PIPE; done 2> /dev/null",
        "exec 3<> $PIPE; exec sleep 600",
        "exec tr '\\0' x < /dev/zero > $PIPE",
    ],
    ids=["takes what is written", "writes for ever", "keeps it open", "writes no end of a line"],
)
def test_command_that_misuses_the_pipe_of_its_helper_is_stopped(entry: Entry, command: str) -> None:
    """It has the pipe's user, so it can open it."""
    pipe = entry.root / "control" / layout.WAKE_FILE
    os.mkfifo(pipe)
    entry.start(command, PIPE=str(pipe))
    entry.go()
    eventually(lambda: entry.text("runs/1/usage.json"))
    entry.stop("kill", 0)
    entry.store()
    assert entry.wait() == 137
    assert entry.exit() == record(code=None, signal=9, stop_cause="kill")


def wake(pipe: Path) -> bool:
    """False: nobody waits there yet."""
    try:
        fd = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        os.write(fd, b"\n")
    except BrokenPipeError:  # the reader of the last time was about to end
        return False
    finally:
        os.close(fd)
    return True


def test_command_that_ignores_sigterm_is_killed_after_its_grace(entry: Entry) -> None:
    entry.start("trap '' TERM; echo up; while :; do sleep 0.05; done")
    entry.go()
    eventually(lambda: entry.text("runs/1/stdout") == "up\n")
    entry.stop("peer", 200)
    assert entry.exit() == record(code=None, signal=signal.SIGKILL, stop_cause="peer")


def test_stronger_stop_shortens_the_grace_of_the_first(entry: Entry) -> None:
    entry.start("trap 'echo again' TERM; echo up; while :; do sleep 0.05; done")
    entry.go()
    eventually(lambda: entry.text("runs/1/stdout") == "up\n")
    entry.stop("halt", 600_000)
    eventually(lambda: entry.text("runs/1/stdout") == "up\nagain\n")
    entry.stop("kill", 0)
    assert entry.exit() == record(code=None, signal=signal.SIGKILL, stop_cause="kill")


def test_child_that_survives_its_shell_has_the_grace_to_save_and_is_gone_afterwards(entry: Entry) -> None:
    saving = "trap 'sleep 0.5; echo saved; exit' TERM; echo up; while :; do sleep 0.05; done"
    entry.start(f'sh -c "{saving}" & wait')
    entry.go()
    eventually(lambda: entry.text("runs/1/stdout") == "up\n")
    entry.stop("halt", 600_000)
    entry.exit()
    assert entry.text("runs/1/stdout") == "up\nsaved\n"


def test_process_left_behind_by_the_command_is_killed_at_its_end(entry: Entry) -> None:
    entry.start("sleep 300 & echo $! > left")
    entry.go()
    entry.exit()
    left = int(entry.text("job/model-code/left"))
    eventually(lambda: identify(left) is None)


def test_learner_stopped_before_go_never_starts(entry: Entry) -> None:
    entry.start("touch ran")
    entry.stop("kill", 0)
    assert entry.exit() == record(code=None, signal=signal.SIGKILL, stop_cause="kill")
    entry.go()
    entry.store()
    assert entry.wait() == 137
    assert not (entry.root / "job/model-code/ran").exists()


def test_sigterm_of_the_kubelet_reaches_the_command_and_results_are_still_stored(entry: Entry) -> None:
    entry.start("trap 'exit 5' TERM; echo up; while :; do sleep 0.05; done", WEFT_POD_GRACE_S="600")
    entry.go()
    eventually(lambda: entry.text("runs/1/stdout") == "up\n")
    entry.terminate()
    assert entry.exit() == record(code=5)
    assert entry.runs()
    entry.store()
    assert entry.wait() == 5


def test_pod_that_is_deleted_while_its_command_starts_ends(entry: Entry) -> None:
    entry.start("echo up; while :; do sleep 0.05; done", WEFT_POD_GRACE_S="600")
    entry.go()
    eventually(lambda: entry.text("runs/1/start.json"))
    entry.terminate()
    assert entry.exit() == record(code=None, signal=signal.SIGTERM)
    entry.store()
    assert entry.wait() == 128 + signal.SIGTERM


def test_pod_that_is_deleted_before_its_command_has_a_group_of_its_own_ends_at_once(entry: Entry) -> None:
    """The SIGTERM went to a group that did not exist yet: the command ran on, and was killed after its whole grace."""
    setsid, may_begin = entry.root / "bin/setsid", entry.root / "may-begin"
    setsid.parent.mkdir()
    setsid.write_text(f'#!/bin/sh\nuntil [ -e {may_begin} ]; do sleep 0.05; done\nexec {shutil.which("setsid")} "$@"\n')
    setsid.chmod(0o755)
    path = f"{setsid.parent}:{os.environ['PATH']}"
    entry.start("echo up; while :; do sleep 0.05; done", PATH=path, WEFT_POD_GRACE_S="600")
    entry.go()
    eventually(lambda: entry.text("runs/1/start.json"))
    entry.terminate()
    eventually(lambda: entry.text("runs/1/stopped"))
    may_begin.touch()
    assert entry.exit() == record(code=None, signal=signal.SIGTERM)
    entry.store()
    assert entry.wait() == 128 + signal.SIGTERM


def test_stop_that_cannot_be_read_stops_nothing(entry: Entry) -> None:
    entry.start("echo up; until [ -e end ]; do sleep 0.05; done")
    for content in ("", "{", '{"cause": "$(touch ran)", "grace_ms": 0}', '{"cause": "kill", "grace_ms": "x"}'):
        (entry.root / "control/stop.json").write_text(content)
    entry.go()
    eventually(lambda: entry.text("runs/1/stdout") == "up\n")
    (entry.root / "job/model-code/end").touch()
    assert entry.exit() == record()


def test_hostile_command_cannot_make_a_record_that_is_no_json(entry: Entry) -> None:
    entry.start('printf "a\\"}; $(exit)" > ../../runs/1/stopped; rm ../../runs/1/exit.reserved; exit 4')
    entry.go()
    assert entry.exit() == record(code=4)


@pytest.mark.parametrize(
    "forgery", ["mkdir exit.json", "ln -s /etc/passwd exit.json", "rm exit.reserved; mkdir exit.reserved"]
)
def test_record_takes_the_place_of_whatever_the_command_has_put_there(entry: Entry, forgery: str) -> None:
    entry.go()
    entry.store()
    entry.start(f"cd {entry.root}/runs/1; {forgery}; exit 7")
    assert entry.wait() == 7
    assert entry.exit() == record(code=7)
    assert not (entry.root / "runs/1/exit.json").is_symlink()


def test_containers_log_follows_what_the_command_writes_while_it_runs(entry: Entry) -> None:
    fifo = entry.root / "next"
    os.mkfifo(fifo)
    entry.start(f"while read -r line; do echo $line; echo $line >&2; done <> {fifo}")
    entry.go()
    with fifo.open("w") as command:
        command.write("one\n")
        command.flush()
        eventually(lambda: entry.text("log") == entry.text("errors") == "one\n")
        command.write("two\n")
        command.flush()
        eventually(lambda: entry.text("log") == entry.text("errors") == "one\ntwo\n")
    entry.stop("kill", 0)
    entry.store()
    assert entry.wait() == 137


def test_command_that_sets_back_the_times_of_its_output_has_it_in_the_containers_log_at_its_end(entry: Entry) -> None:
    entry.start("echo first; sleep 1; echo last; touch -d 2001-01-01 ../../runs/1/stdout")
    entry.store()
    entry.go()
    assert entry.wait() == 0
    assert entry.text("log") == "first\nlast\n"


def test_flood_of_output_is_whole_in_the_run_and_shortened_in_the_containers_log(entry: Entry) -> None:
    # So much that it takes less than a second per mebibyte, which is what is copied, however busy the machine is.
    entry.start("head -c 30000000 /dev/zero | tr '\\0' x")
    entry.store()
    entry.go()
    assert entry.wait() == 0
    assert len(entry.text("runs/1/stdout")) == 30_000_000
    log = entry.text("log")
    assert len(log) < 30_000_000
    assert "bytes are left out here" in log


def test_command_cannot_fill_the_nodes_disk_by_the_termination_message(entry: Entry) -> None:
    """Its file is on no volume with a bound. The kubelet lets the command write it."""
    fill = 'head -c 3000000 /dev/zero > "$MESSAGE"; wc -c < "$MESSAGE"; ulimit -H -f'
    entry.start(fill, MESSAGE=str(entry.root / "message"), WEFT_POD_FILE_BYTES=str(2**20))
    entry.store()
    entry.go()
    assert entry.wait() == 0
    assert entry.text("runs/1/stdout").split() == [str(2**20), str(2**20 // 512)]
    assert json.loads(entry.text("message"))["code"] == 0


def test_command_that_crashes_writes_no_core_file_into_its_volume(entry: Entry) -> None:
    """It holds the learner's memory, and would count for the volume's bound. On one machine there is none either."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    try:
        entry.start("ulimit -S -c; ulimit -H -c")
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
    entry.store()
    entry.go()
    assert entry.wait() == 0
    assert entry.text("runs/1/stdout") == "0\n0\n"


def test_second_start_in_the_same_volumes_runs_nothing(entry: Entry) -> None:
    entry.start("echo once")
    entry.store()
    entry.go()
    assert entry.wait() == 0
    entry.start("echo twice")
    assert entry.wait() == 75
    assert entry.text("runs/1/stdout") == "once\n"


def test_variables_of_the_entry_are_not_the_commands(entry: Entry) -> None:
    entry.start("env", MINE="1")
    entry.store()
    entry.go()
    entry.wait()
    assert "MINE=1" in entry.text("runs/1/stdout")
    assert "WEFT_POD" not in entry.text("runs/1/stdout")


def test_stop_marks_of_the_helper_have_the_form_that_the_script_reads(entry: Entry) -> None:
    folder = LearnerFolder(entry.root / "control")
    folder.write("stop.json", StopMark("deadline", 1500)._asdict())
    entry.start("true")
    assert entry.exit() == record(code=None, signal=signal.SIGTERM, stop_cause="deadline")
