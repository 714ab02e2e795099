"""Trains the demo model: `python -m tools.demo_model.train --work DIR`.

Worker processes of one thread each train copies of the model on their own texts, and every few
steps the copies are averaged (gloo all-reduce): on a busy machine this loses less time than one
process of many threads, or workers that wait for each other at every step. A checkpoint is written
every few minutes and taken up again by the next start; it also is what `export` makes the shipped
model of.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from tokenizers import Tokenizer
from tools.demo_model.batches import Batch, chunk_batches
from tools.demo_model.mix import Mix
from tools.demo_model.model import DemoModel, Shape, shipped_weights
from tools.demo_model.muon import Optimizer
from tools.demo_model.progress import held_out_report
from tools.demo_model.tokenizer import train_tokenizer
from torch import Tensor
from torch.nn import functional

SEED = 1
BATCHES_PER_STEP = 2
STEPS_PER_AVERAGE = 10
STEPS_PER_CHECKPOINT = 50
WARM_UP_STEPS = 25


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--steps", type=int, default=4000, help="steps in all")
    parser.add_argument("--minutes", type=float, help="end after this time instead, on a busy CPU")
    parser.add_argument("--decay", type=float, default=0.5, help="last share, rate falling to 0")
    parser.add_argument("--ramp", type=int, default=1200, help="steps until texts are longest")
    parser.add_argument("--start", type=Path, help="begin with this model directory's weights")
    parser.add_argument("--rate", type=float, default=1.0, help="share of the learning rates")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--rank", type=int, help="be this worker (set by the starting process)")
    parser.add_argument("--report", type=int, default=200, help="steps between held-out scores")
    parser.add_argument("--compile", action="store_true", help="use torch.compile")
    return parser.parse_args()


def rate(done: float, step: int, decay: float) -> float:
    """Warm-up, plateau, linear decay over the last share of the run; `done` is the share completed."""
    return max(0.0, min(1.0, (step + 1) / WARM_UP_STEPS, (1 - done) / decay))


def mix_at(step: int, options: argparse.Namespace) -> Mix:
    """The curriculum: filler grows from 100 to 2,400 tokens, evenly on a log scale.

    Weights that have been through it (`--start`) go on with the longest.
    """
    share = 1.0 if options.start else min(1.0, step / options.ramp)
    return Mix(longest=int(100 * 24**share))


class Trainer:
    """One worker: its copy of the model with fp32 weights, and its stream of batches."""

    def __init__(self, rank: int, options: argparse.Namespace) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(SEED)
        self.rank, self.options = rank, options
        self.tokenizer = Tokenizer.from_file(str(options.work / "tokenizer.json"))
        self.model = DemoModel(Shape())
        weights = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self.optimizer = Optimizer(weights)
        self.chunk, self.tokens, self.loss, self.done = 0, 0, 0.0, 0.0
        self.started = time.monotonic()
        self.checkpoint = options.work / "checkpoint.pt"
        if self.checkpoint.exists():
            saved = torch.load(self.checkpoint, weights_only=True)
            self.optimizer.load(saved["optimizer"])
            self.chunk, self.tokens = saved["chunk"], saved["tokens"]
        elif options.start:
            for name, value in shipped_weights(options.start).items():
                weights[name].copy_(value)
        self.forward = torch.compile(self.model, dynamic=True) if options.compile else self.model
        self.sync()
        self.batches = self.stream()

    def sync(self) -> None:
        """Rounds the weights in the model to bf16, in which they ship.

        The model computes in fp32, which a CPU without bf16 matrix units does faster.
        """
        for name, parameter in self.model.named_parameters():
            parameter.data.copy_(self.optimizer.weights[name].bfloat16())

    def stream(self) -> Iterator[Batch]:
        while True:
            self.chunk += 1
            mix = mix_at(self.optimizer.steps, self.options)
            yield from chunk_batches(self.tokenizer, f"{SEED} {self.rank} {self.chunk}", mix)

    def backward(self, batch: Batch) -> tuple[float, float]:
        """Adds a batch's gradients to those of the model; returns its loss and its weight."""
        logits = self.forward(batch.ids, batch.positions)
        losses = functional.cross_entropy(logits, batch.targets, reduction="none")
        loss = (losses * batch.weights).sum()
        torch.autograd.backward(loss)
        self.tokens += self.options.workers * batch.ids.numel()
        return loss.item(), batch.weights.sum().item()

    def step(self) -> None:
        """One update of this worker's copy."""
        sums = [self.backward(next(self.batches)) for _ in range(BATCHES_PER_STEP)]
        loss, weight = (sum(column) for column in zip(*sums, strict=True))
        gradients: dict[str, Tensor] = {}
        for name, parameter in self.model.named_parameters():
            gradients[name] = (
                torch.zeros_like(parameter) if parameter.grad is None else parameter.grad / weight
            )
            parameter.grad = None
        scale = self.options.rate * rate(self.done, self.optimizer.steps, self.options.decay)
        self.optimizer.step(gradients, scale)
        self.sync()
        self.loss += (0.02 if self.loss else 1.0) * (loss / weight - self.loss)

    def average(self) -> None:
        """Gives all workers the mean of their weights, and of the completed share of the run."""
        weights = self.optimizer.weights
        flat = torch.cat([weight.flatten() for weight in weights.values()])
        flat = torch.cat([flat, torch.tensor([self.share_done()])]) / self.options.workers
        dist.all_reduce(flat)
        views = torch.split(flat[:-1], [weight.numel() for weight in weights.values()])
        for weight, view in zip(weights.values(), views, strict=True):
            weight.copy_(view.view_as(weight))
        self.done = float(flat[-1])
        self.sync()

    def share_done(self) -> float:
        """The fraction of the run that is complete, which the workers average."""
        if self.options.minutes:
            return (time.monotonic() - self.started) / 60 / float(self.options.minutes)
        return self.optimizer.steps / float(self.options.steps)

    def save(self) -> None:
        state = {"optimizer": self.optimizer.state(), "chunk": self.chunk, "tokens": self.tokens}
        fresh = self.checkpoint.with_suffix(".new")
        torch.save(state, fresh)
        fresh.replace(self.checkpoint)

    def run(self) -> None:
        """Steps until the run is over, with a line of progress now and then."""
        before = self.tokens
        while self.done < 1:
            for _ in range(STEPS_PER_AVERAGE):
                self.step()
            self.average()
            if self.rank == 0:
                self.report(before)

    def report(self, before: int) -> None:
        """A line of progress, and now and then a checkpoint, and the held-out scores."""
        steps = self.optimizer.steps
        speed = (self.tokens - before) / (time.monotonic() - self.started)
        print(
            f"step {steps} ({self.done:.1%}) tokens {self.tokens / 1e6:.2f}M "
            f"loss {self.loss:.4f} {speed:.0f} tokens/s",
            flush=True,
        )
        if steps % STEPS_PER_CHECKPOINT == 0 or self.done >= 1:
            self.save()
        if steps % self.options.report == 0:
            print(held_out_report(self.model, self.tokenizer), flush=True)


