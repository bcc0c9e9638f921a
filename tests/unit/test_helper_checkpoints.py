"""When a snapshot of CHECKPOINT_DIR is due, and of which files."""

from __future__ import annotations

from services.helper.checkpoints.detection import MARKER, Detector, Plan
from services.helper.learner_files import LearnerFile, SkippedFile

STARTED = 1_000_000
"""Unix ms; the detector's monotonic clock begins there, too."""


class Folder:
    """CHECKPOINT_DIR in virtual time, with its detector."""

    def __init__(self, quiet_s: float = 3) -> None:
        self.detector = Detector(started_ms=STARTED, quiet_s=quiet_s)
        self.now_ms = STARTED + 60_000
        self.files: dict[str, LearnerFile | SkippedFile] = {}
        self._inode = 0

    def write(self, path: str, *, age_ms: float = 0) -> None:
        self._inode += 1
        stamp = self.now_ms * 1_000_000 - round(age_ms * 1_000_000)
        self.files[path] = LearnerFile(path, path, 1, stamp, stamp, self._inode)

    def remove(self, path: str) -> None:
        del self.files[path]

    def observe(self, after_s: float = 0) -> Plan | None:
        self.now_ms += round(after_s * 1000)
        return self.detector.observe(
            [self.files[path] for path in sorted(self.files)], now_s=self.now_ms / 1000, listed_ms=self.now_ms
        )

    def stored(self, after_s: float = 0) -> Plan:
        """The snapshot that is due, which counts as stored from now on."""
        plan = self.observe(after_s)
        assert plan is not None
        self.detector.record_stored(plan)
        return plan

    def until(self, after_s: float = 0) -> int | None:
        """``unchanged_until``."""
        self.now_ms += round(after_s * 1000)
        return self.detector.unchanged_until(list(self.files.values()), listed_ms=self.now_ms)


def names(plan: Plan | None) -> list[str] | None:
    return None if plan is None else [file.name for file in plan.files]


# --- without markers --------------------------------------------------------------------------------------------------


def test_checkpoint_is_due_once_it_was_quiet_for_the_period() -> None:
    folder = Folder()
    folder.write("step-1")
    assert folder.observe() is None
    assert folder.observe(2.9) is None
    assert names(folder.stored(0.2)) == ["step-1"]
    assert folder.observe(60) is None, "nothing is new"


def test_folder_counts_as_still_since_a_file_of_it_was_last_made_changed_or_removed() -> None:
    folder = Folder()
    still: list[float] = []

    def observe_twice() -> None:
        for after_s in (0, 20):
            folder.observe(after_s)
            still.append(round(folder.detector.still_s(folder.now_ms / 1000)))

    observe_twice()
    for _ in range(2):
        folder.write("step-1")
        observe_twice()
    folder.remove("step-1")
    observe_twice()
    folder.files["."] = SkippedFile(".", "Permission denied", has_data=True)
    observe_twice()
    assert still == [*[0, 20] * 4, 20, 40]


def test_checkpoint_written_as_soon_as_the_training_runs_is_stored() -> None:
    folder = Folder()
    folder.write("step-1", age_ms=60_004)  # the kernel stamps with the time of its last tick
    folder.observe()
    assert names(folder.stored(3)) == ["step-1"]


def test_entry_that_still_changes_is_left_out_and_its_former_version_is_kept() -> None:
    folder = Folder()
    folder.write("step-1/part")
    folder.write("state")
    folder.observe()
    folder.stored(3)
    folder.write("step-2")
    folder.observe(1)
    for _ in range(2):
        folder.write("state")
        folder.observe(1)
    folder.write("state")
    plan = folder.observe(1)
    assert names(plan) == ["step-1/part", "step-2"]
    assert plan is not None
    assert plan.kept == {"state"}


def test_folder_counts_as_one_checkpoint() -> None:
    folder = Folder()
    folder.write("step-1/part-0")
    folder.observe()
    folder.write("step-1/part-1")
    assert folder.observe(3) is None
    assert names(folder.observe(3)) == ["step-1/part-0", "step-1/part-1"]


