"""The job spec: the model of what a user submits (contracts.md, "Job spec").

The JSON Schema and the command line's help on fields are generated from it. It uses pydantic because it validates input
from users: ``parse_spec`` reports all wrong fields at once, each with its JSON pointer and the nearest valid name. A
parsed spec is frozen and in normal form (``learners: 4`` has become ``roles``).

``unsupported`` names fields that are declared here but not implemented yet. The api refuses such a spec, because to
accept a field and ignore it would mislead its user.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal, get_args

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

from services.core.domain import s3_data
from services.core.domain.errors import FieldError, InvalidSpec
from services.core.domain.sizes import SIZES, Size, as_devices
from services.core.domain.spec_errors import plain_message
from services.core.domain.units import format_bytes, format_duration, parse_bytes, parse_duration

Duration = Annotated[int, BeforeValidator(parse_duration), PlainSerializer(format_duration, return_type=str)]
"""Milliseconds; written as 30s, 10m, 1h30m."""
Bytes = Annotated[int, BeforeValidator(parse_bytes), PlainSerializer(format_bytes, return_type=str)]
"""Bytes; written as 16GB, 512MiB."""

Distribution = Literal["none", "torchrun", "mpi", "horovod", "tf-multiworker", "tf-ps", "jax", "ray", "dask", "spark"]
RUNNABLE_DISTRIBUTIONS: Final[tuple[Distribution, ...]] = ("jax", "none", "torchrun")
"""Each has its module in services/core/strategies."""
OnFailure = Literal["restart", "restart-gang", "ignore"]
StoreType = Literal["s3", "gcs", "azure", "nfs", "pvc", "csi", "host", "http", "git", "hf", "swift", "local"]

MAX_LEARNERS: Final = 10_000
RESERVED_ENV: Final = frozenset(
    """MODEL_DIR DATA_DIR RESULT_DIR LOG_DIR CHECKPOINT_DIR JOB_STATE_DIR TRAINING_ID LEARNER_ID NUM_LEARNERS GPU_COUNT
    HOME TMPDIR PYTHONUNBUFFERED MASTER_ADDR MASTER_PORT RANK WORLD_SIZE LOCAL_RANK TF_CONFIG JAX_COORDINATOR_ADDRESS
    JAX_NUM_PROCESSES JAX_PROCESS_ID CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER NVIDIA_VISIBLE_DEVICES""".split()  # noqa: SIM905 - reads better
)
"""Environment variables that Weft sets for each learner."""
RESERVED_PREFIXES: Final = ("WEFT_", "PET_")
"""Prefixes of such variables; PET_ is torchrun's."""


def is_reserved_variable(name: str) -> bool:
    """True if only Weft sets this environment variable of a learner."""
    return name in RESERVED_ENV or name.startswith(RESERVED_PREFIXES)


_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_ROLE: Final = re.compile(r"[a-z](?:[a-z0-9-]{0,18}[a-z0-9])?")
_CLAIM: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,250}[a-z0-9])?")
_DEVICE: Final = re.compile(
    r"(?=.{1,316}$)[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*"
    r"/[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
)
_ENV: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


def _without_control_characters(value: object) -> object:
    if isinstance(value, str) and _CONTROL.search(value):
        raise ValueError("control characters are not allowed")
    return value


def _whole_or_shared(gpus: float) -> float:
    if gpus > 1 and gpus != int(gpus):
        raise ValueError("gpus is a whole number, or a fraction below 1")
    return gpus


def _matches(pattern: re.Pattern[str], message: str) -> BeforeValidator:
    """Returns a validator that accepts text that matches as a whole; ``message`` is the error."""

    def check(value: object) -> object:
        if not isinstance(value, str) or pattern.fullmatch(value) is None:
            raise ValueError(message)
        return value

    return BeforeValidator(check)