def work(options: argparse.Namespace) -> None:
    """The body of one worker process."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    store = f"file://{options.work.resolve()}/rendezvous"
    dist.init_process_group(
        "gloo", init_method=store, rank=options.rank, world_size=options.workers,
        timeout=timedelta(hours=12),
    )  # fmt: skip
    Trainer(options.rank, options).run()
    dist.destroy_process_group()


def start_workers(options: argparse.Namespace) -> int:
    """Starts the workers as processes that show their purpose, and waits for them."""
    command = [sys.executable, "-m", "tools.demo_model.train", *sys.argv[1:]]
    workers = [subprocess.Popen([*command, "--rank", str(rank)]) for rank in range(options.workers)]
    return max(abs(worker.wait()) for worker in workers)


def main() -> None:
    options = parse_arguments()
    if options.rank is not None:
        return work(options)
    options.work.mkdir(parents=True, exist_ok=True)
    (options.work / "rendezvous").unlink(missing_ok=True)
    if not (options.work / "tokenizer.json").exists():
        if options.start:
            shutil.copyfile(options.start / "tokenizer.json", options.work / "tokenizer.json")
        else:
            train_tokenizer(seed=SEED).save(str(options.work / "tokenizer.json"))
    sys.exit(start_workers(options))


if __name__ == "__main__":
    main()
