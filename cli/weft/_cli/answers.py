"""The JSON of every command: `scripts/command_output.py` makes docs/command-output.md from it, and tests compare both.

A type is a word: text, integer, number, flag, time, object, or the name of one of `TYPES`, or of an answer of the API
(docs/api-reference.md). ``list of T``, ``map of T`` and ``T or null`` combine them. A name that ends in ``?`` may be
absent. No command imports this module.
"""

from __future__ import annotations

from typing import Final

Fields = dict[str, tuple[str, str]]
"""Name of a field -> (type, what it holds)."""

TYPES: Final[dict[str, Fields]] = {
    "Changed": {
        "jobs": ("list of Job", "The jobs that were changed, as they are now; others are errors on stderr."),
    },
    "DeletedJob": {
        "id": ("text", "Id of the job."),
        "deleted": ("flag", "Always true."),
    },
    "JobMetrics": {
        "job": ("text", "Id of the job."),
        "name": ("text", "Name of the job."),
        "series": ("list of JobSeries", "Its curves."),
    },
    "File": {
        "path": ("text", "Where the file is now."),
        "size": ("integer", "Its size in bytes."),
        "kind": ("text", "results, logs, checkpoints or code."),
    },
    "Profile": {
        "name": ("text", "Name of the profile."),
        "url": ("text", "Address of its platform."),
        "current": ("flag", "Commands go to it."),
        "home": ("text", "Folder of a platform on this machine; empty for one elsewhere."),
    },
    "User": {
        "user": ("text", "Name of the user."),
        "tenant": ("text", "Tenant of the user."),
        "scope": ("text", "user or admin: the widest of the user's keys."),
        "keys": ("integer", "Number of keys that work."),
        "created": ("time", "When the first of them was made."),
    },
    "Node": {
        "name": ("text", "Name of the node."),
        "cpus": ("number", "CPU cores for learners."),
        "memory": ("integer", "Bytes of memory for learners."),
        "gpus": ("number", "GPUs for learners."),
        "gpu_type": ("text", "Model of its GPUs; empty without any."),
        "ready": ("flag", "It can run learners now."),
        "used": ("ResourceSize", "What the learners below hold."),
        "learners": ("list of PlacedLearner", "Learners on it, of the jobs that you may see."),
    },
    "PlacedLearner": {
        "job": ("text", "Id of the job."),
        "name": ("text", "Name of the job."),
        "user": ("text", "User of the job."),
        "tenant": ("text", "Tenant of the job."),
        "learner": ("text", "Name of the learner, e.g. worker-0."),
        "node": ("text", "Name of its node."),
        "cpus": ("number", "CPU cores that it holds."),
        "memory": ("integer", "Bytes of memory that it holds."),
        "gpus": ("number", "GPUs that it holds."),
    },
    "Service": {
        "name": ("text", "Name of the service."),
        "state": ("text", "ready, starting or down."),
        "pid": ("integer or null", "Its process; null if it does not run."),
        "restarts": ("integer", "How often it was started again."),
        "address": ("text", "Where it listens; may be empty."),
        "why": ("text", "Why it is not ready, or what is unusual; may be empty."),
    },
    "Conformance": {
        "check": ("text", "Its name."),
        "verdict": ("text", "pass, fail or not applicable."),
        "detail": ("text", "What was found."),
        "fix": ("text", "What to do; empty unless it failed."),
    },
    "Check": {
        "check": ("text", "What was checked."),
        "ok": ("flag", "Nothing is wrong."),
        "detail": ("text", "What was found."),
        "fix": ("text", "The command that repairs it; empty where ok."),
    },
    "ProbeCheck": {
        "name": ("text", "access, pod, image, metrics or object store."),
        "problem": ("text", "What keeps jobs from running; empty where it works."),
        "fix": ("text", "What to do; empty where it works."),
    },
    "BackupHead": {
        "created": ("time", "When the backup was made."),
        "weft": ("text", "Version of the platform that made it."),
    },
    "MasterKey": {
        "id": ("text", "Id of the master key."),
        "secrets": ("integer", "Number of secrets that it opens."),
    },
    "Error": {
        "code": ("text", "Stable code of the API (docs/api.md), or usage, machine, error, fault of the command line."),
        "message": ("text", "What happened and what to do."),
        "errors": ("list of object", "Wrong fields: pointer, message, hint and place (FILE:LINE) of each."),
        "exit_code": ("integer", "Exit code of the command."),
        "retryable": ("flag", "The same command may succeed later."),
        "trace_id": ("text", "Finds the request in the platform's logs; may be empty."),
    },
}

