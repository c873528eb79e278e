# SPDX-License-Identifier: Apache-2.0
"""The training loop. Every step is a function of configuration, step and state alone:

    draws = sampler(seed, step) ─► batch ─► task.loss ─► gradients ─► mean over processes ─► optimiser ─► average
                                              every so often: log line, validation, checkpoint

so a run that was killed and resumed ends with the same bits as one that was not. (A time budget ties the learning
rate to the clock, and only then this does not hold.)
"""

from __future__ import annotations

import copy
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from inlay.errors import Terminated, number_of, require
from inlay.train.checkpoint import (
    Checkpoint,
    explained,
    pack_optimizers,
    random_state,
    restore_random,
    seed_random,
    unpack_optimizers,
)
from inlay.train.config import TrainConfig, TrainError
from inlay.train.data import Batch, ClipSource, Loader
from inlay.train.optim import average, make_optimizers, rate_at, set_rate
from inlay.train.processes import Processes, join_processes
from inlay.train.recording import Inputs, RecordedStep, Terms
from inlay.train.rundir import RunDir, RunIdentity, RunProgress, manifest, span
from inlay.train.sampler import ClipEntry, Sampler
from inlay.train.tasks import Task


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """How a run ended."""

    step: int
    finished: bool  # False: stopped by the clock of this call or by a signal; resume to go on
    seconds: float  # of all calls together
    best_step: int
    best_psnr: float | None
    weights: Path | None  # written when finished


def fit(
    task: Task,
    clips: ClipSource,
    config: TrainConfig,
    run_dir: str | Path,
    *,
    resume: bool = False,
    validate_entries: tuple[ClipEntry, ...] = (),
    begun_from: Sequence[str] = (),
    problems: list[str] | None = None,
    processes: Processes | None = None,
    stop_after: float = 0.0,
    quiet: bool = False,
) -> TrainResult:
    """Train to the end of the schedule, or until `stop_after` seconds of this call have passed.

    With `resume` a run that was begun goes on from its last checkpoint, and one that was not begins. `begun_from` names
    the weight files the task's networks were filled from.
    """
    processes = processes or join_processes(next(task.module.parameters()).device)
    sampler = Sampler(clips.entries, config.clips, seed=config.seed, weights=clips.weights)
    run = RunDir(run_dir, writes=processes.first)
    data = manifest(clips.entries, validate_entries, problems or [], sampler.skipped)
    networks = {**task.networks, "from": list(begun_from)}
    identity = RunIdentity(kind=task.kind, config=config, networks=networks, data=data)
    run.check(identity, resume=resume)
    if config.tensorboard:
        require("tensorboard", extra="train")
    training = Training(task, config, run, processes)
    processes.wait()  # every process has looked before one of them writes
    run.begin(identity)
    processes.wait()
    last = run.load("last") if resume else None
    training.begin(last)
    with RunProgress(config.steps, done=training.step, quiet=quiet or not processes.first) as progress:
        if problems:
            progress.say(f"{len(problems)} of the videos cannot be used; {run.path / 'data.json'} says why")
        if sampler.skipped:
            need = config.clips.shortest
            progress.say(f"{sampler.skipped} of {len(clips.entries)} videos are left out: shorter than {need} frames")
        progress.say(_plan(config, len(clips.entries) - sampler.skipped, training.device))
        try:
            return training.run_through(sampler, clips, progress, stop_after=stop_after)
        finally:
            run.close()


def _plan(c: TrainConfig, videos: int, device: torch.device) -> str:
    """What is about to be done: a first step may take minutes."""
    size, parts = c.clips.size, f", in {c.accumulate} parts" if c.accumulate > 1 else ""
    clips = f"{number_of(c.batch, 'clip')} of {c.clips.frames}x{size}x{size} from {number_of(videos, 'video')}{parts}"
    return f"{number_of(c.steps, 'step')} of {clips}, on {device.type}"