Text = Annotated[str, BeforeValidator(_without_control_characters)]
Name = Annotated[
    str,
    Field(max_length=63),
    _matches(_NAME, "a name has 1 to 63 letters, digits, '.', '_' or '-', and starts and ends with a letter or digit"),
]
RoleName = Annotated[
    str, _matches(_ROLE, "a role is 1 to 20 lower-case letters, digits or '-', first a letter, e.g. worker or ps")
]
EnvName = Annotated[str, _matches(_ENV, "an environment variable's name has letters, digits and '_', e.g. BATCH_SIZE")]
Gpus = Annotated[float, Field(ge=0, le=1024), AfterValidator(_whole_or_shared)]
DeviceName = Annotated[
    str, _matches(_DEVICE, "a device is named as the cluster names the resource: domain/name, e.g. rdma/hca")
]
RelativePath = Annotated[Text, Field(min_length=1, max_length=1024)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, str_max_length=65_536)


class FrameworkRef(_Model):
    """An entry of the platform's library (``weft frameworks``)."""

    name: Name = Field(description="Name of the entry, e.g. jax.")
    version: str = Field(default="", description="A version or its first components, e.g. 0.10; empty: the newest.")

    @model_validator(mode="before")
    @classmethod
    def _shorthand(cls, value: object) -> object:
        """Accepts ``framework: jax``, ``framework: jax:0.10`` and an integer version; refuses a float version."""
        if isinstance(value, str):
            name, _, version = value.partition(":")
            return {"name": name, "version": version}
        if isinstance(value, dict) and isinstance(value.get("version"), float):
            raise PydanticCustomError("version_number", "write the version in quotes: YAML reads 0.10 as 0.1")
        if isinstance(value, dict) and isinstance(value.get("version"), int):
            return {**value, "version": str(value["version"])}
        return value


class Resources(_Model):
    """What each learner gets. A size sets gpus, cpus and memory; the single fields override it."""

    size: str | None = Field(default=None, description="Named size, e.g. cpu, k80, v100x2 (`weft sizes`).")
    cpus: float | None = Field(default=None, gt=0, le=4096, description="CPU cores, fractions allowed.")
    memory: Bytes | None = Field(default=None, ge=2**20, description="e.g. 16GB or 512MiB.")
    gpus: Gpus | None = Field(default=None, description="GPUs; a fraction below 1 shares one.")
    gpu_type: Text | None = Field(default=None, description="Model of GPU, e.g. v100.")
    devices: dict[DeviceName, Annotated[int, Field(strict=True, ge=1, le=1024)]] = Field(
        default_factory=dict, description="Kubernetes: other devices than GPUs, resource name -> count."
    )
    shm: Bytes | None = Field(default=None, description="Size of /dev/shm.")
    disk: Bytes | None = Field(default=None, description="Scratch space.")


class Role(_Model):
    """Learners that do the same work. Its resources override those of the job."""

    count: int = Field(ge=1, le=MAX_LEARNERS, description="How many learners.")
    min: int | None = Field(default=None, ge=1, description="Fewest to go on with after losses; default: all.")
    cpus: float | None = Field(default=None, gt=0, le=4096, description="CPU cores per learner.")
    memory: Bytes | None = Field(default=None, ge=2**20, description="Memory per learner, e.g. 16GB.")
    gpus: Gpus | None = Field(default=None, description="GPUs per learner; a fraction below 1 shares one.")
    gpu_type: Text | None = Field(default=None, description="Model of GPU, e.g. v100.")
    devices: dict[DeviceName, Annotated[int, Field(strict=True, ge=1, le=1024)]] | None = Field(
        default=None, description="Other devices per learner, in place of those of the job; {}: none."
    )
    command: Text | None = Field(default=None, description="Replaces the job's command.")
    on_failure: OnFailure = Field(
        default="restart-gang",
        description="After a failure: restart-gang ends the attempt, restart starts the learner again, ignore goes on.",
    )
    decides: bool = Field(default=False, description="This role's success is the job's success.")

    @model_validator(mode="after")
    def _min_below_count(self) -> Role:
        if self.min is not None and self.min > self.count:
            raise PydanticCustomError("min_above_count", "min is at most count")
        return self


