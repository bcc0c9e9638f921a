"""Train a classifier of handwritten digits, data-parallel over any number of learners.

Real data (1,797 scanned digits of 8 x 8 pixels, inside scikit-learn), a small
convolutional network, SGD with momentum. In every step each learner computes the
gradient of its share of the batch, and one all-reduce adds them up, so that all hold
the same weights at all times. Only the `weft.` calls are specific to Weft;
outside it they do nothing.

Guarantees of a run:

* The same arguments and number of learners give the same weights, to the last bit,
  interrupted or not: which pictures a step sees depends on seed and step only.
* After a stop request (`weft.checkpoint_requested`), all learners exit after the same
  step: the request is part of the all-reduce. The exit code is then 143, as of a
  process that SIGTERM ended, because the training is not complete.
* A checkpoint appears whole or not at all, and holds all that the next step needs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

# One thread per learner: a network this small gains nothing from more, and learners
# that share a machine would fight over its cores. Read when JAX starts.
os.environ.setdefault("NPROC", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from sklearn.datasets import load_digits

import weft

COMPLETE, INTERRUPTED = 0, 143
CLASSES = 10
KEPT_CHECKPOINTS = 2

CHECKPOINTS = Path(os.environ.get("CHECKPOINT_DIR", "checkpoints"))
RESULTS = Path(os.environ.get("RESULT_DIR", "results"))

Weights = dict[str, Any]  # name -> array


class State(NamedTuple):
    """All that training changes. The same on every learner after every step."""

    weights: Weights
    momentum: Weights


class Rank(NamedTuple):
    """This learner's place among all."""

    index: int
    count: int


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a classifier of handwritten digits.")
    parser.add_argument("--epochs", type=int, default=80, help="passes over the data")
    parser.add_argument("--steps", type=int, help="train so many steps, whatever --epochs says")
    parser.add_argument("--batch", type=int, default=96, help="pictures per step, over all learners")
    parser.add_argument("--rate", type=float, default=0.05, help="learning rate at its highest")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=100, help="steps from checkpoint to checkpoint")
    parser.add_argument("--slow", type=float, default=0, metavar="MS", help="sleep in every step")
    return parser.parse_args()


def join_the_others() -> Rank:
    """Connect to the other learners; one learner alone where JAX_COORDINATOR_ADDRESS is not set."""
    address = os.environ.get("JAX_COORDINATOR_ADDRESS")
    if not address:
        return Rank(0, 1)
    rank = Rank(int(os.environ["JAX_PROCESS_ID"]), int(os.environ["JAX_NUM_PROCESSES"]))
    print(f"rank {rank.index} of {rank.count}: connecting to the others at {address}", flush=True)
    if rank.index == 0:
        # On a port in use JAX crashes without a message, or joins another job.
        with socket.create_server(("", int(address.rpartition(":")[2]))):
            pass
    # Without this, JAX handles SIGTERM itself.
    jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        address,
        num_processes=rank.count,
        process_id=rank.index,
        # All is given above: do not search for Slurm, MPI or Kubernetes.
        cluster_detection_method="deactivate",
        # The others may still be building their environment.
        initialization_timeout=600,
        shutdown_timeout_seconds=30,
    )
    return rank


