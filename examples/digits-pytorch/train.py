"""Train a classifier of handwritten digits with PyTorch's DistributedDataParallel.

The same task as examples/digits (there in JAX): scikit-learn's 1,797 real digits, a
fifth held out, a small convolutional network, any number of learners. A learner with a
GPU (`resources: {gpus: 1}`) trains on it, otherwise on CPUs. DDP averages the gradients
over NCCL between GPUs, and over gloo between CPUs. Only the `weft.` calls are specific to
Weft; outside it they do nothing.

Guarantees of a run:

* The same arguments, kind of device and number of learners give the same weights,
  interrupted or not: which pictures a step sees depends on seed and step only.
* After a stop request (`weft.checkpoint_requested`), all learners exit after the same
  step, which they agree on by an all-reduce of one number. The exit code is then 143, because
  the training is not complete.
* A checkpoint appears whole or not at all, and holds all that the next step needs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import weft

COMPLETE, INTERRUPTED = 0, 143
# cuBLAS gives the same sums each time only with a workspace of its own; it reads this when it starts.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BACKENDS = "cpu:gloo,cuda:nccl" if DEVICE.type == "cuda" else "gloo"
CLASSES = 10
KEPT_CHECKPOINTS = 2

CHECKPOINTS = Path(os.environ.get("CHECKPOINT_DIR", "checkpoints"))
RESULTS = Path(os.environ.get("RESULT_DIR", "results"))


class Rank(NamedTuple):
    """This learner's place among all."""

    index: int
    count: int


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a classifier of handwritten digits.")
    parser.add_argument("--epochs", type=int, default=40, help="passes over the data")
    parser.add_argument("--steps", type=int, help="train so many steps, whatever --epochs says")
    parser.add_argument("--batch", type=int, default=96, help="pictures per step, over all learners")
    parser.add_argument("--rate", type=float, default=0.05, help="learning rate at its highest")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=100, help="steps from checkpoint to checkpoint")
    parser.add_argument("--slow", type=float, default=0, metavar="MS", help="sleep in every step")
    return parser.parse_args()