class DataStore(_Model):
    """A place that data is read from. Other fields than id, type and secret depend on the type."""

    model_config = ConfigDict(extra="allow", frozen=True)
    id: Name = Field(description="Name of the store within this spec.")
    type: StoreType = Field(description="Kind of store.")
    secret: Name | None = Field(default=None, description="Name of the secret with its credentials.")
    path: Text | None = Field(default=None, description="local, host: an absolute path that the operator has allowed.")
    url: Text | None = Field(default=None, description="http: URL of the files. s3: s3://bucket or s3://bucket/prefix.")
    endpoint: Text | None = Field(
        default=None, description="s3: address of the server, e.g. https://s3.example.org; default: Amazon's."
    )
    region: Text | None = Field(default=None, description="s3: region of the bucket; default: us-east-1.")
    claim: Text | None = Field(
        default=None,
        description="pvc: name of a PersistentVolumeClaim in the tenant's namespace. Learners can only read it.",
    )

    @model_validator(mode="after")
    def _check_type_fields(self) -> DataStore:
        if self.type in {"local", "host"} and not (self.path or "").startswith("/"):
            raise PydanticCustomError("store_path", "a data store of this type needs 'path', an absolute path")
        if self.type == "http" and not re.match(r"https?://[^/\s]+", self.url or ""):
            raise PydanticCustomError("store_url", "a data store of type http needs 'url', http://... or https://...")
        if self.type == "pvc" and _CLAIM.fullmatch(self.claim or "") is None:
            raise PydanticCustomError("store_claim", "a data store of type pvc needs 'claim', the name of a claim")
        if self.type == "s3":
            if wrong := s3_data.wrong_field(self.url, self.endpoint, self.region):
                raise PydanticCustomError("store_s3", "{wrong}", {"wrong": wrong})
            if self.secret is None:
                raise PydanticCustomError("store_secret", "a data store of type s3 needs 'secret', see `weft secret`")
        for field, kind in (("claim", "pvc"), ("endpoint", "s3"), ("region", "s3")):
            if getattr(self, field) is not None and self.type != kind:
                message = "a data store of type {type} has no field '{field}'"
                raise PydanticCustomError("store_field", message, {"type": self.type, "field": field})
        if self.type in {"local", "host", "http", "pvc", "s3"} and self.__pydantic_extra__:
            raise PydanticCustomError(
                "store_field",
                "a data store of type {type} has no field '{field}'",
                {"type": self.type, "field": min(self.__pydantic_extra__)},
            )
        return self


class Input(_Model):
    """Data that each learner finds in a folder below DATA_DIR."""

    store: Name = Field(description="Id of a data store.")
    path: Text = Field(default="", description="Part of the store to fetch; default: all of it.")
    mount: RelativePath | None = Field(default=None, description="Folder under DATA_DIR; default: the store's id.")


class Output(_Model):
    """Where results are stored in place of the platform's store."""

    store: Name = Field(description="Id of a data store of type pvc.")
    path: Text = Field(
        default="",
        max_length=1024,
        description="Folder in the store. Results are below it, in JOB/attempts/N/LEARNER; default: the store itself.",
    )


class Checkpoint(_Model):
    """Where checkpoints are written, and how many are kept."""

    path: RelativePath | None = Field(
        default=None,
        description="Path in the job's code that leads to CHECKPOINT_DIR, e.g. ckpt, for training that writes its "
        "checkpoints to a fixed place. The code must not contain it.",
    )
    keep: int = Field(default=3, ge=1, le=1000, description="How many checkpoints are kept.")


class MetricSource(_Model):
    """A file or stream that metrics are read from."""

    model_config = ConfigDict(extra="allow", frozen=True)
    type: Literal["regex", "emetrics", "tensorboard", "jsonl"] = Field(description="Format of the metrics.")
    path: Text | None = Field(
        default=None, min_length=1, max_length=255, description="File or folder, relative to LOG_DIR."
    )


class Retries(_Model):
    """How often a failed job is tried again. Infrastructure faults (a lost node) do not count."""

    max: int = Field(default=0, ge=0, le=1000, description="Attempts after the first one.")
    backoff: Duration = Field(
        default=10_000, le=86_400_000, description="Pause before the next attempt; doubles each time."
    )
    on: tuple[str, ...] = Field(
        default=(), description="Failures that are retried: infrastructure, exit:CODE; empty: any."
    )

    @model_validator(mode="after")
    def _check_causes(self) -> Retries:
        for cause in self.on:
            if cause != "infrastructure" and re.fullmatch(r"exit:\d{1,3}", cause) is None:
                raise PydanticCustomError(
                    "retry_cause", "on is a list of 'infrastructure' and 'exit:CODE', e.g. exit:137"
                )
        return self


