"""A Kubernetes API server in memory: its objects, their versions, preconditions, graceful deletion, lists and watches.

What the server itself decides is here; controllers, scheduler and kubelets are in ``simulated_kubernetes``. Documents
are never changed in place: each write stores a new one under the next resource version.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

Document = dict[str, Any]
Key = tuple[str, str]
"""(namespace, name); the namespace is empty for what belongs to none."""
PODS: Final = "/api/v1/pods"
NODES: Final = "/api/v1/nodes"
CONFIG_MAPS: Final = "/api/v1/configmaps"
POD_GROUPS: Final = "/apis/scheduling.k8s.io/v1alpha2/podgroups"
_DISCOVERY: Final = "/apis/scheduling.k8s.io/v1alpha2"
_PATH: Final = re.compile(
    r"(?P<base>/api/v1|/apis/[^/]+/[^/]+)(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[a-z]+)(?:/(?P<name>[^/]+))?"
)
_BOOKMARK_EACH: Final = 7
"""Events of a watch between two bookmarks."""
_PROTECTION: Final = "scheduling.k8s.io/podgroup-protection"


@dataclass(frozen=True)
class Answer:
    """The answer to a request."""

    code: int
    document: Document
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(eq=False)
class Watch:
    """One watch of a client. ``queue`` has its events in order; None ends it, an error breaks it off."""

    collection: str
    matches: Callable[[Document], bool]
    queue: asyncio.Queue[Document | Exception | None] = field(default_factory=asyncio.Queue)
    delivered: int = 0


class Refused(Exception):
    """The server refuses a request."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        self.answer = refusal(code, reason, message)


def refusal(code: int, reason: str, message: str, **headers: str) -> Answer:
    return Answer(code, {"kind": "Status", "code": code, "reason": reason, "message": message}, headers)