class Training:
    """The state of a run, and the one step that changes it."""

    def __init__(self, task: Task, config: TrainConfig, run: RunDir, processes: Processes) -> None:
        self.task, self.config, self.run, self.processes = task, config, run, processes
        self.module = task.module
        self.device = next(self.module.parameters()).device
        self.share = processes.share(config.batch, config.accumulate)
        self.optimizers = make_optimizers(self.module, config.optim, recorded=self.records)
        self.update: Callable[[Inputs], Terms] = self.plain_update
        if self.records:
            self.update = RecordedStep(self.plain_update, self.device)
        self.ema = copy.deepcopy(self.module).requires_grad_(False) if config.optim.ema else None
        self.step = 0
        self.best: dict[str, Any] = {"step": 0, "psnr": None}
        self.validated = -1  # the step validation last looked at
        self.kept = 0  # the step of the last checkpoint
        self.reported = 0  # how many of the clips' problems were reported
        self.before, self.begun, self.started = 0.0, 0, time.monotonic()  # by earlier calls, and this one
        self.bad_step = torch.full((), config.steps + 1, dtype=torch.int64, device=self.device)

    @property
    def records(self) -> bool:
        """Whether a step can be played back: one process, one part, on a GPU."""
        alone = self.processes.world == 1 and self.config.accumulate == 1
        return self.config.record and alone and self.device.type == "cuda"

    @property
    def seconds(self) -> float:
        """Time spent on this run, earlier calls included."""
        return self.before + time.monotonic() - self.started

    @property
    def judged(self) -> nn.Module:
        """The weights that are validated and shipped: the average, where one is kept."""
        return self.ema if self.ema is not None else self.module

    def time_left(self) -> str:
        """By the pace of this call; not by its first step, which may compile and record."""
        done, c = self.step - self.begun, self.config
        if done < 2 and (c.compile or self.records):
            return ""
        pace = (time.monotonic() - self.started) / done
        left = pace * (c.steps - self.step)
        if c.max_seconds:
            left = min(left, max(0.0, c.max_seconds - self.seconds))
        return f"{span(pace)} a step" + (f", {span(left)} left" if left else "")

    def begin(self, checkpoint: Checkpoint | None) -> None:
        seed_random(self.config.seed)
        if checkpoint is not None:
            self.restore(checkpoint)
        self.run.rewind(self.step)
        if self.config.tensorboard:
            self.run.open_events(self.step)
        if self.config.compile:
            self.task.compile()
        self.begun, self.started = self.step, time.monotonic()

    def run_through(
        self, sampler: Sampler, clips: ClipSource, progress: RunProgress, *, stop_after: float
    ) -> TrainResult:
        c = self.config
        loader = Loader(clips, lambda step: sampler.step(step, c.batch)[self.share], device=self.device)
        with matmul_precision(c.precision), stop_signals() as asked:
            for batch in loader.batches(self.step, c.steps):
                done = self.part_done()
                if done >= 1:
                    break
                terms = self.take_step(batch, rate_at(c.optim, step=self.step, progress=done))
                progress.step(self.step)
                self.report(terms, progress)
                self.report_problems(clips.problems, progress)
                late = bool(stop_after) and time.monotonic() - self.started > stop_after
                if self.agreed(float(bool(asked) or late)) > 0:
                    self.save()
                    if asked:
                        progress.say(f"step {self.step} is saved; the same command with --resume goes on")
                        raise Terminated if signal.SIGTERM in asked else KeyboardInterrupt
                    return self.outcome(finished=False)
            return self.finish(progress)

    def part_done(self) -> float:
        """How much of the run is done, by steps or by time, whichever is further; the same in all processes."""
        by_steps = self.step / self.config.steps
        if not self.config.max_seconds:
            return by_steps
        return max(by_steps, self.agreed(self.seconds / self.config.max_seconds))

    def agreed(self, number: float) -> float:
        """The mean over processes: their clocks and signals differ, and all must decide alike."""
        if self.processes.world == 1:
            return number
        shared = torch.tensor([number], device=self.device)
        self.processes.mean_([shared])
        return shared.item()

    def take_step(self, batch: Batch, rate: float) -> dict[str, Tensor]:
        """Lower the loss of one batch; returns the numbers to log, still on the device."""
        c = self.config
        self.step += 1
        self.module.train()
        set_rate(self.optimizers, rate)
        if c.accumulate == 1:
            terms = self.update(self.task.inputs(batch))
        else:
            terms = self.update_by_parts([self.task.inputs(part) for part in batch.parts(c.accumulate)])
        if self.ema is not None:
            average(self.ema, self.module, decay=c.optim.ema, step=self.step)
        self.note_bad_step(terms["loss"] + terms["grad_norm"])
        return {**terms, "rate": torch.tensor(rate)}

    def plain_update(self, inputs: Inputs) -> Terms:
        return self.update_by_parts([inputs])

    def update_by_parts(self, parts: list[Inputs]) -> Terms:
        """Gradients of all parts, one step of the optimisers; nothing here waits for the device."""
        sums: Terms = {}
        for inputs in parts:
            found = self.task.loss(inputs)
            (found.total / len(parts)).backward()
            for name, value in {"loss": found.total.detach(), **found.terms}.items():
                sums[name] = sums.get(name, 0) + value.float() / len(parts)
        parameters = [p for p in self.module.parameters() if p.grad is not None]
        self.processes.mean_([p.grad for p in parameters if p.grad is not None])
        self.processes.mean_(list(sums.values()))
        norm = nn.utils.clip_grad_norm_(parameters, self.config.optim.clip_norm or float("inf"))
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return {**sums, "grad_norm": norm}

    def note_bad_step(self, number: Tensor) -> None:
        """Note the first step whose loss or gradient is no number; on the device, so that nothing waits."""
        here = torch.where(number.isfinite(), self.config.steps + 1, self.step)
        self.bad_step = torch.minimum(self.bad_step, here.to(self.bad_step))

    def check(self) -> None:
        """Stop if a step went wrong: always before anything is written, so that checkpoints stay good."""
        bad = int(self.bad_step.item())
        if bad <= self.config.steps:
            comfort = f"the checkpoint of step {self.kept} is kept" if self.kept else "no checkpoint was made yet"
            raise TrainError(
                f"the loss or its gradient is not a number at step {bad}; {comfort} in {self.run.checkpoints}; "
                "try a lower lr, clip_norm=1, or precision=fp32"
            )

    def report(self, terms: dict[str, Tensor], progress: RunProgress) -> None:
        """Log, validate and save, as often as each is due."""
        c = self.config
        if self.step % c.log_every == 0 or self.step == 1:
            self.check()
            numbers = {name: value.item() for name, value in terms.items()}
            self.run.log({"kind": "train", "step": self.step, "seconds": round(self.seconds, 3), **numbers})
            progress.note(self.step, {k: numbers[k] for k in ("loss", "rate")}, self.time_left())
        if c.validate_every and self.step % c.validate_every == 0:
            self.validate(progress)
        if self.step % c.checkpoint_every == 0:
            self.save()

    def report_problems(self, problems: list[str], progress: RunProgress) -> None:
        """Name the videos that turned out to be unreadable since the last call."""
        for line in problems[self.reported :]:
            self.run.add_problem(line)
            progress.say(line)
        self.reported = len(problems)

    def validate(self, progress: RunProgress) -> None:
        """Only the first process looks: validation is short, and the others wait at the next gradient."""
        self.validated = self.step
        self.check()
        self.judged.eval()
        with torch.compiler.set_stance("force_eager"):  # compiling other shapes would take longer than running them
            found = self.task.validate(self.judged) if self.processes.first else None
        self.module.train()
        if found is None:
            return
        record = {"kind": "validate", "step": self.step, "psnr": found.psnr, **found.numbers}
        self.run.log(record)
        progress.say(f"step {self.step}: validation PSNR {found.psnr:.3f} dB")
        if found.picture is not None:
            self.run.picture(self.step, found.picture)
        if self.best["psnr"] is None or found.psnr > self.best["psnr"]:
            self.best = {"step": self.step, "psnr": found.psnr}
            self.run.save("best", Checkpoint(tensors=self.judged.state_dict(), facts=dict(self.best)))

    def finish(self, progress: RunProgress) -> TrainResult:
        self.check()
        if self.validated != self.step:
            self.validate(progress)
        self.save()
        if self.processes.first:
            self.export()
        self.processes.wait()
        return self.outcome(finished=True)

    def export(self) -> None:
        """The best weights, or the last where nothing was validated, as the rest of the package reads them."""
        chosen = copy.deepcopy(self.judged)
        best = self.run.load("best")
        if best is not None:
            chosen.load_state_dict(best.tensors)
        facts = {"step": self.best["step"] or self.step, "validation_psnr": self.best["psnr"]}
        with torch.compiler.set_stance("force_eager"), explained("the weights"):
            self.task.export(chosen.eval(), self.run.weights, facts)

    def outcome(self, *, finished: bool) -> TrainResult:
        return TrainResult(
            step=self.step,
            finished=finished,
            seconds=self.seconds,
            best_step=self.best["step"],
            best_psnr=self.best["psnr"],
            weights=self.run.weights if finished else None,
        )

    def save(self) -> None:
        self.check()
        tensors = {f"model.{k}": v for k, v in self.module.state_dict().items()}
        if self.ema is not None:
            tensors |= {f"ema.{k}": v for k, v in self.ema.state_dict().items()}
        generators, facts = random_state()
        facts |= {"step": self.step, "seconds": self.seconds, "validated": self.validated}
        tensors |= {**pack_optimizers(self.optimizers), **generators}
        self.run.save("last", Checkpoint(tensors=tensors, facts=facts))
        self.kept = self.step

    def restore(self, checkpoint: Checkpoint) -> None:
        t, facts = checkpoint.tensors, checkpoint.facts
        self.module.load_state_dict(_part(t, "model."))
        if self.ema is not None:
            self.ema.load_state_dict(_part(t, "ema."))
        unpack_optimizers(self.optimizers, t)
        restore_random(t, facts)
        self.step = self.kept = checkpoint.step
        self.validated, self.before = facts["validated"], facts["seconds"]
        best = self.run.load("best")
        if best is not None:  # it may be younger than the last checkpoint: what it holds is what will be shipped
            self.best = {name: best.facts[name] for name in self.best}


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """TF32 for whatever stays in float32, where the precision allows it."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    allowed = precision != "fp32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Collects interrupts instead of raising them: a step is never cut in half."""
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {s: signal.signal(s, lambda number, frame: asked.append(number)) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
