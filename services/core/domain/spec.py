"""The job spec: the one model of what a user may ask for (contracts.md, "Job spec").

The JSON Schema, the SDK's types and the CLI's field help are generated from it. It is pydantic because it stands at
the border: every wrong field is found in one pass and named by its JSON pointer, with the nearest valid name. Once
parsed it is frozen, normal (``learners: 4`` has become ``roles``) and pure like the rest of the domain.

What is declared here but not carried out yet is refused by ``unsupported`` with the field's name: accepting a wish and
ignoring it would be worse than saying no.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from services.core.domain.errors import FieldError, InvalidSpec
from services.core.domain.sizes import SIZES, Size
from services.core.domain.units import format_bytes, format_duration, parse_bytes, parse_duration

Duration = Annotated[int, BeforeValidator(parse_duration), PlainSerializer(format_duration, return_type=str)]
"""Milliseconds."""
Bytes = Annotated[int, BeforeValidator(parse_bytes), PlainSerializer(format_bytes, return_type=str)]

Distribution = Literal[
    "none", "torchrun", "mpi", "horovod", "tf-multiworker", "tf-ps", "jax", "ray", "dask", "spark"
]  # fmt: skip
OnFailure = Literal["restart", "restart-gang", "ignore"]
StoreType = Literal["s3", "gcs", "azure", "nfs", "pvc", "csi", "host", "http", "git", "hf", "swift", "local"]

MAX_LEARNERS: Final = 10_000
RESERVED_ENV: Final = frozenset(
    """MODEL_DIR DATA_DIR RESULT_DIR LOG_DIR CHECKPOINT_DIR JOB_STATE_DIR TRAINING_ID LEARNER_ID NUM_LEARNERS GPU_COUNT
    HOME TMPDIR PYTHONUNBUFFERED MASTER_ADDR MASTER_PORT RANK WORLD_SIZE LOCAL_RANK TF_CONFIG JAX_COORDINATOR_ADDRESS
    JAX_NUM_PROCESSES JAX_PROCESS_ID CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER NVIDIA_VISIBLE_DEVICES""".split()  # noqa: SIM905 - reads better
)
RESERVED_PREFIXES: Final = ("WEFT_", "PET_")

_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_ROLE: Final = re.compile(r"[a-z](?:[a-z0-9-]{0,18}[a-z0-9])?")
_ENV: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


def _plain(value: object) -> object:
    if isinstance(value, str) and _CONTROL.search(value):
        raise ValueError("control characters are not allowed")
    return value


def _whole_or_shared(gpus: float) -> float:
    if gpus > 1 and gpus != int(gpus):
        raise ValueError("gpus is a whole number, or a fraction below 1")
    return gpus


def _label(pattern: re.Pattern[str], says: str) -> BeforeValidator:
    def check(value: object) -> object:
        if not isinstance(value, str) or pattern.fullmatch(value) is None:
            raise ValueError(says)
        return value

    return BeforeValidator(check)


Text = Annotated[str, BeforeValidator(_plain)]
Name = Annotated[
    str,
    Field(max_length=63),
    _label(_NAME, "a name has 1 to 63 letters, digits, '.', '_' or '-', and starts and ends with a letter or digit"),
]
RoleName = Annotated[
    str, _label(_ROLE, "a role is 1 to 20 lower-case letters, digits or '-', first a letter, e.g. worker or ps")
]
EnvName = Annotated[str, _label(_ENV, "an environment variable's name has letters, digits and '_', e.g. BATCH_SIZE")]
Gpus = Annotated[float, Field(ge=0, le=1024), AfterValidator(_whole_or_shared)]
RelativePath = Annotated[Text, Field(min_length=1, max_length=1024)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, str_max_length=65_536)


class FrameworkRef(_Model):
    """An entry of the platform's library (``weft frameworks``)."""

    name: Name
    version: str = Field(default="", description="A version or its beginning; empty: the newest.")

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, value: object) -> object:
        """``framework: jax`` and YAML's ``version: 0.10`` read as a number are both what people write."""
        if isinstance(value, str):
            name, _, version = value.partition(":")
            return {"name": name, "version": version}
        if isinstance(value, dict) and isinstance(value.get("version"), float):
            raise PydanticCustomError("version_number", "write the version in quotes: YAML reads 0.10 as 0.1")
        if isinstance(value, dict) and isinstance(value.get("version"), int):
            return {**value, "version": str(value["version"])}
        return value


