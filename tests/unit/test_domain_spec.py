"""Validation of job specs: valid ones, and the errors of wrong ones (wrong_specs.yaml)."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from services.core.domain.errors import FieldError, InvalidSpec
from services.core.domain.sizes import Size
from services.core.domain.spec import JobSpec, dump_spec, nearest, parse_spec
from services.core.domain.unsupported import unsupported

WRONG: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "wrong_specs.yaml").read_text())


def a_spec(**fields: Any) -> JobSpec:
    return parse_spec({"name": "n", "command": "true", **fields})


def errors_of(document: object) -> tuple[FieldError, ...]:
    with pytest.raises(InvalidSpec) as caught:
        parse_spec(document)
    return caught.value.errors


# --- wrong specs ---------------------------------------------------------------


def test_at_least_forty_different_wrong_specs_are_tried() -> None:
    assert len(WRONG) >= 40
    assert max(Counter(case["rule"] for case in WRONG).values()) == 1
    assert len({json.dumps(case["spec"], sort_keys=True) for case in WRONG}) == len(WRONG)


@pytest.mark.parametrize("case", WRONG, ids=[case["rule"] for case in WRONG])
def test_a_wrong_spec_is_refused_with_pointer_message_and_hint(case: dict[str, Any]) -> None:
    (error,) = errors_of(case["spec"])
    assert error.pointer == case["pointer"]
    assert case["says"] in error.message
    assert error.hint == case.get("hint", "")


def test_all_wrong_fields_are_reported_at_once() -> None:
    errors = errors_of({"nmae": "x", "command": 1, "priority": "normla", "learners": 0, "retries": {"max": -1, "n": 2}})
    assert {error.pointer for error in errors} == {
        "/name",
        "/nmae",
        "/command",
        "/priority",
        "/learners",
        "/retries/max",
        "/retries/n",
    }
    errors = errors_of(
        {
            "name": "n",
            "command": "true",
            "env": {"HOME": "/", "PET_X": "1"},
            "inputs": [{"store": "a"}, {"store": "b"}],
            "checkpoint": {"path": "/x"},
        }
    )
    assert {error.pointer for error in errors} == {
        "/env/HOME",
        "/env/PET_X",
        "/checkpoint/path",
        "/inputs/0/store",
        "/inputs/1/store",
    }


def test_the_message_is_the_first_error_and_the_number_of_others() -> None:
    with pytest.raises(InvalidSpec, match=r"^nmae: .*; did you mean 'name'\? \(and 1 more\)$") as caught:
        parse_spec({"nmae": "x", "grcae": "1s", "name": "n", "command": "true"})
    assert len(caught.value.errors) == 2
    with pytest.raises(InvalidSpec, match=r"^the spec: a job spec is a mapping"):
        parse_spec(None)


def test_the_hint_on_an_unknown_name_is_the_nearest_name_or_all_names() -> None:
    assert nearest("wroker", ["worker", "ps"]) == "did you mean 'worker'?"
    assert nearest("zzz", ("worker", "ps")) == "there are: ps, worker"
    assert nearest("x", []) == ""


ODD = [None, True, False, 10**400, "9" * 500 + "d", "", "\ud800"]
JSON: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from(ODD) | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = [*JobSpec.model_fields, "learners"]


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6) | JSON)
def test_parsing_any_document_raises_invalid_spec_only(document: Any) -> None:
    if isinstance(document, dict):
        document = {"name": "n", "command": "true", **document}
    try:
        spec = parse_spec(document)
    except InvalidSpec as wrong:
        complete = [error for error in wrong.errors if error.message and error.pointer[:1] in {"", "/"}]
        if len(complete) != len(wrong.errors):
            raise
    else:
        assert parse_spec(json.loads(json.dumps(dump_spec(spec)))) == spec


# --- valid specs ---------------------------------------------------------------

FULL: dict[str, Any] = {
    "name": "digits",
    "description": "d",
    "framework": {"name": "jax", "version": "0.10"},
    "command": "python train.py",
    "code": ".",
    "roles": {"ps": {"count": 2, "gpus": 0}, "worker": {"count": 4, "decides": True, "memory": "2GiB"}},
    "distribution": "jax",
    "resources": {"size": "k80", "cpus": 2, "gpus": 0.5, "memory": "16Gb"},
    "placement": "spread",
    "data_stores": [
        {"id": "d", "type": "http", "url": "https://h/"},
        {"id": "s", "type": "s3", "url": "s3://bucket/a", "secret": "s"},
    ],
    "inputs": [{"store": "d", "path": "mnist/", "mount": "data"}, {"store": "s"}],
    "outputs": {"store": "s"},
    "checkpoint": {"path": "c", "keep": 9},
    "metrics": [{"type": "jsonl", "path": "m.jsonl"}],
    "retries": {"max": 3, "backoff": "1m30s", "on": ["infrastructure", "exit:137"]},
    "max_runtime": "2h",
    "grace": "0s",
    "priority": "high",
    "elastic": {"min": 1, "max": 8},
    "env": {"A": "b", "N": 3, "F": 0.5, "G": True},
    "tags": ["x"],
}


def test_the_stored_form_of_a_full_spec_parses_to_the_same_spec() -> None:
    spec = parse_spec(FULL)
    stored = dump_spec(spec)
    assert parse_spec(stored) == spec
    assert dump_spec(parse_spec(stored)) == stored
    assert (stored["max_runtime"], stored["retries"]["backoff"], stored["grace"]) == ("2h", "1m30s", "0s")
    assert (stored["resources"]["memory"], stored["roles"]["worker"]["memory"]) == ("16GB", "2GiB")
    assert (spec.max_runtime, spec.learners, spec.env) == (7_200_000, 6, {"A": "b", "N": "3", "F": "0.5", "G": "true"})
    assert stored["data_stores"][1]["url"] == "s3://bucket/a"


def test_the_stored_form_leaves_out_defaults() -> None:
    assert dump_spec(a_spec()) == {"name": "n", "command": "true", "roles": {"worker": {"count": 1}}}
    assert dump_spec(a_spec(learners=4, priority="normal"))["roles"] == {"worker": {"count": 4}}


@pytest.mark.parametrize(
    ("written", "name", "version"),
    [
        ("jax", "jax", ""),
        ("jax:0.10", "jax", "0.10"),
        ({"name": "jax"}, "jax", ""),
        ({"name": "jax", "version": "0"}, "jax", "0"),
        ({"name": "python", "version": 3}, "python", "3"),
    ],
)
def test_a_framework_may_be_written_in_short_form(written: object, name: str, version: str) -> None:
    framework = a_spec(framework=written).framework
    assert framework is not None
    assert (framework.name, framework.version) == (name, version)


def test_a_command_may_be_a_list_of_words() -> None:
    assert parse_spec({"name": "n", "command": ["python", "a b.py", "$X"]}).command == "python 'a b.py' '$X'"
    assert errors_of({"name": "n", "command": ["python", 1]})[0].pointer == "/command"


def test_resources_come_from_the_role_else_the_job_else_the_size() -> None:
    spec = a_spec(
        roles={"ps": {"count": 1, "gpus": 0, "cpus": 0.5, "memory": "3GB"}, "worker": {"count": 1}},
        resources={"size": "k80", "cpus": 2},
    )
    assert spec.role_resources("ps") == Size(gpus=0, cpus=0.5, memory=3 * 10**9)
    assert spec.role_resources("worker") == Size(gpus=1, cpus=2, memory=24 * 10**9)
    assert a_spec().role_resources("worker") == Size(gpus=0, cpus=1, memory=10**9)
    # A size that no longer exists counts as the smallest.
    assert spec.role_resources("worker", {}) == Size(gpus=0, cpus=2, memory=10**9)
    assert spec.role_resources("worker", {"k80": Size(2, 8, 5)}) == Size(gpus=2, cpus=2, memory=5)


# --- fields that are not implemented yet ---------------------------------------------------


def test_secret_to_pull_an_image_with_is_refused_where_there_are_no_images() -> None:
    spec = a_spec(image="img:1", image_pull_secret="s")
    assert [error.pointer for error in unsupported(spec)] == ["/image", "/image_pull_secret"]
    assert unsupported(spec, "kubernetes") == ()


def test_secret_to_pull_an_image_with_needs_an_image() -> None:
    with pytest.raises(InvalidSpec, match="image_pull_secret: there is no image that it is for; add image:"):
        a_spec(image_pull_secret="s")


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"image": "img:1"}, "/image"),
        ({"distribution": "mpi"}, "/distribution"),
        ({"data_stores": [{"id": "d", "type": "gcs"}]}, "/data_stores/0/type"),
        ({"data_stores": [{"id": "d", "type": "local", "path": "/x", "secret": "s"}]}, "/data_stores/0/secret"),
        ({"metrics": [{"type": "regex"}]}, "/metrics/0/type"),
        ({"elastic": {"min": 1, "max": 2}}, "/elastic"),
        ({"secrets": ["s"]}, "/secrets"),
        ({"notify": ["w"]}, "/notify"),
        ({"data_stores": [{"id": "d", "type": "local", "path": "/x"}], "outputs": {"store": "d"}}, "/outputs"),
        ({"preemptible": True}, "/preemptible"),
        ({"stall_timeout": "1m"}, "/stall_timeout"),
        ({"priority": "high"}, "/priority"),
        ({"placement": "rack"}, "/placement"),
        ({"resources": {"shm": "1GB"}}, "/resources/shm"),
        ({"resources": {"disk": "1GB"}}, "/resources/disk"),
        ({"resources": {"devices": {"rdma/hca": 1}}}, "/resources/devices"),
        ({"roles": {"worker": {"count": 1, "devices": {"rdma/hca": 1}}}}, "/roles/worker/devices"),
    ],
    ids=str,
)
def test_a_field_that_is_not_implemented_is_refused_by_name(fields: dict[str, Any], pointer: str) -> None:
    (error,) = unsupported(a_spec(**fields))
    assert error.pointer == pointer
    assert "not available on this platform yet" in error.message


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"data_stores": [{"id": "l", "type": "local", "path": "/data"}]}, "/data_stores/0/type"),
        ({"data_stores": [{"id": "l", "type": "host", "path": "/data"}]}, "/data_stores/0/type"),
        ({"data_stores": [{"id": "l", "type": "nfs", "server": "nas", "path": "/data"}]}, "/data_stores/0/type"),
        (
            {"data_stores": [{"id": "d", "type": "http", "url": "http://h"}], "outputs": {"store": "d"}},
            "/outputs/store",
        ),
        ({"resources": {"gpus": 0.5}}, "/resources/gpus"),
        ({"roles": {"worker": {"count": 1, "gpus": 0.5}}}, "/roles/worker/gpus"),
    ],
    ids=str,
)
def test_a_field_that_pods_cannot_have_is_refused_with_what_to_write(fields: dict[str, Any], pointer: str) -> None:
    (error,) = unsupported(a_spec(**fields), "kubernetes")
    assert error.pointer == pointer
    assert error.hint


@pytest.mark.parametrize("cluster", ["local", "kubernetes"])
def test_s3_stores_with_a_secret_are_there_on_every_cluster(cluster: str) -> None:
    store = {"id": "l", "type": "s3", "url": "s3://bucket", "secret": "s"}
    assert unsupported(a_spec(data_stores=[store]), cluster) == ()


def test_volumes_of_claims_are_for_pods() -> None:
    spec = a_spec(data_stores=[{"id": "l", "type": "pvc", "claim": "imagenet"}])
    assert unsupported(spec, "kubernetes") == ()
    assert [error.pointer for error in unsupported(spec)] == ["/data_stores/0/type"]


def test_results_of_pods_may_be_stored_on_claims() -> None:
    a_claim = {"id": "l", "type": "pvc", "claim": "kept"}
    spec = a_spec(data_stores=[a_claim], outputs={"store": "l", "path": "results/"})
    assert unsupported(spec, "kubernetes") == ()
    assert [error.pointer for error in unsupported(spec)] == ["/outputs", "/data_stores/0/type"]


def test_pods_have_images_and_shared_memory() -> None:
    spec = a_spec(image="registry.example/mine:1", resources={"shm": "1GB", "gpus": 2})
    assert unsupported(spec, "kubernetes") == ()
    assert [error.pointer for error in unsupported(spec)] == ["/image", "/resources/shm"]


def test_learners_in_pods_have_the_devices_of_their_role_or_else_of_the_job() -> None:
    roles = {"ps": {"count": 1, "devices": {}}, "nic": {"count": 1, "devices": {"rdma/hca": 2}}, "worker": {"count": 1}}
    spec = a_spec(resources={"devices": {"rdma/hca": 1, "example.org/fpga": 3}}, roles=roles)
    assert unsupported(spec, "kubernetes") == ()
    assert {name: dict(spec.role_resources(name).devices) for name in roles} == {
        "ps": {},
        "nic": {"rdma/hca": 2},
        "worker": {"rdma/hca": 1, "example.org/fpga": 3},
    }


def test_an_unknown_field_of_a_metrics_file_is_refused_with_the_nearest_name() -> None:
    (error,) = unsupported(a_spec(metrics=[{"type": "jsonl", "pth": "m.jsonl"}]))
    assert (error.pointer, error.hint) == ("/metrics/0/pth", "did you mean 'path'?")


def test_implemented_fields_are_not_refused() -> None:
    implemented = {
        key: value
        for key, value in FULL.items()
        if key not in {"elastic", "outputs", "data_stores", "inputs", "priority", "checkpoint", "placement"}
    }
    implemented["data_stores"] = [FULL["data_stores"][0], {"id": "l", "type": "local", "path": "/data"}]
    implemented["roles"] = {"worker": {"count": 2, "min": 1, "on_failure": "restart"}}
    assert unsupported(parse_spec(implemented)) == ()