# --- data ---------------------------------------------------------------------


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Pictures (n, 8, 8, 1) in 0..1 and labels (n,), to train on and then to test on.

    Every fifth picture is held out: no step ever sees it.
    """
    data = load_digits()
    pictures = (data.images / 16).astype(np.float32)[..., None]
    labels = data.target.astype(np.int32)
    held_out = np.arange(len(labels)) % 5 == 4
    return pictures[~held_out], labels[~held_out], pictures[held_out], labels[held_out]


def batch_of(step: int, size: int, total: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Which of `total` pictures step 1, 2, ... sees (size,), and by how many pixels each
    is moved down and right (size, 2)."""
    epoch, position = divmod(step - 1, total // size)
    order = np.random.default_rng((seed, epoch)).permutation(total)
    moves = np.random.default_rng((seed, epoch, position)).integers(-1, 2, (size, 2))
    return order[position * size : (position + 1) * size].astype(np.int32), moves.astype(np.int32)


def moved(picture: jax.Array, move: jax.Array) -> jax.Array:
    """The picture moved by up to one pixel each way; new pixels are empty."""
    framed = jnp.pad(picture, ((1, 1), (1, 1), (0, 0)))
    return jax.lax.dynamic_slice(framed, (1 - move[0], 1 - move[1], 0), picture.shape)


# --- model --------------------------------------------------------------------


def new_state(seed: int) -> State:
    rng = np.random.default_rng(seed)

    def layer(*shape: int) -> np.ndarray:
        return rng.normal(0, np.sqrt(2 / np.prod(shape[:-1])), shape).astype(np.float32)

    weights = {
        "conv1": layer(3, 3, 1, 24),
        "bias1": np.zeros(24, np.float32),
        "conv2": layer(3, 3, 24, 48),
        "bias2": np.zeros(48, np.float32),
        "dense": layer(4 * 4 * 48, 64),
        "bias3": np.zeros(64, np.float32),
        "out": layer(64, CLASSES),
        "bias4": np.zeros(CLASSES, np.float32),
    }
    return State(weights, {name: np.zeros_like(array) for name, array in weights.items()})


def logits(weights: Weights, pictures: jax.Array) -> jax.Array:
    """(n, 8, 8, 1) -> (n, 10)."""

    def convolve(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
        layout = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=layout)
        return jax.nn.relu(x + bias)

    x = convolve(pictures, weights["conv1"], weights["bias1"])
    x = convolve(x, weights["conv2"], weights["bias2"])
    x = x.reshape(-1, 4, 2, 4, 2, 48).max((2, 4))  # the largest of each 2 x 2 pixels
    x = jax.nn.relu(x.reshape(-1, 4 * 4 * 48) @ weights["dense"] + weights["bias3"])
    return x @ weights["out"] + weights["bias4"]


def cross_entropy(weights: Weights, pictures: jax.Array, labels: jax.Array) -> jax.Array:
    scores = jax.nn.log_softmax(logits(weights, pictures))
    return -jnp.take_along_axis(scores, labels[:, None], axis=1).mean()


@jax.jit
def accuracy(weights: Weights, pictures: np.ndarray, labels: np.ndarray) -> jax.Array:
    return (logits(weights, pictures).argmax(axis=1) == labels).mean()


# --- one step, on all learners at once ------------------------------------------

Share = tuple[np.ndarray, np.ndarray, np.ndarray]
Step = Callable[[State, Share, float], tuple[State, float, bool]]


def place(tree: Any, sharding: NamedSharding) -> Any:
    """Make this learner's arrays its part of arrays that span all learners."""
    return jax.tree.map(lambda a: jax.make_array_from_process_local_data(sharding, a), tree)


def make_step(pictures: np.ndarray, labels: np.ndarray) -> tuple[NamedSharding, Step]:
    """How a State lies on the learners (whole on each), and the training step.

    step(state, share, rate) -> state, loss, stop. `share`: this learner's part of the
    two arrays of `batch_of`, and [1.0] if it is requested to stop, else [0.0]. The loss is
    that of the whole batch; stop is True on all learners when any was requested to.
    """
    learners = jax.device_count()
    mesh = Mesh(np.array(jax.devices()), ("learners",))
    whole, part = PartitionSpec(), PartitionSpec("learners")
    on_all, split = NamedSharding(mesh, whole), NamedSharding(mesh, part)
    data = place((pictures, labels), on_all)

    def on_each(state: State, data: Any, share: Any, rate: jax.Array) -> Any:
        (pictures, labels), (chosen, moves, stop_request) = data, share
        # "varying": this learner's own gradient; JAX would else sum each array separately.
        weights = jax.lax.pcast(state.weights, "learners", to="varying")
        batch = jax.vmap(moved)(pictures[chosen], moves)
        loss, gradient = jax.value_and_grad(cross_entropy)(weights, batch, labels[chosen])
        # One vector, one all-reduce: one for each array would take three times as long.
        local, unravel = ravel_pytree((gradient, loss, stop_request[0]))
        gradient, loss, stops = unravel(jax.lax.psum(local, "learners"))
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g / learners, state.momentum, gradient)
        weights = jax.tree.map(lambda w, m: w - rate * m, state.weights, momentum)
        return State(weights, momentum), loss / learners, stops

    specs = (whole, whole, part, whole)
    compiled = jax.jit(jax.shard_map(on_each, mesh=mesh, in_specs=specs, out_specs=whole))

    def step(state: State, share: Share, rate: float) -> tuple[State, float, bool]:
        state, loss, stops = compiled(state, data, place(share, split), np.float32(rate))
        return state, float(loss), float(stops) > 0

    return on_all, step


# --- checkpoints ----------------------------------------------------------------


def on_host(state: State) -> State:
    return jax.tree.map(lambda a: np.asarray(a.addressable_data(0)), state)


def save(state: State, step: int) -> None:
    """Write the checkpoint of `step` under another name, then give it its own: whole or not at all."""
    CHECKPOINTS.mkdir(parents=True, exist_ok=True)
    target = CHECKPOINTS / f"step-{step:08}.npz"
    arrays = {f"{kind}.{k}": v for kind, tree in on_host(state)._asdict().items() for k, v in tree.items()}
    unfinished = target.with_suffix(".tmp")
    with unfinished.open("wb") as file:
        np.savez(file, **arrays)
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(target)
    for old in sorted(CHECKPOINTS.glob("step-*.npz"))[:-KEPT_CHECKPOINTS]:
        old.unlink()


