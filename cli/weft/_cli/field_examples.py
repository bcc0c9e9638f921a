"""An example of each field of the job spec, for `weft train -h FIELD`. A test reads each one as part of a spec."""

from __future__ import annotations

from typing import Final

_ROLES: Final = "roles: {ps: {count: 1, command: python3 server.py}, worker: {count: 4}}"
_STORE: Final = "data_stores:\n  - {id: web, type: http, url: 'https://example.org/mnist.npz'}"
_S3: Final = "id: bucket, type: s3, url: 's3://bucket/digits', secret: s3"
EXAMPLES: Final[dict[str, str]] = {
    "checkpoint": "checkpoint: {keep: 5}",
    "checkpoint.path": "checkpoint: {path: ckpt}",
    "code": "code: .",
    "command": "command: python3 train.py --epochs 10",
    "data_stores": _STORE,
    "data_stores.path": "data_stores:\n  - {id: shared, type: local, path: /srv/data}",
    "data_stores.claim": "data_stores:\n  - {id: images, type: pvc, claim: imagenet}",
    "data_stores.endpoint": f"data_stores:\n  - {{{_S3}, endpoint: 'https://s3.example.org'}}",
    "data_stores.region": f"data_stores:\n  - {{{_S3}, region: eu-central-1}}",
    "data_stores.secret": f"data_stores:\n  - {{{_S3}}}",
    "description": "description: Baseline without augmentation.",
    "distribution": "distribution: torchrun",
    "elastic": "elastic: {min: 2, max: 8}",
    "env": "env: {BATCH_SIZE: 64, LR: 0.1}",
    "framework": "framework: pytorch:2",
    "framework.name": "framework: {name: pytorch, version: '2'}",
    "framework.version": "framework: {name: jax, version: '0.10'}",
    "grace": "grace: 2m",
    "image": "image: registry.example.org/team/train:1.4",
    "image_pull_secret": "image: registry.example.org/team/train:1.4\nimage_pull_secret: registry",
    "inputs": "inputs: [{store: web, mount: mnist}]",
    "inputs.path": "inputs: [{store: shared, path: imagenet/train, mount: train}]",
    "learners": "learners: 4",
    "max_pending": "max_pending: 12h",
    "max_runtime": "max_runtime: 8h",
    "metrics": "metrics: [{type: jsonl, path: metrics.jsonl}]",
    "name": "name: mnist-baseline",
    "notify": "notify: [team-chat]",
    "outputs": "outputs: {store: disk, path: results}",
    "placement": "placement: spread",
    "preemptible": "preemptible: true",
    "priority": "priority: high",
    "resources": "resources: {cpus: 4, memory: 16GB, gpus: 1}",
    "resources.devices": "resources: {devices: {rdma/hca: 1}}",
    "resources.disk": "resources: {disk: 100GB}",
    "resources.gpu_type": "resources: {gpus: 2, gpu_type: v100}",
    "resources.shm": "resources: {shm: 8GiB}",
    "resources.size": "resources: {size: cpu}",
    "retries": "retries: {max: 3, backoff: 30s, on: ['exit:17', infrastructure]}",
    "roles": _ROLES,
    "roles.worker.cpus": "roles: {worker: {count: 2, cpus: 4, memory: 8GB, gpus: 1, gpu_type: v100}}",
    "roles.worker.memory": "roles: {worker: {count: 2, memory: 8GB}}",
    "roles.worker.gpus": "roles: {worker: {count: 2, gpus: 1}}",
    "roles.worker.gpu_type": "roles: {worker: {count: 2, gpus: 1, gpu_type: v100}}",
    "roles.worker.devices": "resources: {devices: {rdma/hca: 1}}\nroles: {ps: {count: 1, devices: {}}}",
    "roles.worker.decides": "roles: {ps: {count: 1}, worker: {count: 4, decides: true}}",
    "roles.worker.min": "roles: {worker: {count: 4, min: 2}}",
    "roles.worker.on_failure": "roles: {ps: {count: 1}, worker: {count: 4, on_failure: ignore}}",
    "secrets": "secrets: [wandb-key]",
    "stall_timeout": "stall_timeout: 20m",
    "store_timeout": "store_timeout: 1h",
    "tags": "tags: [mnist, baseline]",
}
"""Path -> YAML. A field that is missing here is shown in the example of the field around it."""


def example_of(path: str) -> str:
    """The example that shows this field; names and numbers of the user's own stand for those of an example."""
    parts = path.split(".")
    if parts[0] == "roles" and len(parts) > 1:
        parts[1] = "worker"
    parts = [part for part in parts if not part.isdigit()]
    for length in range(len(parts), 0, -1):
        if ".".join(parts[:length]) in EXAMPLES:
            return EXAMPLES[".".join(parts[:length])]
    return ""