class Elastic(_Model):
    """Bounds between which the number of learners may change."""

    min: int = Field(ge=1, description="Fewest learners.")
    max: int = Field(ge=1, le=MAX_LEARNERS, description="Most learners.")

    @model_validator(mode="after")
    def _check_bounds(self) -> Elastic:
        if self.min > self.max:
            raise PydanticCustomError("min_above_max", "min is at most max")
        return self


def _env_text(value: object) -> object:
    """A number or boolean as the text that was written: ``true`` and not Python's ``True``; anything else unchanged."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


class JobSpec(_Model):
    """A training job."""

    name: Name = Field(description="Name of the job; need not be unique.")
    description: Text = Field(default="", max_length=4096, description="For people.")
    framework: FrameworkRef | None = Field(
        default=None, description="Entry of the framework library; default: the machine's own shell and tools."
    )
    image: Text | None = Field(default=None, description="Container image, instead of framework.")
    image_pull_secret: Name | None = Field(
        default=None, description="Kubernetes: name of the secret with the registry's username and password."
    )
    command: Annotated[Text, Field(min_length=1)] = Field(description="Run by a shell in MODEL_DIR.")
    code: Text | None = Field(default=None, description="Folder or zip beside the spec; read by the CLI.")
    roles: dict[RoleName, Role] = Field(min_length=1, description="Role name -> its learners.")
    distribution: Distribution = Field(default="none", description="How the learners find one another.")
    resources: Resources = Field(default=Resources(), description="What each learner gets.")
    placement: Text = Field(default="pack", description="pack, spread, or a topology key.")
    data_stores: tuple[DataStore, ...] = Field(default=(), description="Places that inputs are read from.")
    inputs: tuple[Input, ...] = Field(default=(), description="Data for the learners.")
    outputs: Output | None = Field(
        default=None, description="Kubernetes: where results are stored; default: the platform's store."
    )
    checkpoint: Checkpoint = Field(default=Checkpoint(), description="Checkpoints of the training.")
    metrics: tuple[MetricSource, ...] = Field(default=(), description="Files that metrics are read from.")
    retries: Retries = Field(default=Retries(), description="Attempts after a failure.")
    max_runtime: Duration | None = Field(default=None, gt=0, description="From the start of an attempt's processes.")
    max_pending: Duration | None = Field(default=None, gt=0, description="Longest time in the queue.")
    stall_timeout: Duration | None = Field(default=None, gt=0, description="Longest time without progress.")
    grace: Duration = Field(default=30_000, le=86_400_000, description="Between SIGTERM and SIGKILL.")
    store_timeout: Duration = Field(
        default=1_800_000, gt=0, le=7 * 86_400_000, description="Longest time to store results at the end."
    )
    priority: Literal["low", "normal", "high"] = Field(default="normal", description="Order in the queue.")
    preemptible: bool = Field(default=False, description="Jobs of higher priority may stop it.")
    elastic: Elastic | None = Field(default=None, description="Lets the number of learners change.")
    env: dict[EnvName, Text] = Field(default_factory=dict, description="Environment variables of the learners.")
    secrets: tuple[Name, ...] = Field(default=(), description="Names of secrets that learners may read.")
    tags: tuple[Annotated[Text, Field(min_length=1, max_length=63)], ...] = Field(
        default=(), max_length=64, description="Labels to find the job by."
    )
    notify: tuple[Name, ...] = Field(default=(), description="Names of webhooks that are called at its end.")

    @model_validator(mode="before")
    @classmethod
    def _shorthands(cls, value: object) -> object:
        """Rewrites ``learners``, a command as a list, and numbers and booleans in ``env`` to the normal form."""
        if not isinstance(value, dict):
            raise PydanticCustomError("not_a_mapping", "a job spec is a mapping of fields, e.g. name: digits")
        value = dict(value)
        if "learners" in value:
            value["roles"] = {"worker": {"count": value.pop("learners")}}
        value.setdefault("roles", {"worker": {"count": 1}})
        if isinstance(value.get("command"), list) and all(isinstance(word, str) for word in value["command"]):
            value["command"] = shlex.join(value["command"])
        if isinstance(value.get("env"), dict):
            value["env"] = {key: _env_text(given) for key, given in value["env"].items()}
        return value

    @model_validator(mode="after")
    def _consistent(self) -> JobSpec:
        errors = [*_contradictions(self)]
        if errors:
            raise _Contradictions(errors)
        return self

    @property
    def learners(self) -> int:
        """How many learners the job has."""
        return sum(role.count for role in self.roles.values())

    @property
    def gpus(self) -> float:
        """How many GPUs all learners of the job have together."""
        return sum(self.role_resources(name).gpus * role.count for name, role in self.roles.items())

    def role_resources(self, role: str, sizes: Mapping[str, Size] = SIZES) -> Size:
        """Returns the resources of one learner of the role.

        Each comes from the role, else from the job's ``resources``, else from their size. A size that is not in
        ``sizes`` counts as ``cpu``.
        """
        of_role, of_job = self.roles[role], self.resources
        of_size = sizes.get(of_job.size or "cpu", SIZES["cpu"])

        def first_set(*values: float | None) -> float:
            return next(value for value in values if value is not None)

        return Size(
            gpus=first_set(of_role.gpus, of_job.gpus, of_size.gpus),
            cpus=first_set(of_role.cpus, of_job.cpus, of_size.cpus),
            memory=int(first_set(of_role.memory, of_job.memory, of_size.memory)),
            devices=as_devices(of_job.devices if of_role.devices is None else of_role.devices),
        )

    def memory_field(self, role: str) -> str:
        """The field that sets the memory of the role's learners, as a path in the spec."""
        return "resources.memory" if self.roles[role].memory is None else f"roles.{role}.memory"