def test_checkpoint_removed_before_the_next_is_whole_stays_in_one_more_snapshot() -> None:
    folder = Folder()
    folder.write("step-1")
    folder.observe()
    folder.stored(3)
    folder.remove("step-1")
    folder.write("notes")
    folder.observe()
    folder.write("step-2")
    plan = folder.stored(3)
    assert (names(plan), sorted(plan.kept)) == (["notes"], ["step-1", "step-2"])
    folder.write("notes")
    folder.observe()
    folder.write("step-2")
    plan = folder.stored(3)
    assert (names(plan), sorted(plan.kept)) == (["notes"], ["step-2"])


def test_temporary_names_of_frameworks_are_left_out() -> None:
    folder = Folder()
    for path in ("a.tmp", "tmp-checkpoint-5/model", "5.orbax-checkpoint-tmp-17/d/array", "step-5/w.tmp", "step-5/w"):
        folder.write(path)
    folder.observe()
    assert names(folder.observe(3)) == ["step-5/w"]


def test_restored_files_are_no_reason_for_a_snapshot_but_part_of_one() -> None:
    folder = Folder()
    folder.write("step-1", age_ms=60_020)
    folder.observe()
    assert folder.observe(10) is None
    folder.write("step-2")
    folder.observe()
    assert names(folder.observe(3)) == ["step-1", "step-2"]


def test_checkpoint_that_cannot_be_read_as_a_whole_is_left_out() -> None:
    folder = Folder()
    folder.write("step-1")
    folder.files["step-2"] = SkippedFile("step-2/weights", "it is mostly holes", has_data=True)
    folder.write("step-2/state")
    folder.files["link"] = SkippedFile("step-1-link", "it is a link", has_data=False)
    folder.observe()
    assert names(folder.observe(3)) == ["step-1"]
    folder.files["..."] = SkippedFile("...", "there are more than 100000 files and folders", has_data=True)
    folder.write("step-3")
    folder.observe()
    assert folder.observe(3) is None


# --- the time of a snapshot -------------------------------------------------------------------------------------------


def test_time_of_a_snapshot_lies_before_every_file_that_it_lacks() -> None:
    folder = Folder()
    folder.write("step-1")
    folder.observe()
    folder.write("step-2/part-0")
    began = folder.now_ms
    folder.observe(2)
    folder.write("step-2/part-1")
    plan = folder.stored(1)
    assert (names(plan), plan.time) == (["step-1"], began - 1)
    assert folder.until(2) == began - 1
    plan = folder.stored(3)
    assert plan.time == folder.now_ms - 10
    assert folder.until(50) == folder.now_ms - 10, "nothing else has changed until then"


# --- with markers -----------------------------------------------------------------------------------------------------


def test_with_a_marker_a_checkpoint_is_due_at_once_and_only_then() -> None:
    folder = Folder()
    folder.write("step-1")
    folder.observe(0.1)
    folder.write(MARKER)
    assert names(folder.stored(0.1)) == [MARKER, "step-1"]
    folder.write("step-2")
    assert folder.observe(60) is None, "it was not marked"
    folder.write("step-3", age_ms=-1)
    folder.write(MARKER)
    assert names(folder.stored(0.1)) == [MARKER, "step-1", "step-2"], "step-3 began after the marker"


def test_file_written_in_the_millisecond_after_the_marker_is_not_part_of_its_checkpoint() -> None:
    folder = Folder()
    folder.write("step-1", age_ms=0.9)
    folder.write(MARKER, age_ms=0.8)
    folder.write("step-2", age_ms=0.7)
    assert names(folder.stored(0.1)) == [MARKER, "step-1"]


def test_checkpoint_overwritten_after_its_marker_waits_for_the_next_marker() -> None:
    folder = Folder()
    folder.write("state")
    folder.write(MARKER)
    folder.stored(1)
    folder.write("state")
    folder.write(MARKER)
    folder.now_ms += 1
    folder.write("state")
    assert folder.observe(1) is None
    folder.write(MARKER)
    assert names(folder.observe(1)) == [MARKER, "state"]


def test_restored_marker_lets_only_markers_count() -> None:
    folder = Folder()
    folder.write(MARKER, age_ms=60_020)
    folder.write("step-1")
    folder.observe()
    assert folder.observe(60) is None
    folder.write(MARKER)
    assert names(folder.observe(1)) == [MARKER, "step-1"]