def join_the_others() -> Rank:
    """Connect to the other learners; one learner alone where MASTER_ADDR is not set."""
    if not os.environ.get("MASTER_ADDR"):
        dist.init_process_group(BACKENDS, store=dist.HashStore(), rank=0, world_size=1)
        return Rank(0, 1)
    rank = Rank(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    print(f"rank {rank.index} of {rank.count}: connecting to the others at {address}", flush=True)
    # Ten minutes: the others may still be building their environment.
    dist.init_process_group(BACKENDS, timeout=timedelta(minutes=10))
    return rank


def device_name() -> str:
    return torch.cuda.get_device_name() if DEVICE.type == "cuda" else "the processor"


def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pictures (n, 1, 8, 8) in 0..1 and labels (n,), to train on and then to test on; on the learner's device.

    Every fifth picture is held out: no step ever sees it.
    """
    data = load_digits()
    pictures = torch.tensor(data.images / 16, dtype=torch.float32, device=DEVICE)[:, None]
    labels = torch.tensor(data.target, dtype=torch.int64, device=DEVICE)
    held_out = torch.arange(len(labels)) % 5 == 4
    return pictures[~held_out], labels[~held_out], pictures[held_out], labels[held_out]


def batch_of(step: int, size: int, total: int, seed: int) -> torch.Tensor:
    """Which of `total` pictures step 1, 2, ... sees: (size,)."""
    epoch, position = divmod(step - 1, total // size)
    order = np.random.default_rng((seed, epoch)).permutation(total)
    return torch.from_numpy(order[position * size : (position + 1) * size])


def new_model() -> nn.Module:
    """(n, 1, 8, 8) -> (n, 10)."""
    return nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(24, 48, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(48 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, CLASSES),
    )


@torch.no_grad()
def accuracy(model: nn.Module, pictures: torch.Tensor, labels: torch.Tensor) -> float:
    return float((model(pictures).argmax(1) == labels).float().mean())


# --- checkpoints ----------------------------------------------------------------


def save(state: dict[str, Any], step: int) -> None:
    """Write the checkpoint of `step` under another name, then give it its own: whole or not at all."""
    CHECKPOINTS.mkdir(parents=True, exist_ok=True)
    target = CHECKPOINTS / f"step-{step:08}.pt"
    unfinished = target.with_suffix(".tmp")
    with unfinished.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(target)
    for old in sorted(CHECKPOINTS.glob("step-*.pt"))[:-KEPT_CHECKPOINTS]:
        old.unlink()


def newest() -> tuple[dict[str, Any] | None, int]:
    """The newest checkpoint that can be read, and its step; else None and 0."""
    for path in sorted(CHECKPOINTS.glob("step-*.pt"), reverse=True):
        try:
            return torch.load(path, weights_only=True, map_location="cpu"), int(path.stem.removeprefix("step-"))
        except Exception as problem:  # noqa: BLE001 - for any damage, an older one is tried
            print(f"checkpoint {path.name} cannot be read, trying an older one: {problem}", flush=True)
    return None, 0


def resume(rank: Rank) -> tuple[dict[str, Any] | None, int]:
    """The state to continue from (None: start) and the steps done, the same on all learners.

    Only rank 0 writes checkpoints, but after a restart on other machines any learner
    may have the newest, which it sends to all.
    """
    state, step = newest()
    steps = [torch.zeros(1, dtype=torch.int64) for _ in range(rank.count)]
    dist.all_gather(steps, torch.tensor([step]))
    source = int(torch.cat(steps).argmax())
    if not int(steps[source]):
        return None, 0
    box = [state]
    dist.broadcast_object_list(box, src=source)
    return box[0], int(steps[source])


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
    # One thread per learner: a network this small gains nothing from more, and learners
    # that share a machine would fight over its cores.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    rank = join_the_others()
    pictures, labels, test_pictures, test_labels = digits()
    print(f"rank {rank.index} of {rank.count}: training on {device_name()}", flush=True)
    per_epoch, total = steps_of(args, rank, len(labels))

    torch.manual_seed(args.seed)
    model = new_model().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.rate, momentum=0.9)
    state, done = resume(rank)
    if state:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        print(f"rank {rank.index}: continuing after step {done}", flush=True)
    parallel = DistributedDataParallel(model)

    share, stop, began, started_at = share_of(args.batch, rank), False, time.monotonic(), done
    while done < total and not stop:
        number = done + 1
        for group in optimizer.param_groups:
            group["lr"] = rate_of(number, total, args.rate)
        chosen = batch_of(number, args.batch, len(labels), args.seed)[share]
        loss = cross_entropy(parallel(pictures[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()  # DDP averages the gradients here
        optimizer.step()
        # [loss of all, number of stop requests]: the same on all learners.
        totals = torch.tensor([loss.item() / rank.count, float(weft.checkpoint_requested())])
        dist.all_reduce(totals)
        stop, done = bool(totals[1] > 0), number
        time.sleep(args.slow / 1000)

        took = time.monotonic() - began
        if number % 10 == 0:
            weft.report(step=number, samples_per_s=args.batch / rank.count * (done - started_at) / took)
        if rank.index:
            continue
        weft.report(step=number, loss=totals[0])
        if number % per_epoch == 0 or number == total:
            correct = accuracy(model, test_pictures, test_labels)
            weft.report(step=number, context={"subset": "test"}, accuracy=correct)
            weft.progress(done / total, took / (done - started_at) * (total - done))
            if number % (5 * per_epoch) == 0 or number == total:
                print(f"step {number}/{total}  loss {totals[0]:.4f}  test accuracy {correct:.2%}", flush=True)
        if stop or number % args.every == 0:
            save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, number)

    if done == total and rank.index == 0:
        finish(model, test_pictures, test_labels, {"steps": done, "learners": rank.count})
    dist.barrier()  # rank 0 serves the rendezvous: the others exit after it is done
    dist.destroy_process_group()
    if done < total:
        print(f"rank {rank.index}: requested to stop; left after step {done}, to be continued", flush=True)
        return INTERRUPTED
    return COMPLETE


def finish(model: nn.Module, pictures: torch.Tensor, labels: torch.Tensor, summary: dict[str, Any]) -> None:
    summary["accuracy"] = accuracy(model, pictures, labels)
    RESULTS.mkdir(parents=True, exist_ok=True)
    np.savez(RESULTS / "weights.npz", **{name: w.cpu().numpy() for name, w in model.state_dict().items()})
    (RESULTS / "metrics.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(f"done: {summary['accuracy']:.2%} of {len(labels)} unseen digits are classified correctly", flush=True)


if __name__ == "__main__":
    try:
        code = main()
    except Exception:  # noqa: BLE001
        # A learner that fails exits at once: the normal exit may wait for the others, and
        # they wait for its gradients.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    sys.exit(code)
