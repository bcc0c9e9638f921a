"""The guarantees of the SDK's calls inside a learner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import weft
from services.helper.checkpoints.detection import MARKER
from tests.waiting import HANG_S
from weft._learner import CheckpointMarker, Reporter, StopRequest

SDK = Path(weft.__file__).parent.parent


class Learner:
    """A learner's state folder, a reporter in it, and its warnings."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {"JOB_STATE_DIR": str(folder)}
        self.warnings: list[str] = []
        self.reporter = Reporter(environ=self.environ, now_ms=lambda: 1234, warn=self.warnings.append)

    @property
    def file(self) -> Path:
        return self.folder / "metrics.jsonl"

    def report(self, step: object = None, **metrics: object) -> None:
        self.reporter.report(step, None, metrics, None)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text().splitlines()]

    def values(self) -> list[dict[str, Any]]:
        return [line["values"] for line in self.lines()]


@pytest.fixture
def learner(tmp_path: Path) -> Learner:
    return Learner(tmp_path)


def run_learner(code: str, folder: Path | None, *, isolated: bool = False) -> Any:
    """Run `code` in another interpreter, like a learner's process."""
    environ = {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(SDK)}
    if folder is not None:
        environ["JOB_STATE_DIR"] = str(folder)
    flags = ["-S"] if isolated else []
    return subprocess.run(
        [sys.executable, *flags, "-W", "error", "-c", code],
        env=environ,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


# --- report -------------------------------------------------------------------


def test_a_report_is_one_line_with_time_step_values_and_context(learner: Learner) -> None:
    learner.reporter.report(3, {"val/loss": 0.5}, {"accuracy": 1}, {"subset": "val"})

    assert learner.file.read_text() == (
        '{"time_ms":1234,"step":3,"values":{"val/loss":0.5,"accuracy":1.0},"context":{"subset":"val"}}\n'
    )
    assert learner.warnings == []


def test_public_functions_write_to_the_learners_folder(tmp_path: Path) -> None:
    code = (
        "import weft\n"
        "weft.report({'a/b': 1.5}, step=2, context={'subset': 'val'}, loss=0.25)\n"
        "weft.progress(0.5, eta_s=8)\n"
    )
    done = run_learner(code, tmp_path, isolated=True)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    first, second = Learner(tmp_path).lines()
    assert first["values"] == {"a/b": 1.5, "loss": 0.25}
    assert (first["step"], first["context"]) == (2, {"subset": "val"})
    assert second["progress"] == {"fraction": 0.5, "eta_s": 8.0}


def test_outside_a_learner_nothing_is_written_or_printed(tmp_path: Path) -> None:
    code = (
        f"import os, weft; os.chdir({str(tmp_path)!r}); weft.report(step=1, loss=object())\n"
        "weft.progress(0.5); print(weft.checkpoint_requested())"
    )
    done = run_learner(code, None)

    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")
    assert list(tmp_path.iterdir()) == []


def test_nan_and_infinities_are_kept_as_strings(learner: Learner) -> None:
    learner.report(a=float("nan"), b=float("inf"), c=float("-inf"))

    assert learner.values() == [{"a": "NaN", "b": "Infinity", "c": "-Infinity"}]


def test_scalars_of_array_libraries_are_converted_by_float(learner: Learner) -> None:
    class Scalar:
        def __float__(self) -> float:
            return 0.125

    class Step:
        def __index__(self) -> int:
            return 7

    learner.report(step=Step(), loss=Scalar(), flag=True)
    learner.report(step=8.0, loss=1)

    assert [(line["step"], line["values"]) for line in learner.lines()] == [
        (7, {"loss": 0.125, "flag": 1.0}),
        (8, {"loss": 1.0}),
    ]


def test_tensor_with_a_gradient_is_detached_first(learner: Learner) -> None:
    class Tensor:
        def detach(self) -> float:
            return 0.5

        def __float__(self) -> float:
            raise RuntimeError("carries a gradient")

    learner.report(loss=Tensor())

    assert learner.values() == [{"loss": 0.5}]
    assert learner.warnings == []


def test_value_that_is_no_number_is_left_out_with_one_warning(learner: Learner) -> None:
    learner.report(loss=0.5, note="fine", other=None)
    learner.report(loss=0.25, huge=10**400)

    assert learner.values() == [{"loss": 0.5}, {"loss": 0.25}]
    assert len(learner.warnings) == 1
    assert "'note'" in learner.warnings[0]


@pytest.mark.parametrize(
    ("step", "metrics"),
    [("seven", {"a": 1}), (1 << 63, {"a": 1}), (float("nan"), {"a": 1}), (1, {"a": "x"}), (1, 5)],
)
def test_a_report_that_cannot_be_written_is_dropped_and_counted(learner: Learner, step: object, metrics: Any) -> None:
    learner.reporter.report(step, metrics, {}, None)
    learner.reporter.report(step, metrics, {}, None)
    learner.report(step=9, loss=0.5)

    (line,) = learner.lines()
    assert (line["step"], line["dropped"]) == (9, 2)
    assert len(learner.warnings) == 1


def test_names_that_are_no_valid_text_make_valid_json(learner: Learner) -> None:
    learner.reporter.report(1, {"\ud800a": 1, 5: 2, "é\n": 3}, {}, {"x": 1})

    (line,) = learner.lines()
    assert line["values"] == {"?a": 1.0, "5": 2.0, "é\n": 3.0}
    assert line["context"] == {"x": "1"}


def test_missing_folder_gives_one_warning_and_is_used_once_it_exists(tmp_path: Path) -> None:
    learner = Learner(tmp_path / "later")
    learner.report(loss=1)
    learner.report(loss=2)
    learner.folder.mkdir()
    learner.report(loss=3)

    assert learner.values() == [{"loss": 3.0}]
    assert learner.lines()[0]["dropped"] == 2
    assert len(learner.warnings) == 1


def test_file_stops_at_its_limit_and_counts_lost_reports(learner: Learner) -> None:
    learner.environ["WEFT_REPORT_MAX_BYTES"] = "200"
    for step in range(10):
        learner.report(step=step, loss=1)
    learner.reporter.close()

    *kept, last = learner.lines()
    assert [line["step"] for line in kept] == list(range(len(kept)))
    assert 0 < len(kept) < 10
    assert last["dropped"] == 10 - len(kept)
    assert "limit of 200 bytes" in learner.warnings[0]


def test_report_over_the_size_limit_is_dropped(learner: Learner) -> None:
    learner.reporter.report(1, {f"metric{i}": i for i in range(5000)}, {}, None)

    assert learner.file.read_text() == ""
    assert "bytes is over" in learner.warnings[0]


def test_first_line_after_a_full_disk_is_whole(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write

    def short(fd: int, line: bytes) -> int:
        return real(fd, line[:10])

    monkeypatch.setattr(os, "write", short)
    learner.report(step=1, loss=1)
    monkeypatch.undo()
    learner.report(step=2, loss=2)

    torn, whole = learner.file.read_text().splitlines()
    assert torn == '{"time_ms"'
    assert json.loads(whole)["step"] == 2
    assert json.loads(whole)["dropped"] == 1


def test_threads_and_forked_workers_write_whole_lines(tmp_path: Path) -> None:
    code = (
        "import os, threading, weft\n"
        "def work(worker):\n"
        "    for step in range(200): weft.report(step=step, worker=worker)\n"
        "threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "pids = []\n"
        "for i in range(4, 7):\n"
        "    pid = os.fork()\n"
        "    if not pid: work(i); os._exit(0)\n"
        "    pids.append(pid)\n"
        "work(7)\n"
        "for pid in pids: os.waitpid(pid, 0)\n"
    )
    done = run_learner(code, tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    reported = {(line["values"]["worker"], line["step"]) for line in Learner(tmp_path).lines()}
    assert reported == {(worker, step) for worker in range(8) for step in range(200)}


def test_lock_held_during_a_fork_does_not_block_the_child(learner: Learner) -> None:
    held = threading.Event()
    leave = threading.Event()

    def hold() -> None:
        with learner.reporter._lock:
            held.set()
            leave.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    learner.reporter.after_fork()
    learner.report(loss=1)
    leave.set()
    thread.join()

    assert learner.values() == [{"loss": 1.0}]


def test_changed_state_folder_is_used(learner: Learner) -> None:
    learner.report(loss=1)
    other = learner.folder / "other"
    other.mkdir()
    learner.environ["JOB_STATE_DIR"] = str(other)
    learner.report(loss=2)

    assert learner.values() == [{"loss": 1.0}]
    assert Learner(other).values() == [{"loss": 2.0}]


def test_closed_stderr_is_no_error(tmp_path: Path) -> None:
    code = "import sys, weft; sys.stderr = None; weft.report(step='x', a=1); print('on')"
    done = run_learner(code, tmp_path)

    assert (done.returncode, done.stdout) == (0, "on\n")


# --- progress -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("fraction", "eta_s", "shown"),
    [
        (0.25, None, {"fraction": 0.25, "eta_s": None}),
        (1.5, -3, {"fraction": 1.0, "eta_s": 0.0}),
        (-1, 0, {"fraction": 0.0, "eta_s": 0.0}),
    ],
)
def test_progress_is_limited_to_valid_values(
    learner: Learner, fraction: float, eta_s: float | None, shown: dict[str, Any]
) -> None:
    learner.reporter.progress(fraction, eta_s)

    assert learner.lines()[0]["progress"] == shown


@pytest.mark.parametrize(("fraction", "eta_s"), [(float("nan"), None), (0, float("inf")), ("", 1)])
def test_progress_that_is_no_number_is_dropped(learner: Learner, fraction: Any, eta_s: float | None) -> None:
    learner.reporter.progress(fraction, eta_s)

    assert not learner.file.exists()
    assert len(learner.warnings) == 1


# --- checkpoint_requested -----------------------------------------------------


class Watch:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def default_sigterm() -> Any:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("default_sigterm")
def test_stop_file_is_seen_within_a_tenth_of_a_second_and_permanently(tmp_path: Path) -> None:
    watch = Watch()
    stop = StopRequest(environ={"JOB_STATE_DIR": str(tmp_path)}, clock=watch)
    assert not stop.requested()

    (tmp_path / "stop-requested").touch()
    watch.now += 0.05
    assert not stop.requested()  # the last check is still valid
    watch.now += 0.05
    assert stop.requested()

    (tmp_path / "stop-requested").unlink()
    watch.now += 10
    assert stop.requested()


@pytest.mark.usefixtures("default_sigterm")
def test_sigterm_requests_a_checkpoint_instead_of_ending_the_process(tmp_path: Path) -> None:
    stop = StopRequest(environ={"JOB_STATE_DIR": str(tmp_path)}, clock=Watch())
    assert not stop.requested()

    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)

    assert stop.requested()


@pytest.mark.usefixtures("default_sigterm")
def test_sigterm_handler_of_the_user_stays() -> None:
    def mine(signum: int, frame: object) -> None: ...

    signal.signal(signal.SIGTERM, mine)
    StopRequest(environ={}, clock=Watch()).requested()

    assert signal.getsignal(signal.SIGTERM) is mine


@pytest.mark.usefixtures("default_sigterm")
def test_sigterm_handler_is_set_by_the_main_thread_only() -> None:
    stop = StopRequest(environ={}, clock=Watch())
    thread = threading.Thread(target=stop.requested)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    stop.requested()
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL


def test_sigterm_ends_a_forked_worker(tmp_path: Path) -> None:
    code = (
        "import os, signal, weft\n"
        "weft.checkpoint_requested()\n"
        "pid = os.fork()\n"
        "if not pid:\n"
        "    signal.raise_signal(signal.SIGTERM); os._exit(0)\n"
        "print(os.WTERMSIG(os.waitpid(pid, 0)[1]), weft.checkpoint_requested())\n"
    )
    done = run_learner(code, tmp_path)

    assert (done.stdout, done.stderr) == (f"{int(signal.SIGTERM)} False\n", "")


# --- checkpoint_saved ---------------------------------------------------------


def test_each_saved_checkpoint_is_a_new_marker(tmp_path: Path) -> None:
    marker = CheckpointMarker(environ={"JOB_STATE_DIR": "x", "CHECKPOINT_DIR": str(tmp_path)})
    marker.write()
    (file,) = tmp_path.iterdir()
    assert file.name == MARKER
    first = file.read_text()
    with file.open():  # its inode stays in use
        inode = file.stat().st_ino
        marker.write()
        assert (file.stat().st_ino == inode, file.read_text() == first) == (False, False)
    assert list(tmp_path.iterdir()) == [file]


def test_checkpoint_that_cannot_be_marked_never_disturbs_training(tmp_path: Path) -> None:
    warnings: list[str] = []
    there = {"JOB_STATE_DIR": "x", "CHECKPOINT_DIR": str(tmp_path / "none")}
    marker = CheckpointMarker(environ=there, warn=warnings.append)
    marker.write()
    marker.write()
    assert len(warnings) == 1
    CheckpointMarker(environ={"CHECKPOINT_DIR": str(tmp_path)}).write()
    assert not list(tmp_path.iterdir()), "outside a learner nothing is written"


# --- the package --------------------------------------------------------------


def test_importing_the_package_loads_no_other_module() -> None:
    # typing and what it needs is all that the package itself may load.
    code = "import sys, typing; before = set(sys.modules); import weft\nprint(sorted(set(sys.modules) - before))"
    done = run_learner(code, None, isolated=True)

    assert done.stdout == "['__future__', 'weft']\n"


def test_every_public_name_exists() -> None:
    for name in weft.__all__:
        assert getattr(weft, name) is not None
        assert name in dir(weft)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = weft.nonsense
