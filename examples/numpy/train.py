"""Softmax regression in plain NumPy: the smallest job that really trains.

Six clouds of points in eight dimensions, drawn from a seed, overlapping a little; a
fifth of the points is held out. One learner, full-batch gradient descent. It resumes
from its newest checkpoint, and exits with code 143 after a stop request.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read by NumPy: matrices this small need one
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

import weft

CLASSES, DIMENSIONS, POINTS = 6, 8, 6000
COMPLETE, INTERRUPTED = 0, 143

CHECKPOINT = Path(os.environ.get("CHECKPOINT_DIR", "checkpoints"), "newest.npz")
RESULTS = Path(os.environ.get("RESULT_DIR", "results"))


def points(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points (n, 9), of which the last coordinate is 1 (for the bias), and classes (n,)."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(0, 1.5, (CLASSES, DIMENSIONS))
    classes = rng.integers(0, CLASSES, POINTS)
    coordinates = centres[classes] + rng.normal(0, 1, (POINTS, DIMENSIONS))
    return np.concatenate([coordinates, np.ones((POINTS, 1))], axis=1), classes


def probabilities(weights: np.ndarray, x: np.ndarray) -> np.ndarray:
    """(9, 6), (n, 9) -> (n, 6)."""
    scores = x @ weights
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return scores / scores.sum(axis=1, keepdims=True)


def save(weights: np.ndarray, step: int) -> None:
    """Write the checkpoint under another name first: it appears whole or not at all."""
    CHECKPOINT.parent.mkdir(parents=True, exist_ok=True)
    unfinished = CHECKPOINT.with_suffix(".tmp")
    with unfinished.open("wb") as file:
        np.savez(file, weights=weights, step=step)
    unfinished.rename(CHECKPOINT)


def main() -> int:
    parser = argparse.ArgumentParser(description="Softmax regression in plain NumPy.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rate", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=50, help="steps from checkpoint to checkpoint")
    parser.add_argument("--slow", type=float, default=0, metavar="MS", help="sleep in every step")
    args = parser.parse_args()

    x, y = points(args.seed)
    train, test = slice(0, POINTS * 4 // 5), slice(POINTS * 4 // 5, POINTS)
    targets = np.eye(CLASSES)[y[train]]
    weights, done = np.zeros((DIMENSIONS + 1, CLASSES)), 0
    if CHECKPOINT.exists():
        with np.load(CHECKPOINT) as saved:
            weights, done = saved["weights"], int(saved["step"])
        print(f"continuing after step {done}")

    while done < args.steps:
        if weft.checkpoint_requested():
            save(weights, done)
            print(f"requested to stop; left after step {done}, to be continued")
            return INTERRUPTED
        p = probabilities(weights, x[train])
        loss = -np.log((p * targets).sum(axis=1)).mean()
        weights = weights - args.rate * x[train].T @ (p - targets) / len(targets)
        done += 1
        weft.report(step=done, loss=loss)
        if done % args.every == 0:
            save(weights, done)
            correct = (probabilities(weights, x[test]).argmax(axis=1) == y[test]).mean()
            weft.report(step=done, context={"subset": "test"}, accuracy=correct)
            weft.progress(done / args.steps)
            print(f"step {done}/{args.steps}  loss {loss:.4f}  test accuracy {correct:.2%}", flush=True)
        time.sleep(args.slow / 1000)

    correct = (probabilities(weights, x[test]).argmax(axis=1) == y[test]).mean()
    RESULTS.mkdir(parents=True, exist_ok=True)
    np.savez(RESULTS / "weights.npz", weights=weights)
    (RESULTS / "metrics.json").write_text(json.dumps({"steps": done, "accuracy": correct}) + "\n")
    print(f"done: {correct:.2%} of {len(y[test])} unseen points are classified correctly")
    return COMPLETE


if __name__ == "__main__":
    sys.exit(main())