class Resources(_Model):
    """What each learner gets. A size stands for gpus, cpus and memory; single fields win over it."""

    size: str | None = Field(default=None, description="T-shirt size, e.g. cpu, k80, v100x2 (`weft sizes`).")
    cpus: float | None = Field(default=None, gt=0, le=4096, description="CPU cores, fractions allowed.")
    memory: Bytes | None = Field(default=None, ge=2**20, description="e.g. 16GB or 512MiB.")
    gpus: Gpus | None = Field(default=None, description="GPUs; a fraction below 1 shares one.")
    gpu_type: Text | None = None
    devices: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    shm: Bytes | None = Field(default=None, description="Size of /dev/shm.")
    disk: Bytes | None = Field(default=None, description="Scratch space.")


class Role(_Model):
    """Learners that do the same work."""

    count: int = Field(ge=1, le=MAX_LEARNERS)
    min: int | None = Field(default=None, ge=1, description="Fewest learners the gang may run with; default: count.")
    cpus: float | None = Field(default=None, gt=0, le=4096)
    memory: Bytes | None = Field(default=None, ge=2**20)
    gpus: Gpus | None = None
    gpu_type: Text | None = None
    command: Text | None = Field(default=None, description="Instead of the job's command.")
    on_failure: OnFailure = "restart-gang"
    decides: bool = Field(default=False, description="This role's success is the job's success.")

    @model_validator(mode="after")
    def _min_below_count(self) -> Role:
        if self.min is not None and self.min > self.count:
            raise PydanticCustomError("min_above_count", "min is at most count")
        return self


class DataStore(_Model):
    """Where data lies. The fields besides id, type and secret depend on the type."""

    model_config = ConfigDict(extra="allow", frozen=True)
    id: Name
    type: StoreType
    secret: Name | None = None
    path: Text | None = Field(default=None, description="local, host: an absolute path that the operator has allowed.")
    url: Text | None = Field(default=None, description="http: where the files lie.")

    @model_validator(mode="after")
    def _needs(self) -> DataStore:
        if self.type in {"local", "host"} and not (self.path or "").startswith("/"):
            raise PydanticCustomError("store_path", "a data store of this type needs 'path', an absolute path")
        if self.type == "http" and not re.match(r"https?://[^/\s]+", self.url or ""):
            raise PydanticCustomError("store_url", "a data store of type http needs 'url', http://... or https://...")
        if self.type in {"local", "host", "http"} and self.__pydantic_extra__:
            raise PydanticCustomError(
                "store_field",
                "a data store of type {type} has no field '{field}'",
                {"type": self.type, "field": min(self.__pydantic_extra__)},
            )
        return self


class Input(_Model):
    store: Name
    path: Text = ""
    mount: RelativePath | None = Field(default=None, description="Folder under DATA_DIR; default: the store's id.")


class Output(_Model):
    store: Name
    path: Text = ""


class Checkpoint(_Model):
    path: RelativePath = "ckpt"
    keep: int = Field(default=3, ge=1, le=1000)


class MetricSource(_Model):
    model_config = ConfigDict(extra="allow", frozen=True)
    type: Literal["regex", "emetrics", "tensorboard", "jsonl"]
    path: Text | None = Field(
        default=None, min_length=1, max_length=255, description="File or folder, relative to LOG_DIR."
    )


class Retries(_Model):
    """Infrastructure faults (a lost node, a broken gang) never use up the budget."""

    max: int = Field(default=0, ge=0, le=1000)
    backoff: Duration = Field(default=10_000, le=86_400_000)
    on: tuple[str, ...] = Field(default=(), description="infrastructure, exit:CODE; empty: any failure.")

    @model_validator(mode="after")
    def _known(self) -> Retries:
        for cause in self.on:
            if cause != "infrastructure" and re.fullmatch(r"exit:\d{1,3}", cause) is None:
                raise PydanticCustomError(
                    "retry_cause", "on is a list of 'infrastructure' and 'exit:CODE', e.g. exit:137"
                )
        return self


class Elastic(_Model):
    min: int = Field(ge=1)
    max: int = Field(ge=1, le=MAX_LEARNERS)

    @model_validator(mode="after")
    def _ordered(self) -> Elastic:
        if self.min > self.max:
            raise PydanticCustomError("min_above_max", "min is at most max")
        return self


