# SPDX-License-Identifier: Apache-2.0
"""The folder of a run: configuration, commit, data, log, pictures, checkpoints.

config.json   what was asked for, by which version and commit       log.jsonl     a line each log step and validation
data.json     which videos, how long, how large                     pictures/     what validation saw
checkpoints/  last (to go on from) and best (by validation PSNR)    tensorboard/  the same numbers, where asked for
weights.safetensors  the best weights, ready to use
"""

from __future__ import annotations

import json
import platform
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inlay import __version__
from inlay.errors import UsageError
from inlay.files import PART, write_atomic
from inlay.origin import commit
from inlay.train.checkpoint import Checkpoint, explained, load_checkpoint, save_checkpoint
from inlay.train.config import TrainConfig, changed_settings
from inlay.train.sampler import ClipEntry


@dataclass(frozen=True, kw_only=True)
class RunIdentity:
    """What makes a run this very one: a resumed run must have the same."""

    kind: str
    config: TrainConfig
    data: dict[str, Any]  # what data.json holds
    networks: dict[str, Any] = field(default_factory=dict)  # JSON values


class RunDir:
    """The folder of one run. Only the first process writes; the others read."""

    def __init__(self, path: str | Path, *, writes: bool = True) -> None:
        self.path, self.writes = Path(path), writes
        self.checkpoints = self.path / "checkpoints"
        self._events: Any = None

    @property
    def begun(self) -> bool:
        return (self.path / "config.json").is_file()

    @property
    def weights(self) -> Path:
        return self.path / "weights.safetensors"

    def check(self, identity: RunIdentity, *, resume: bool) -> None:
        """Refuse a folder that holds a run which is not this very one, or was not asked to go on."""
        if self.begun and not resume:
            raise UsageError(
                f"{self.path} holds a run already; go on with it, or choose another folder", about="resume"
            )
        if self.begun:
            self._check_same(identity)

    def begin(self, identity: RunIdentity) -> None:
        """Make the folder, if the run has none yet."""
        if self.writes and not self.begun:
            settings = {"kind": identity.kind, "config": asdict(identity.config), "networks": identity.networks}
            record = {**settings, **circumstances()}
            with explained(f"the run's folder {self.path}"):
                self.path.mkdir(parents=True, exist_ok=True)
                write_atomic(self.path / "data.json", json.dumps(identity.data, indent=1).encode(), durable=True)
                write_atomic(self.path / "config.json", json.dumps(record, indent=1).encode(), durable=True)

    def _check_same(self, identity: RunIdentity) -> None:
        record = self._read("config.json")
        if record.get("kind") != identity.kind:
            raise UsageError(
                f"{self.path} holds a run of kind {record.get('kind')!r}, not {identity.kind!r}; choose another folder"
            )
        changed = changed_settings(record["config"], identity.config)
        before, now = record.get("networks", {}), json.loads(json.dumps(identity.networks))
        changed += [f"networks.{name}" for name in before if before[name] != now.get(name)]
        if changed:
            raise UsageError(
                f"{self.path} was begun with other settings: {', '.join(changed)}; "
                "resume with the same ones (see its config.json), or begin a new run"
            )
        old = self._read("data.json")
        for split in ("train", "validate"):
            then, today = old.get(split) or [], identity.data.get(split) or []
            if then != today:
                raise UsageError(
                    f"{self.path}: the {split} videos have changed ({len(then)} then, {len(today)} now; "
                    "see its data.json); bring the old ones back, or begin a new run"
                )

    def _read(self, name: str) -> dict[str, Any]:
        try:
            return json.loads((self.path / name).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"{self.path / name} cannot be read ({error}); the run cannot be resumed") from error

    def save(self, name: str, checkpoint: Checkpoint) -> None:
        if self.writes:
            save_checkpoint(self.checkpoints, name, checkpoint)

    def load(self, name: str) -> Checkpoint | None:
        return load_checkpoint(self.checkpoints, name)

    def rewind(self, step: int) -> None:
        """Forget what a killed run logged after its last checkpoint; it will be done again."""
        if not self.writes:
            return
        with explained("the run's folder"):
            for part in self.path.rglob(f"*{PART}"):
                part.unlink(missing_ok=True)
        log = self.path / "log.jsonl"
        if log.is_file():
            kept = [line for line in log.read_text(encoding="utf-8").splitlines() if _step_of(line) <= step]
            with explained("the log"):
                write_atomic(log, "".join(line + "\n" for line in kept).encode(), durable=True)

    def add_problem(self, line: str) -> None:
        """Put a video that turned out to be unreadable into data.json, once."""
        if not self.writes:
            return
        data = self._read("data.json")
        if line not in data["problems"]:
            data["problems"].append(line)
            with explained("data.json"):
                write_atomic(self.path / "data.json", json.dumps(data, indent=1).encode(), durable=True)

    def log(self, record: dict[str, Any]) -> None:
        """Append one line, and the same numbers to TensorBoard where it is open."""
        if not self.writes:
            return
        with explained("the log"), (self.path / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        if self._events is not None:
            for name, value in record.items():
                if isinstance(value, float) and name != "seconds":
                    self._events.add_scalar(f"{record['kind']}/{name}", value, record["step"])

    def picture(self, step: int, image_HWC: Tensor) -> None:
        if not self.writes:
            return
        from inlay.draw.images import image_bytes

        folder = self.path / "pictures"
        with explained("a validation picture"):
            folder.mkdir(exist_ok=True)
            write_atomic(folder / f"step-{step:08d}.png", image_bytes(image_HWC), durable=True)
        if self._events is not None:
            self._events.add_image("validate", image_HWC, step, dataformats="HWC")

    def open_events(self, step: int) -> None:
        """Begin TensorBoard events; those after `step` are overwritten."""
        if self.writes:
            from torch.utils.tensorboard import SummaryWriter

            self._events = SummaryWriter(str(self.path / "tensorboard"), purge_step=step + 1)

    def close(self) -> None:
        if self._events is not None:
            self._events.close()
            self._events = None


def manifest(
    train: tuple[ClipEntry, ...], validate: tuple[ClipEntry, ...], problems: list[str], skipped: int
) -> dict[str, Any]:
    """What data.json holds."""
    return {
        "train": [asdict(e) for e in train],
        "validate": [asdict(e) for e in validate],
        "too_short": skipped,
        "problems": problems,
    }


def circumstances() -> dict[str, Any]:
    """Who made this: version, commit, platform."""
    return {
        "inlay": __version__,
        "commit": commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine(),
    }


def _step_of(line: str) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):  # the line a kill cut short
        return 2**62