_RESTORED: Final[Fields] = {
    "home": ("text", "Folder of the platform."),
    "head": ("BackupHead", "What the backup says of itself."),
    "counts": ("map of integer", "Number of things restored, by kind."),
    "again": ("list of text", "Ids of jobs that are queued again."),
    "halted": ("list of text", "Ids of jobs that were halted (--halted)."),
    "warnings": ("list of text", "What the backup lacked."),
}
_VERIFIED: Final[Fields] = {
    "file": ("text", "The backup."),
    "head": ("BackupHead", "What the backup says of itself."),
    "counts": ("map of integer", "Number of things in it, by kind."),
    "authentic": ("flag", "Its key is here, and it is as that key wrote it."),
    "warnings": ("list of text", "What it lacks. It can be restored without that."),
}

COMMANDS: Final[dict[str, Fields | str]] = {
    "init": {
        "name": ("text", "Name of the job."),
        "files": ("list of text", "The files that were written."),
    },
    "train": "Job",
    "train --dry-run": "JobPlan",
    "train --array": {
        "group": ("text", "Name of the group."),
        "jobs": ("list of Job", "Its jobs."),
    },
    "watch": "Job",
    "list": {
        "jobs": ("list of Job", "Jobs, newest first."),
        "next": ("text or null", "Give it as --after to get the next jobs; null if there are no more."),
    },
    "show": "Job",
    "clone": "Job",
    "diff": "JobDifference",
    "logs": "stream of JobLine",
    "metrics": {"series": ("list of JobSeries", "Curves, thinned to about --points points each.")},
    "metrics JOB JOB": {"jobs": ("list of JobMetrics", "The jobs, in the order of the command.")},
    "metrics -f": "stream of JobPoint",
    "events": {"events": ("list of JobEvent", "Events, oldest first.")},
    "events -f": "stream of JobEvent",
    "explain": "JobExplanation",
    "wait": {"jobs": ("list of Job", "The jobs as they are now.")},
    "download": {
        "job": ("text", "Id of the job."),
        "folder": ("text", "Where the files are."),
        "files": ("list of File", "What was fetched."),
    },
    "halt": TYPES["Changed"],
    "resume": TYPES["Changed"],
    "kill": TYPES["Changed"],
    "delete": {"jobs": ("list of DeletedJob", "The jobs that were deleted; others are errors on stderr.")},
    "up": {
        "url": ("text", "Address of the API."),
        "key": ("text", "Key of the first administrator."),
        "home": ("text", "Folder of the platform."),
        "started": ("flag", "False: it ran already."),
        "queued_again": ("list of text", "Ids of jobs that `weft down` had halted."),
        "ignored": ("list of text", "Settings, NAME=value, that a platform that ran already does not have."),
        "probe": ("list of ProbeCheck", "What a pod of the cluster has tried; empty without Kubernetes."),
        "profile": ("text", "Name of the profile that was written."),
    },
    "down": {
        "home": ("text", "Folder of the platform."),
        "was_running": ("flag", "It ran before."),
        "purged": ("flag", "Its folder is removed."),
        "unfinished": ("integer or null", "Number of jobs that continue after the next start; null if unknown."),
        "halted": ("list of text", "Ids of jobs that were halted."),
    },
    "status": {
        "running": ("flag", "The platform runs."),
        "home": ("text", "Folder of the platform."),
        "url": ("text", "Address of the API; empty while it does not run."),
        "grpc": ("text", "Address of gRPC; empty while it does not run."),
        "isolation": ("object", "name, why and enforced: how learners are kept apart; empty if unknown."),
        "caches": ("object", "bytes by kind, and max_bytes; empty if unknown."),
        "services": ("list of Service", "Its services."),
        "quarantine": ("GetQuarantineReply or null", "Data that cannot be read; null if unknown."),
    },
    "manifests": {"items": ("list of object", "Objects for `kubectl apply`.")},
    "conformance": {"checks": ("list of Conformance", "What was tried.")},
    "doctor": {"checks": ("list of Check", "What was checked.")},
    "backup": {
        "file": ("text", "The backup."),
        "bytes": ("integer", "Its size."),
        "counts": ("map of integer", "Number of things in it, by kind."),
        "key": ("text", "File of the key that opens its secrets; empty with a passphrase."),
        "key_made": ("flag", "The key file is new."),
        "warnings": ("list of text", "What could not be read, and is not in the backup."),
    },
    "backup --verify": _VERIFIED,
    "restore": _RESTORED,
    "restore --dry-run": _VERIFIED,
    "master-key": {
        "file": ("text", "File of the master keys."),
        "current": ("text", "Id of the key that new secrets are wrapped by."),
        "rewrapped": ("integer", "Secrets that were wrapped anew."),
        "refused": ("integer", "Secrets that cannot be read."),
        "retired": ("list of text", "Ids of keys that were removed."),
        "keys": ("list of MasterKey", "All master keys."),
    },
    "login": {
        "profile": ("text", "Name of the profile that was written."),
        "url": ("text", "Address of the platform."),
        "user": ("text", "User of the key."),
        "tenant": ("text", "Tenant of the key."),
    },
    "logout": {
        "profile": ("text", "The profile."),
        "removed": ("flag", "Always true."),
    },
    "whoami": {
        "user": ("text", "User of the key."),
        "tenant": ("text", "Tenant of the key."),
        "scope": ("text", "user or admin."),
        "key_id": ("text", "Id of the key."),
        "permissions": ("list of text", "What the key allows."),
        "url": ("text", "Address of the platform."),
        "profile": ("text", "Name of the profile; empty if the key comes from the environment."),
    },
    "user": {"users": ("list of User", "Users with a key that works.")},
    "user add": "ApiKey",
    "user remove": {
        "user": ("text", "Name of the user."),
        "tenant": ("text", "Tenant of the user."),
        "revoked": ("list of text", "Ids of the keys that were revoked."),
    },
    "key": {"keys": ("list of ApiKey", "Your keys, revoked ones included; for administrators of all users.")},
    "key create": "ApiKey",
    "key revoke": {
        "id": ("text", "Id of the key."),
        "revoked": ("flag", "Always true."),
    },
    "cluster": {
        "nodes": ("list of Node", "All nodes; empty while the cluster does not answer."),
        "total": ("ResourceSize or null", "Hardware of all ready nodes; null if unknown."),
        "used": ("ResourceSize or null", "Hardware that jobs of all tenants hold; null if unknown."),
        "isolation": ("text or null", "sandbox, process or trusted; null if unknown."),
        "enforced": ("list of text or null", "Limits of learners that the kernel enforces; null if unknown."),
        "jobs": ("map of integer", "Number of jobs by status."),
    },
    "queue": {"waiting": ("list of WaitingJob", "Jobs that wait, in order; at most 1000.")},
    "dashboard": {
        "url": ("text", "Address that signs a browser in, once."),
        "expires": ("time", "When the address stops working."),
        "opened": ("flag", "A browser was opened."),
    },
    "storage": "TenantStorage",
    "profile": {"profiles": ("list of Profile", "The platforms that you know.")},
    "frameworks": "GetFrameworksReply",
    "sizes": "GetSizesReply",
    "version": {
        "client": ("text", "Version of this command."),
        "platform": ("text or null", "Version of the platform; null if it does not answer."),
        "url": ("text or null", "Address of the platform; null if none is known."),
    },
    "completion": {
        "shell": ("text", "bash, zsh or fish."),
        "script": ("text", "The script."),
    },
}
"""Command -> its fields, or the type that it prints. ``stream of T``: one JSON object on each line."""
