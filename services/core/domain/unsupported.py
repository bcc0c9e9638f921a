"""The fields of a valid spec that this version does not implement, by the kind of cluster: pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from services.core.domain.errors import FieldError
from services.core.domain.spec import RUNNABLE_DISTRIBUTIONS, JobSpec, MetricSource, nearest

_LATER: Final = "not available on this platform yet"


def unsupported(spec: JobSpec, cluster: str = "local") -> tuple[FieldError, ...]:
    """Returns an error for each field of a valid spec that this version does not implement on this kind of cluster.

    ``cluster``: local | kubernetes.
    """
    in_pods = cluster == "kubernetes"
    return (
        *_unsupported_runs(spec),
        *(_unsupported_in_pods(spec) if in_pods else _unsupported_without_pods(spec)),
        *_unsupported_data(spec, in_pods=in_pods),
        *_unsupported_fields(spec),
    )


def _unsupported_without_pods(spec: JobSpec) -> Iterator[FieldError]:
    for field in ("image", "image_pull_secret"):
        if getattr(spec, field) is not None:
            instead = "use framework: (see `weft frameworks`)" if field == "image" else "leave it out"
            yield FieldError(f"/{field}", f"container images are {_LATER}", instead)
    if spec.resources.shm:
        yield FieldError("/resources/shm", f"shm is {_LATER}", "leave it out")
    if spec.outputs is not None:
        instead = "leave it out: the platform stores results, see `weft download`"
        yield FieldError("/outputs", f"outputs is {_LATER}: it is for learners in pods", instead)
    for pointer in _device_fields(spec):
        yield FieldError(pointer, f"devices are {_LATER}: they are for learners in pods", "leave it out")


def _device_fields(spec: JobSpec) -> Iterator[str]:
    """Pointers of the fields that name devices."""
    if spec.resources.devices:
        yield "/resources/devices"
    yield from (f"/roles/{name}/devices" for name, role in spec.roles.items() if role.devices)


def _unsupported_in_pods(spec: JobSpec) -> Iterator[FieldError]:
    for index, store in enumerate(spec.data_stores):
        if store.type == "local":
            instead = "use a store of type http, s3 or pvc"
            yield FieldError(f"/data_stores/{index}/type", "pods cannot read files of one machine", instead)
    types = {store.id: store.type for store in spec.data_stores}
    if spec.outputs is not None and types.get(spec.outputs.store) != "pvc":
        yield FieldError("/outputs/store", f"results in such a data store are {_LATER}", "name one of type pvc")
    for name in ("", *spec.roles):
        gpus = spec.roles[name].gpus if name else spec.resources.gpus
        if gpus is not None and gpus != int(gpus):
            pointer = f"/roles/{name}/gpus" if name else "/resources/gpus"
            yield FieldError(pointer, "this cluster gives whole GPUs only", "write gpus: 1")


def _unsupported_runs(spec: JobSpec) -> Iterator[FieldError]:
    if spec.distribution not in RUNNABLE_DISTRIBUTIONS:
        present = ", ".join(sorted(RUNNABLE_DISTRIBUTIONS))
        yield FieldError("/distribution", f"'{spec.distribution}' is {_LATER}", f"there are: {present}")


def _unsupported_data(spec: JobSpec, *, in_pods: bool) -> Iterator[FieldError]:
    for index, store in enumerate(spec.data_stores):
        if in_pods and store.type in {"nfs", "host", "csi"}:
            claim = "the operator makes a PersistentVolume of it; use type pvc and the name of its claim"
            yield FieldError(f"/data_stores/{index}/type", f"pods mount no '{store.type}' directly", claim)
        elif store.type not in ({"local", "http", "pvc", "s3"} if in_pods else {"local", "http", "s3"}):
            present = "http, pvc, s3" if in_pods else "http, local, s3"
            yield FieldError(f"/data_stores/{index}/type", f"'{store.type}' is {_LATER}", f"there are: {present}")
        if store.secret is not None and store.type != "s3":
            yield FieldError(
                f"/data_stores/{index}/secret", f"secrets of data stores of type {store.type} are {_LATER}"
            )
    for index, source in enumerate(spec.metrics):
        if source.type != "jsonl":
            yield FieldError(f"/metrics/{index}/type", f"'{source.type}' is {_LATER}", "there is: jsonl")
        for field in sorted(source.model_extra or {}) if source.type == "jsonl" else ():
            names = list(MetricSource.model_fields)
            yield FieldError(f"/metrics/{index}/{field}", f"there is no field '{field}'", nearest(field, names))


def _unsupported_fields(spec: JobSpec) -> Iterator[FieldError]:
    for field in ("elastic", "secrets", "notify", "preemptible", "stall_timeout"):
        if getattr(spec, field):
            yield FieldError(f"/{field}", f"{field} is {_LATER}", "leave it out")
    if spec.priority != "normal":
        yield FieldError("/priority", f"priorities are {_LATER}", "leave it out")
    if spec.placement not in {"pack", "spread"}:
        yield FieldError("/placement", f"topology keys are {_LATER}", "there are: pack, spread")
    if spec.resources.disk:
        yield FieldError("/resources/disk", f"disk is {_LATER}", "leave it out")