class ApiServer:
    """``call`` is what a client says of the call for which it makes a request; it is passed to the hooks."""

    def __init__(self, now_ms: Callable[[], int], *, native_gangs: bool) -> None:
        """``native_gangs``: it has PodGroups."""
        self._now_ms, self._native_gangs = now_ms, native_gangs
        self._collections: dict[str, dict[Key, Document]] = {}
        self._versions, self._uids = itertools.count(100), itertools.count(1)
        self._version = 99
        self._compacted = 0
        self._events: list[tuple[int, str, str, Document]] = []
        """(version, collection, type, object) of all writes."""
        self.watches: dict[Watch, None] = {}
        self.requests = Counter[str]()
        """Of each kind: ``GET /api/v1/pods``, without namespaces and names; watches are not counted."""
        self.on_change: Callable[[str, Document | None, Document | None, Any], None] = lambda *_: None
        """Called with (collection, before, after, call) for each write; None: the object did, or does, not exist."""
        self.admit: Callable[[str, Document, Any], Answer | None] = lambda *_: None
        """Called before an object is created: a refusal, or None."""

    # --- requests ------------------------------------------------------------------

    def handle(
        self, method: str, path: str, query: Mapping[str, str], body: Document | None, accept: str, call: Any
    ) -> Answer:
        """Answers all requests but watches."""
        if path == "/version":
            return Answer(200, {"major": "1", "minor": "36"})
        if path == _DISCOVERY:
            names = [{"name": "podgroups"}] if self._native_gangs else []
            return Answer(200, {"resources": names}) if names else refusal(404, "NotFound", "no such group")
        matched = _PATH.fullmatch(path)
        assert matched is not None, f"no request of the adapter goes to {path}"
        collection = f"{matched['base']}/{matched['plural']}"
        self.requests[f"{method} {collection}"] += 1
        namespace, name = matched["namespace"] or "", matched["name"] or ""
        if collection == "/api/v1/namespaces" and namespace:  # the namespace itself
            namespace, name = "", namespace
        key = (namespace, name)
        try:
            if method == "GET":
                return self._get(collection, key) if name else self._list(collection, namespace, query, accept)
            if method == "POST":
                return self._create(collection, namespace, body or {}, call)
            if method == "PATCH":
                return self._patch(collection, key, body or {}, call)
            assert method == "DELETE"
            return self._delete(collection, key, body or {}, call)
        except Refused as error:
            return error.answer

    def objects(self, collection: str) -> Mapping[Key, Document]:
        return self._collections.get(collection, {})

    def everything(self) -> Iterable[tuple[str, Key, Document]]:
        """Yields (collection, key, object) of all objects."""
        for collection, objects in self._collections.items():
            for key, document in objects.items():
                yield collection, key, document

    def _get(self, collection: str, key: Key) -> Answer:
        return Answer(200, self._present(collection, key))

    def _present(self, collection: str, key: Key) -> Document:
        document = self.objects(collection).get(key)
        if document is None:
            raise Refused(404, "NotFound", f"{key[1]} not found")
        return document

    def _list(self, collection: str, namespace: str, query: Mapping[str, str], accept: str) -> Answer:
        matches = _matcher(namespace, query)
        fields = ("metadata",) if "PartialObjectMetadata" in accept else ("metadata", "spec", "status", "data")
        items = [
            {name: document[name] for name in fields if name in document}
            for _, document in sorted(self.objects(collection).items())
            if matches(document)
        ]
        return Answer(200, {"items": items, "metadata": {"resourceVersion": str(self._version)}})

    def _create(self, collection: str, namespace: str, document: Document, call: Any) -> Answer:
        metadata = document["metadata"]
        key = (namespace, metadata["name"])
        if namespace and ("", namespace) not in self.objects("/api/v1/namespaces"):
            raise Refused(404, "NotFound", f'namespaces "{namespace}" not found')
        if key in self.objects(collection):
            raise Refused(409, "AlreadyExists", f"{key[1]} already exists")
        refused = self.admit(collection, document, call)
        if refused is not None:
            return refused
        created = {
            **metadata,
            "uid": f"u{next(self._uids)}",
            "creationTimestamp": self.timestamp(),
        } | ({"finalizers": [_PROTECTION]} if collection == POD_GROUPS else {})
        stored = {**document, "metadata": created}
        if collection == PODS:
            scheduled = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
            stored["status"] = {"phase": "Pending", "conditions": [scheduled]}
        return Answer(201, self._write(collection, key, None, stored, call))

    def _patch(self, collection: str, key: Key, change: Document, call: Any) -> Answer:
        present = self._present(collection, key)
        expected = change.get("metadata", {})
        for name in ("uid", "resourceVersion"):
            if name in expected and expected[name] != present["metadata"][name]:
                raise Refused(409, "Conflict", f"{key[1]}: the object has been modified; its {name} is another one")
        patched = _merged(present, change)
        patched["metadata"].pop("managedFields", None)  # nothing here keeps them
        if collection == PODS and patched["spec"] != present["spec"]:
            _check_pod_update(present, patched)
        if patched == present:
            return Answer(200, present)
        return Answer(200, self._write(collection, key, present, patched, call))

    def _delete(self, collection: str, key: Key, options: Document, call: Any) -> Answer:
        present = self._present(collection, key)
        metadata = present["metadata"]
        for name, value in options.get("preconditions", {}).items():
            if value != metadata[name]:
                raise Refused(409, "Conflict", f"the {name} in the precondition is not that of {key[1]}")
        if collection == PODS:
            self._delete_pod(key, present, options.get("gracePeriodSeconds"), call)
        elif metadata.get("finalizers"):
            if not metadata.get("deletionTimestamp"):
                deleting = {**present, "metadata": {**metadata, "deletionTimestamp": self.timestamp()}}
                self._write(collection, key, present, deleting, call)
        else:
            self.remove(collection, key, call)
        return Answer(200, {"kind": "Status", "status": "Success"})

    def _delete_pod(self, key: Key, pod: Document, grace_s: int | None, call: Any) -> None:
        """As the server's strategy for pods: no kubelet has to end one that is not bound or has ended."""
        metadata, status = pod["metadata"], pod.get("status") or {}
        grace_s = int(pod["spec"].get("terminationGracePeriodSeconds", 30)) if grace_s is None else grace_s
        if not pod["spec"].get("nodeName") or status.get("phase") in {"Succeeded", "Failed"}:
            grace_s = 0
        if grace_s == 0:
            self.remove(PODS, key, call)
        elif grace_s < metadata.get("deletionGracePeriodSeconds", grace_s + 1):
            until = {"deletionTimestamp": self.timestamp(grace_s), "deletionGracePeriodSeconds": grace_s}
            self._write(PODS, key, pod, {**pod, "metadata": {**metadata, **until}}, call)

    # --- what controllers and kubelets write ------------------------------------------

    def put(self, collection: str, key: Key, document: Document) -> None:
        """Stores a new object, as a controller does."""
        metadata = {**document["metadata"], "uid": f"u{next(self._uids)}", "creationTimestamp": self.timestamp()}
        self._write(collection, key, None, {**document, "metadata": metadata}, None)

    def change(self, collection: str, key: Key, change: Document) -> None:
        """Applies a merge patch to an object if it exists."""
        present = self.objects(collection).get(key)
        if present is not None:
            self._write(collection, key, present, _merged(present, change), None)

    def remove(self, collection: str, key: Key, call: Any = None) -> None:
        """Removes an object at once if it exists."""
        present = self._collections.get(collection, {}).pop(key, None)
        if present is not None:
            gone = self._next(present)
            self._publish(collection, "DELETED", gone)
            self.on_change(collection, present, None, call)

    def _write(self, collection: str, key: Key, before: Document | None, after: Document, call: Any) -> Document:
        stored = self._next(after)
        self._collections.setdefault(collection, {})[key] = stored
        self._publish(collection, "ADDED" if before is None else "MODIFIED", stored)
        self.on_change(collection, before, stored, call)
        return stored

    def _next(self, document: Document) -> Document:
        """The document under the next resource version."""
        self._version = next(self._versions)
        return {**document, "metadata": {**document["metadata"], "resourceVersion": str(self._version)}}

    def timestamp(self, after_s: float = 0) -> str:
        """The time now, in whole seconds as Kubernetes writes it."""
        return datetime.fromtimestamp(self._now_ms() // 1000 + after_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    # --- watches ----------------------------------------------------------------------

    def watch(self, path: str, query: Mapping[str, str]) -> Watch | Answer:
        """Starts a watch after the version of the query; a refusal (410) where that is forgotten."""
        since = int(query["resourceVersion"])
        if since < self._compacted:
            return refusal(410, "Expired", f"too old resource version: {since}")
        watch = Watch(path, _matcher("", query))
        for version, collection, kind, document in self._events:
            if version > since and collection == path and watch.matches(document):
                self._deliver(watch, kind, document)
        self.watches[watch] = None
        return watch

    def compact(self) -> None:
        """Forgets all versions before now."""
        self._compacted = self._version
        self._events.clear()

    def _publish(self, collection: str, kind: str, document: Document) -> None:
        self._events.append((self._version, collection, kind, document))
        for watch in self.watches:
            if watch.collection == collection and watch.matches(document):
                self._deliver(watch, kind, document)

    def _deliver(self, watch: Watch, kind: str, document: Document) -> None:
        watch.queue.put_nowait({"type": kind, "object": document})
        watch.delivered += 1
        if watch.delivered % _BOOKMARK_EACH == 0:
            version = document["metadata"]["resourceVersion"]
            watch.queue.put_nowait({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": version}}})


def _check_pod_update(present: Document, patched: Document) -> None:
    """Of a pod's spec only the gates and, while there are any, the affinity can change. Gates can only be removed."""
    changed = {
        name for name in {*present["spec"], *patched["spec"]} if present["spec"].get(name) != patched["spec"].get(name)
    }
    gates, left = present["spec"].get("schedulingGates") or [], patched["spec"].get("schedulingGates") or []
    if not gates or changed - {"schedulingGates", "affinity"} or not set(map(str, left)) <= set(map(str, gates)):
        raise Refused(422, "Invalid", f"pod updates may not change {', '.join(sorted(changed))}")


def _matcher(namespace: str, query: Mapping[str, str]) -> Callable[[Document], bool]:
    terms = [term for term in query.get("labelSelector", "").split(",") if term]

    def matches(document: Document) -> bool:
        metadata = document["metadata"]
        if namespace and metadata.get("namespace") != namespace:
            return False
        labels = metadata.get("labels") or {}
        for term in terms:
            name, differs, unwanted = term.partition("!=")
            if differs:
                if labels.get(name) == unwanted:
                    return False
                continue
            name, equals, wanted = term.partition("=")
            if name not in labels or (equals and labels[name] != wanted):
                return False
        return True

    return matches


def _merged(present: Document, change: Mapping[str, Any]) -> Document:
    """RFC 7386."""
    merged = dict(present)
    for name, value in change.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, Mapping):
            prior = present.get(name)
            merged[name] = _merged(prior if isinstance(prior, dict) else {}, value)
        else:
            merged[name] = value
    return merged