class RunProgress:
    """Says where a run is. `quiet` says nothing."""

    def __init__(self, total: int, *, done: int = 0, quiet: bool = False) -> None:
        self.total, self.quiet = total, quiet
        self._bar: Any = None if quiet or not sys.stderr.isatty() else _rich_bar()
        if self._bar is not None:
            self._task = self._bar.add_task("training", total=total, completed=done, note="")

    def __enter__(self) -> RunProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, done: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=done)

    def note(self, done: int, numbers: dict[str, float], time: str = "") -> None:
        """Show some numbers of a step; the bar knows the time by itself."""
        text = "  ".join(f"{name} {value:.4g}" for name, value in numbers.items())
        if self._bar is not None:
            self._bar.update(self._task, completed=done, note=text)
        else:
            self.say("  ".join(filter(None, (f"step {done}/{self.total}", text, time))))

    def say(self, text: str) -> None:
        """A line of its own."""
        if self.quiet:
            return
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


def span(seconds: float) -> str:
    """
    >>> [span(s) for s in (0.25, 50, 600, 20_000, 900_000)]
    ['0.25 s', '50 s', '10 min', '5.6 h', '10 days']
    """
    if seconds < 100:
        return f"{seconds:.2g} s"
    units = (("min", 60), ("h", 3600), ("days", 86400))
    name, size = next((unit for unit in units if seconds < 100 * unit[1]), units[-1])
    return f"{seconds / size:,.0f} {name}" if seconds >= 9.95 * size else f"{seconds / size:.1f} {name}"


def _rich_bar() -> Any:
    """A bar by rich, or None where rich is not installed: training must run without it."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar
    except ImportError:
        return None
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Bar(*columns, TextColumn("{task.fields[note]}"), console=Console(stderr=True))