class JobSpec(_Model):
    """A training job, as its owner wants it."""

    name: Name
    description: Text = Field(default="", max_length=4096)
    framework: FrameworkRef | None = None
    image: Text | None = Field(default=None, description="Container image, instead of framework.")
    image_pull_secret: Name | None = None
    command: Annotated[Text, Field(min_length=1)] = Field(description="Run by a shell in MODEL_DIR.")
    code: Text | None = Field(default=None, description="Folder or zip beside the spec; read by the CLI.")
    roles: dict[RoleName, Role] = Field(min_length=1)
    distribution: Distribution = "none"
    resources: Resources = Resources()
    placement: Text = Field(default="pack", description="pack, spread, or a topology key.")
    data_stores: tuple[DataStore, ...] = ()
    inputs: tuple[Input, ...] = ()
    outputs: Output | None = None
    checkpoint: Checkpoint = Checkpoint()
    metrics: tuple[MetricSource, ...] = ()
    retries: Retries = Retries()
    max_runtime: Duration | None = Field(default=None, gt=0, description="From the start of an attempt's processes.")
    max_pending: Duration | None = Field(default=None, gt=0)
    stall_timeout: Duration | None = Field(default=None, gt=0)
    grace: Duration = Field(default=30_000, le=86_400_000, description="Between SIGTERM and SIGKILL.")
    store_timeout: Duration = Field(default=1_800_000, gt=0, le=7 * 86_400_000)
    priority: Literal["low", "normal", "high"] = "normal"
    preemptible: bool = False
    elastic: Elastic | None = None
    env: dict[EnvName, Text] = Field(default_factory=dict)
    secrets: tuple[Name, ...] = ()
    tags: tuple[Annotated[Text, Field(min_length=1, max_length=63)], ...] = Field(default=(), max_length=64)
    notify: tuple[Name, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _shorthands(cls, value: object) -> object:
        if not isinstance(value, dict):
            raise PydanticCustomError("not_a_mapping", "a job spec is a mapping of fields, e.g. name: digits")
        value = dict(value)
        if "learners" in value:
            value["roles"] = {"worker": {"count": value.pop("learners")}}
        value.setdefault("roles", {"worker": {"count": 1}})
        if isinstance(value.get("command"), list) and all(isinstance(word, str) for word in value["command"]):
            value["command"] = shlex.join(value["command"])
        if isinstance(value.get("env"), dict):
            value["env"] = {k: str(v) if type(v) in (int, float) else v for k, v in value["env"].items()}
        return value

    @model_validator(mode="after")
    def _consistent(self) -> JobSpec:
        found = [*_contradictions(self)]
        if found:
            raise _Contradictions(found)
        return self

    @property
    def learners(self) -> int:
        return sum(role.count for role in self.roles.values())

    def role_resources(self, role: str, sizes: Mapping[str, Size] = SIZES) -> Size:
        """What one learner of the role gets: the role's fields, else the job's, else the size's, else ``cpu``'s."""
        own, job = self.roles[role], self.resources
        base = sizes.get(job.size or "cpu", SIZES["cpu"])

        def pick(*values: float | None) -> float:
            return next(value for value in values if value is not None)

        return Size(
            gpus=pick(own.gpus, job.gpus, base.gpus),
            cpus=pick(own.cpus, job.cpus, base.cpus),
            memory=int(pick(own.memory, job.memory, base.memory)),
        )


class _Contradictions(ValueError):
    """Carries several field errors through pydantic's single-error validators."""

    def __init__(self, errors: list[FieldError]) -> None:
        super().__init__(errors[0].message)
        self.errors = errors


def _contradictions(spec: JobSpec) -> Iterator[FieldError]:
    """Rules between fields."""
    if spec.framework is not None and spec.image is not None:
        yield FieldError("/image", "give either framework or image, not both")
    if sum(role.decides for role in spec.roles.values()) > 1:
        yield FieldError("/roles", "only one role may have decides: true")
    if spec.resources.size is not None and spec.resources.size not in SIZES:
        yield FieldError(
            "/resources/size", f"there is no size '{spec.resources.size}'", nearest(spec.resources.size, SIZES)
        )
    if spec.learners > MAX_LEARNERS:
        yield FieldError("/roles", f"a job has at most {MAX_LEARNERS} learners")
    for name in spec.env:
        if name in RESERVED_ENV or name.startswith(RESERVED_PREFIXES):
            yield FieldError(f"/env/{name}", f"{name} is set by Weft and cannot be given", "use another name")
    if _leaves(spec.checkpoint.path):
        yield FieldError("/checkpoint/path", "a relative path without '..', e.g. ckpt")
    yield from _wrong_stores(spec)
    yield from _wrong_inputs(spec)
    yield from _wrong_metrics(spec)


def _wrong_stores(spec: JobSpec) -> Iterator[FieldError]:
    stores = [store.id for store in spec.data_stores]
    for place, store in enumerate(stores):
        if store in stores[:place]:
            yield FieldError(f"/data_stores/{place}/id", f"two data stores are called '{store}'")
    used = [(f"/inputs/{place}/store", entry.store) for place, entry in enumerate(spec.inputs)]
    if spec.outputs is not None:
        used.append(("/outputs/store", spec.outputs.store))
    for pointer, store in used:
        if store not in stores:
            yield FieldError(pointer, f"there is no data store '{store}'", nearest(store, stores))


def _wrong_inputs(spec: JobSpec) -> Iterator[FieldError]:
    for place, entry in enumerate(spec.inputs):
        for field, path in (("path", entry.path), ("mount", entry.mount or "")):
            if _leaves(path):
                yield FieldError(f"/inputs/{place}/{field}", "a relative path without '..', e.g. mnist/")
    yield from _wrong_mounts([entry.mount or entry.store for entry in spec.inputs])


def _wrong_mounts(mounts: list[str]) -> Iterator[FieldError]:
    """Mounts that are equal or contain one another: an input's folder may be a link to shared data."""
    earlier: dict[tuple[str, ...], str] = {}
    parents: dict[tuple[str, ...], str] = {}
    """Each folder that contains an earlier mount, with that mount."""
    for place, mount in enumerate(mounts):
        path = tuple(part for part in mount.split("/") if part not in {"", "."})
        above = [path[:depth] for depth in range(1, len(path))]
        pointer = f"/inputs/{place}/mount"
        if path in earlier:
            yield FieldError(pointer, f"two inputs are mounted at '{mount}'")
        elif other := next((earlier[folder] for folder in above if folder in earlier), parents.get(path)):
            yield FieldError(pointer, f"the mounts '{other}' and '{mount}' contain one another", "use separate folders")
        earlier.setdefault(path, mount)
        for folder in above:
            parents.setdefault(folder, mount)


def _wrong_metrics(spec: JobSpec) -> Iterator[FieldError]:
    for place, source in enumerate(spec.metrics):
        if source.path is not None and (_leaves(source.path) or not source.path.strip("/.")):
            yield FieldError(f"/metrics/{place}/path", "a relative path without '..', e.g. train/metrics.jsonl")


def _leaves(path: str) -> bool:
    return path.startswith("/") or ".." in path.split("/")


def nearest(word: str, names: Mapping[str, object] | list[str] | tuple[str, ...]) -> str:
    """``did you mean 'x'?`` or the list of what there is; empty where there is nothing."""
    close = difflib.get_close_matches(word, list(names), n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"there are: {', '.join(sorted(names))}" if names else ""


def parse_spec(document: object) -> JobSpec:
    """The spec in normal form, or InvalidSpec with every field error found."""
    found = [*_shorthand_errors(document)]
    if found and isinstance(document, dict):  # without it, so that what else is wrong is found, too
        document = {name: value for name, value in document.items() if name != "learners"}
    try:
        spec = JobSpec.model_validate(document)
    except ValidationError as failed:
        found += [error for detail in failed.errors(include_url=False) for error in _field_errors(detail)]
    else:
        if not found:
            return spec
    raise InvalidSpec(_summary(tuple(found)), errors=tuple(found)) from None


def _shorthand_errors(document: object) -> Iterator[FieldError]:
    """What is wrong with ``learners``, said of the field that was written and not of the role it stands for."""
    if not isinstance(document, dict) or "learners" not in document:
        return
    learners = document["learners"]
    if "roles" in document:
        yield FieldError("/learners", "give either learners or roles, not both")
    elif isinstance(learners, bool) or not isinstance(learners, int) or not 1 <= learners <= MAX_LEARNERS:
        yield FieldError("/learners", f"learners is a whole number from 1 to {MAX_LEARNERS}")


def dump_spec(spec: JobSpec) -> dict[str, Any]:
    """The stored form: JSON, defaults left out; ``parse_spec`` gives the same spec back."""
    return spec.model_dump(mode="json", exclude_defaults=True)


def _summary(errors: tuple[FieldError, ...]) -> str:
    first = errors[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    where = first.pointer or "the spec"
    return f"{where}: {first.message}{'; ' + first.hint if first.hint else ''}{more}"


# pydantic speaks of a text's "items" where the text has been looked at before it is counted.
_LENGTHS: Final = {"too_short": "write at least one character", "too_long": "write at most {max_length} characters"}


def _field_errors(detail: ErrorDetails) -> Iterator[FieldError]:
    context = detail.get("ctx") or {}
    cause = context.get("error")
    if isinstance(cause, _Contradictions):
        yield from cause.errors
        return
    path = tuple(part for part in detail["loc"] if part != "[key]")
    pointer = "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)
    kind = detail["type"]
    if kind == "extra_forbidden":
        yield FieldError(pointer, f"there is no field '{path[-1]}'", nearest(str(path[-1]), _fields_at(path[:-1])))
    elif kind in _LENGTHS and isinstance(detail["input"], str):
        yield FieldError(pointer, _LENGTHS[kind].format(**context))
    elif kind == "missing":
        yield FieldError(pointer, "this field is required")
    elif kind == "literal_error":
        expected = [word.strip(" '") for word in str(context["expected"]).replace(" or ", ",").split(",")]
        yield FieldError(
            pointer, "not one of the values this field may have", nearest(str(detail["input"])[:100], expected)
        )
    else:
        yield FieldError(pointer, detail["msg"].removeprefix("Value error, "))


def _fields_at(path: tuple[int | str, ...]) -> list[str]:
    """The names that are valid at a place in the spec; ``learners`` is a shorthand and therefore not a field."""
    nested: dict[str, type[_Model]] = {
        "framework": FrameworkRef, "resources": Resources, "roles": Role, "data_stores": DataStore, "inputs": Input,
        "outputs": Output, "checkpoint": Checkpoint, "metrics": MetricSource, "retries": Retries, "elastic": Elastic,
    }  # fmt: skip
    if not path:
        return [*JobSpec.model_fields, "learners"]
    return list(nested[str(path[0])].model_fields) if path[0] in nested else []


_LATER: Final = "not available on this platform yet"


def unsupported(spec: JobSpec) -> tuple[FieldError, ...]:
    """What this version of Weft knows how to say but not yet how to do, on the ``local`` cluster."""
    return (*_unsupported_runs(spec), *_unsupported_data(spec), *_unsupported_fields(spec))


def _unsupported_runs(spec: JobSpec) -> Iterator[FieldError]:
    if spec.image is not None or spec.image_pull_secret is not None:
        yield FieldError("/image", f"container images are {_LATER}", "use framework: (see `weft frameworks`)")
    if spec.distribution not in {"none", "torchrun", "jax"}:
        yield FieldError("/distribution", f"'{spec.distribution}' is {_LATER}", "there are: jax, none, torchrun")
    for name, role in spec.roles.items():
        if role.on_failure == "restart":
            yield FieldError(f"/roles/{name}/on_failure", f"'restart' is {_LATER}", "use restart-gang or ignore")
        if role.min is not None and role.min != role.count:
            yield FieldError(f"/roles/{name}/min", f"elastic roles are {_LATER}", "leave min out")


def _unsupported_data(spec: JobSpec) -> Iterator[FieldError]:
    for place, store in enumerate(spec.data_stores):
        if store.type not in {"local", "http"}:
            yield FieldError(f"/data_stores/{place}/type", f"'{store.type}' is {_LATER}", "there are: http, local")
        if store.secret is not None:
            yield FieldError(f"/data_stores/{place}/secret", f"secrets of data stores are {_LATER}")
    for place, source in enumerate(spec.metrics):
        if source.type != "jsonl":
            yield FieldError(f"/metrics/{place}/type", f"'{source.type}' is {_LATER}", "there is: jsonl")


def _unsupported_fields(spec: JobSpec) -> Iterator[FieldError]:
    for field in ("elastic", "secrets", "notify", "outputs", "preemptible", "stall_timeout"):
        if getattr(spec, field):
            yield FieldError(f"/{field}", f"{field} is {_LATER}", "leave it out")
    for field in ("shm", "disk", "devices"):
        if getattr(spec.resources, field):
            yield FieldError(f"/resources/{field}", f"{field} is {_LATER}", "leave it out")