class _Contradictions(ValueError):
    """Carries several field errors through a pydantic validator, which can raise only one error."""

    def __init__(self, errors: list[FieldError]) -> None:
        super().__init__(errors[0].message)
        self.errors = errors


def _contradictions(spec: JobSpec) -> Iterator[FieldError]:
    """Checks the rules that concern several fields."""
    if spec.framework is not None and spec.image is not None:
        yield FieldError("/image", "give either framework or image, not both")
    if spec.image_pull_secret is not None and spec.image is None:
        yield FieldError("/image_pull_secret", "there is no image that it is for", "add image: or leave it out")
    if sum(role.decides for role in spec.roles.values()) > 1:
        yield FieldError("/roles", "only one role may have decides: true")
    if spec.resources.size is not None and spec.resources.size not in SIZES:
        yield FieldError(
            "/resources/size", f"there is no size '{spec.resources.size}'", nearest(spec.resources.size, SIZES)
        )
    if spec.learners > MAX_LEARNERS:
        yield FieldError("/roles", f"a job has at most {MAX_LEARNERS} learners")
    for name in spec.env:
        if is_reserved_variable(name):
            yield FieldError(f"/env/{name}", f"{name} is set by Weft and cannot be given", "use another name")
    path = spec.checkpoint.path
    if path is not None and (_leaves_folder(path) or not path.strip("/.")):
        yield FieldError("/checkpoint/path", "a relative path without '..', e.g. ckpt")
    yield from _store_errors(spec)
    yield from _input_errors(spec)
    yield from _metrics_errors(spec)


def _store_errors(spec: JobSpec) -> Iterator[FieldError]:
    stores = [store.id for store in spec.data_stores]
    for index, store in enumerate(stores):
        if store in stores[:index]:
            yield FieldError(f"/data_stores/{index}/id", f"two data stores are called '{store}'")
    used = [(f"/inputs/{index}/store", entry.store) for index, entry in enumerate(spec.inputs)]
    if spec.outputs is not None:
        used.append(("/outputs/store", spec.outputs.store))
    for pointer, store in used:
        if store not in stores:
            yield FieldError(pointer, f"there is no data store '{store}'", nearest(store, stores))
    if spec.outputs is not None and _leaves_folder(spec.outputs.path):
        yield FieldError("/outputs/path", "a relative path without '..', e.g. results/")


def _input_errors(spec: JobSpec) -> Iterator[FieldError]:
    for index, entry in enumerate(spec.inputs):
        for field, path in (("path", entry.path), ("mount", entry.mount or "")):
            if _leaves_folder(path):
                yield FieldError(f"/inputs/{index}/{field}", "a relative path without '..', e.g. mnist/")
    yield from _mount_errors([entry.mount or entry.store for entry in spec.inputs])