def newest(fresh: State) -> tuple[State, int]:
    """The newest checkpoint that can be read, and its step; else `fresh` and 0."""
    for path in sorted(CHECKPOINTS.glob("step-*.npz"), reverse=True):
        try:
            with np.load(path) as file:
                trees = [{k: file[f"{kind}.{k}"] for k in fresh.weights} for kind in State._fields]
            return State(*trees), int(path.stem.removeprefix("step-"))
        except Exception as problem:  # noqa: BLE001 - for any damage, an older one is tried
            print(f"checkpoint {path.name} cannot be read, trying an older one: {problem}", flush=True)
    return fresh, 0


def resume(seed: int, rank: Rank) -> tuple[State, int]:
    """The state to continue from and the steps done, the same on all learners.

    Only rank 0 writes checkpoints, but after a restart on other machines any learner
    may have the newest, which it sends to all.
    """
    state, step = newest(new_state(seed))
    if rank.count == 1:
        return state, step
    steps = multihost_utils.process_allgather(np.int32(step))
    if steps.max() == 0:
        return state, 0
    state = multihost_utils.broadcast_one_to_all(state, is_source=rank.index == int(steps.argmax()))
    return jax.tree.map(np.asarray, state), int(steps.max())


# --- the run --------------------------------------------------------------------


def steps_of(args: argparse.Namespace, rank: Rank, pictures: int) -> tuple[int, int]:
    """Steps in an epoch and in total. Exits with a message for an impossible --batch."""
    if not 0 < args.batch <= pictures:
        sys.exit(f"--batch {args.batch}: there are {pictures} pictures to train on")
    if args.batch % rank.count:
        sys.exit(f"--batch {args.batch} cannot be shared evenly by {rank.count} learners")
    per_epoch = pictures // args.batch
    return per_epoch, args.steps or args.epochs * per_epoch


def rate_of(step: int, total: int, highest: float) -> float:
    """The learning rate: up in 50 steps, then down along half a cosine."""
    return highest * min(1, step / 50) * (1 + math.cos(math.pi * step / total)) / 2


def share_of(batch: int, rank: Rank) -> slice:
    """Which part of a batch is this learner's."""
    return slice(rank.index * batch // rank.count, (rank.index + 1) * batch // rank.count)


def main() -> int:
    args = arguments()
    rank = join_the_others()
    pictures, labels, test_pictures, test_labels = digits()
    per_epoch, total = steps_of(args, rank, len(labels))

    on_all, step = make_step(pictures, labels)
    state, done = resume(args.seed, rank)
    if done:
        print(f"rank {rank.index}: continuing after step {done}", flush=True)
    state = place(state, on_all)

    share, stop = share_of(args.batch, rank), False
    began, started_at = time.monotonic(), done
    while done < total and not stop:
        number = done + 1
        chosen, moves = batch_of(number, args.batch, len(labels), args.seed)
        stop_request = np.array([weft.checkpoint_requested()], np.float32)
        local = (chosen[share], moves[share], stop_request)
        state, loss, stop = step(state, local, rate_of(number, total, args.rate))
        done = number
        time.sleep(args.slow / 1000)

        took = time.monotonic() - began
        if number % 10 == 0:
            weft.report(step=number, samples_per_s=args.batch / rank.count * (done - started_at) / took)
        if rank.index:
            continue
        weft.report(step=number, loss=loss)
        if number % per_epoch == 0 or number == total:
            correct = float(accuracy(on_host(state).weights, test_pictures, test_labels))
            weft.report(step=number, context={"subset": "test"}, accuracy=correct)
            weft.progress(done / total, took / (done - started_at) * (total - done))
            if number % (5 * per_epoch) == 0 or number == total:
                print(f"step {number}/{total}  loss {loss:.4f}  test accuracy {correct:.2%}", flush=True)
        if stop or number % args.every == 0:
            save(state, number)

    if done < total:
        print(f"rank {rank.index}: requested to stop; left after step {done}, to be continued", flush=True)
        return INTERRUPTED
    if rank.index == 0:
        finish(state, test_pictures, test_labels, {"steps": done, "learners": rank.count})
    return COMPLETE


def finish(state: State, pictures: np.ndarray, labels: np.ndarray, summary: dict[str, Any]) -> None:
    weights = on_host(state).weights
    summary["accuracy"] = float(accuracy(weights, pictures, labels))
    RESULTS.mkdir(parents=True, exist_ok=True)
    np.savez(RESULTS / "weights.npz", **weights)
    (RESULTS / "metrics.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(f"done: {summary['accuracy']:.2%} of {len(labels)} unseen digits are classified correctly", flush=True)


if __name__ == "__main__":
    try:
        code = main()
    except Exception:  # noqa: BLE001
        # A learner that fails exits at once: the normal exit of a JAX process waits for
        # the others, and they wait for its gradients.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    sys.exit(code)