def _mount_errors(mounts: list[str]) -> Iterator[FieldError]:
    """Mounts that are equal or contain one another: an input's folder may be a link to shared data."""
    earlier: dict[tuple[str, ...], str] = {}
    parents: dict[tuple[str, ...], str] = {}
    """Each folder that contains an earlier mount, with that mount."""
    for index, mount in enumerate(mounts):
        path = tuple(part for part in mount.split("/") if part not in {"", "."})
        above = [path[:depth] for depth in range(1, len(path))]
        pointer = f"/inputs/{index}/mount"
        if path in earlier:
            yield FieldError(pointer, f"two inputs are mounted at '{mount}'")
        elif other := next((earlier[folder] for folder in above if folder in earlier), parents.get(path)):
            yield FieldError(pointer, f"the mounts '{other}' and '{mount}' contain one another", "use separate folders")
        earlier.setdefault(path, mount)
        for folder in above:
            parents.setdefault(folder, mount)


def _metrics_errors(spec: JobSpec) -> Iterator[FieldError]:
    for index, source in enumerate(spec.metrics):
        if source.path is not None and (_leaves_folder(source.path) or not source.path.strip("/.")):
            yield FieldError(f"/metrics/{index}/path", "a relative path without '..', e.g. train/metrics.jsonl")


def _leaves_folder(path: str) -> bool:
    """Whether a path is absolute or has a ``..``."""
    return path.startswith("/") or ".." in path.split("/")


def nearest(word: str, names: Mapping[str, object] | list[str] | tuple[str, ...]) -> str:
    """Returns a hint for an unknown name: ``did you mean 'x'?``, else the list of names, else an empty text."""
    close = difflib.get_close_matches(word, list(names), n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"there are: {', '.join(sorted(names))}" if names else ""


def parse_spec(document: object) -> JobSpec:
    """Returns the spec of a document (as read from YAML or JSON), in normal form.

    Raises InvalidSpec with all field errors at once.
    """
    errors = [*_shorthand_errors(document)]
    if errors and isinstance(document, dict):  # without a wrong ``learners`` the errors of other fields are found
        document = {name: value for name, value in document.items() if name != "learners"}
    try:
        spec = JobSpec.model_validate(document)
    except ValidationError as failed:
        errors += [error for detail in failed.errors(include_url=False) for error in _field_errors(detail)]
    else:
        if not errors:
            return spec
    raise InvalidSpec.of(errors) from None


def _shorthand_errors(document: object) -> Iterator[FieldError]:
    """Checks ``learners``, so that errors name this field and not the role that it becomes."""
    if not isinstance(document, dict) or "learners" not in document:
        return
    learners = document["learners"]
    if "roles" in document:
        yield FieldError("/learners", "give either learners or roles, not both")
    elif isinstance(learners, bool) or not isinstance(learners, int) or not 1 <= learners <= MAX_LEARNERS:
        yield FieldError("/learners", f"learners is a whole number from 1 to {MAX_LEARNERS}")


def dump_spec(spec: JobSpec) -> dict[str, Any]:
    """Returns the stored form: a JSON object without defaults. ``parse_spec`` of it returns an equal spec."""
    return spec.model_dump(mode="json", exclude_defaults=True)


def _field_errors(detail: ErrorDetails) -> Iterator[FieldError]:
    """Translates an error of pydantic."""
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
    elif kind == "literal_error":
        expected = [word.strip(" '") for word in str(context["expected"]).replace(" or ", ",").split(",")]
        yield FieldError(
            pointer, "not one of the values this field may have", nearest(str(detail["input"])[:100], expected)
        )
    else:
        yield FieldError(pointer, plain_message(detail))


def _fields_at(path: tuple[int | str, ...]) -> list[str]:
    """Returns the valid field names at a path in the spec, with the shorthand ``learners``."""
    if not path:
        return [*JobSpec.model_fields, "learners"]
    field = JobSpec.model_fields.get(str(path[0]))
    nested = next(_models_in(field.annotation), None) if field is not None else None
    return list(nested.model_fields) if nested is not None else []


def _models_in(annotation: object) -> Iterator[type[_Model]]:
    """Yields the models in a field's type, e.g. ``Role`` of ``dict[str, Role]``."""
    if isinstance(annotation, type) and issubclass(annotation, _Model):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)
