# SPDX-License-Identifier: Apache-2.0
"""Whole runs: learning, stopping, going on, and ending with the same bits."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from inlay.backbones import Mini, load_backbone, tiny
from inlay.backbones import load_mini as load_mini_file
from inlay.errors import ConfigError, MissingError, UsageError
from inlay.fill import Lit, LitConfig, load_lit
from inlay.research.recipe import ResidentClips
from inlay.train import (
    BackboneTask,
    Batch,
    LatentCache,
    LitTask,
    Sampler,
    TogetherTask,
    TrainConfig,
    TrainError,
    TrainResult,
    ValidationSet,
    fit,
    presets,
)
from inlay.train.losses import StepLoss
from inlay.train.tasks import draw_tau, masks
from inlay.train.together import LIT_FILE
from tests.conftest import ROOT, moving_square

SMALL = LitConfig(kind="plus", width=32, heads=2, blocks=2, window=4)


def clips(first: int = 0, count: int = 5) -> ResidentClips:
    return ResidentClips([moving_square(12, 32, 40, seed=s).frames for s in range(first, first + count)])


def smoke(**options: Any) -> TrainConfig:
    """Six steps that use everything a run has: random tau, average, two optimisers, accumulation."""
    base = presets.smoke_training().with_options(
        steps=6, checkpoint_every=2, validate_every=3, tau=(0.02, 0.1), ema=0.9, optimizer="muon", clip_norm=1.0,
        accumulate=2, warmup=2,
    )  # fmt: skip
    return base.with_options(**options)


def lit_task(config: TrainConfig) -> LitTask:
    torch.manual_seed(config.seed)
    validation = ValidationSet.of(clips(10, 2), config)
    return LitTask(Lit.build(SMALL), load_backbone("mini-untrained"), config, validation=validation)


def train(run: Path, config: TrainConfig | None = None, **options: Any) -> TrainResult:
    config = config or smoke()
    return fit(lit_task(config), clips(), config, run, quiet=True, **options)


def last_tensors(run: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    facts = json.loads((run / "checkpoints" / "last.json").read_text())
    return load_file(run / "checkpoints" / facts["tensors"])


def log_of(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def assert_same_run(a: Path, b: Path) -> None:
    one, other = last_tensors(a), last_tensors(b)
    assert set(one) == set(other)
    different = [name for name in one if not torch.equal(one[name], other[name])]
    assert not different
    assert log_of(a) == log_of(b)
    assert (a / "weights.safetensors").read_bytes() == (b / "weights.safetensors").read_bytes()


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("unbroken") / "run"
    outcome = train(run)
    assert outcome.finished
    assert outcome.step == 6
    return run


def test_a_run_leaves_everything_behind(unbroken: Path) -> None:
    kinds = [line["kind"] for line in log_of(unbroken)]
    assert kinds == ["train"] * 3 + ["validate"] + ["train"] * 3 + ["validate"]
    assert {"loss", "pixel", "latent", "keep_rate", "grad_norm", "rate"} <= set(log_of(unbroken)[0])
    validation = log_of(unbroken)[3]
    assert {"psnr", "psnr_full", "psnr_hold", "keep_rate"} <= set(validation)
    assert [p.name for p in sorted((unbroken / "pictures").iterdir())] == ["step-00000003.png", "step-00000006.png"]
    data = json.loads((unbroken / "data.json").read_text())
    assert (len(data["train"]), len(data["validate"]), data["too_short"]) == (5, 0, 0)
    lit = load_lit(unbroken / "weights.safetensors")
    assert lit.config == SMALL
    names = set(last_tensors(unbroken))
    assert any(n.startswith("ema.") for n in names)
    assert {"random.torch"} <= names


class Stop(Exception):
    pass


@pytest.mark.parametrize("at", [1, 2, 5])
def test_a_run_broken_at_any_step_ends_with_the_same_bits(unbroken: Path, tmp_path: Path, at: int) -> None:
    config, run = smoke(), tmp_path / "run"
    task = lit_task(config)
    honest, seen = task.loss, []

    def loss(batch: Batch) -> StepLoss:
        seen.append(1)
        if len(seen) > at * config.accumulate:
            raise Stop
        return honest(batch)

    task.loss = loss  # type: ignore[method-assign]
    with pytest.raises(Stop):
        fit(task, clips(), config, run, quiet=True)
    torch.manual_seed(999)  # whatever happened in between must not matter
    assert train(run, resume=True).finished
    assert_same_run(run, unbroken)


def test_a_finished_run_resumed_changes_nothing(unbroken: Path, tmp_path: Path) -> None:
    import shutil

    run = tmp_path / "again"
    shutil.copytree(unbroken, run)
    train(run, resume=True)
    assert_same_run(run, unbroken)


KILLED = """
import sys
from pathlib import Path
from tests.flow.test_train_run import train
train(Path(sys.argv[1]), resume=True)
"""


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(torch.get_num_threads()), **more}


@pytest.mark.slow
def test_a_killed_process_ends_with_the_same_bits(unbroken: Path, tmp_path: Path) -> None:
    """SIGKILL at a moment nobody chose, as often as it takes until one is left to finish."""
    run, codes = tmp_path / "run", []
    for wanted in (1, 4):
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(run)], cwd=ROOT, env=environment())
        log, deadline = run / "log.jsonl", time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            if log.exists() and len(log.read_text().splitlines()) >= wanted:
                break
            time.sleep(0.01)
        process.kill()
        codes.append(process.wait())
    assert -signal.SIGKILL in codes
    assert train(run, resume=True).finished
    assert_same_run(run, unbroken)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, b"KeyboardInterrupt"), (signal.SIGTERM, b"Terminated")])
def test_an_interrupt_saves_the_step_it_is_at(unbroken: Path, tmp_path: Path, number: int, name: bytes) -> None:
    run = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(run)], cwd=ROOT, env=environment(), stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 120
    while not (run / "log.jsonl").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(number)
    _, error = process.communicate(timeout=120)
    assert name in error
    assert json.loads((run / "checkpoints" / "last.json").read_text())["step"] >= 1
    assert train(run, resume=True).finished
    assert_same_run(run, unbroken)


def test_the_paper_s_network_notes_the_grid_it_learns_on(tmp_path: Path) -> None:
    config = smoke(steps=1, validate_every=0, size=96)
    lit = Lit.build(replace(SMALL, kind="paper"))
    videos = ResidentClips([moving_square(12, 96, 96, seed=s).frames for s in range(2)])
    outcome = fit(LitTask(lit, load_backbone("mini-untrained"), config), videos, config, tmp_path, quiet=True)
    assert outcome.weights is not None and load_lit(outcome.weights).config.grid == 96 // 8


def test_stop_after_leaves_a_run_that_can_go_on(tmp_path: Path, unbroken: Path) -> None:
    run = tmp_path / "run"
    outcome = train(run, stop_after=1e-9)
    assert (outcome.step, outcome.finished, outcome.weights) == (1, False, None)
    assert train(run, resume=True).finished
    assert_same_run(run, unbroken)


def test_resume_with_other_settings_names_them(unbroken: Path) -> None:
    with pytest.raises(UsageError, match=r"other settings: tau, optim\.lr"):
        train(unbroken, smoke(lr=2e-3, tau=(0.1, 0.2)), resume=True)


def test_resume_with_another_network_names_it(unbroken: Path) -> None:
    config = smoke()
    lit = Lit.build(replace(SMALL, width=64))
    with pytest.raises(UsageError, match=r"other settings: networks\.lit;"):
        fit(LitTask(lit, load_backbone("mini-untrained"), config), clips(), config, unbroken, resume=True)
    with pytest.raises(UsageError, match=r"other settings: networks\.from;"):
        train(unbroken, resume=True, begun_from=["a.safetensors"])


def test_a_batch_that_cannot_be_divided_begins_no_run(tmp_path: Path) -> None:
    from inlay.train.processes import Processes

    three = Processes()
    three.world = 3
    with pytest.raises(ConfigError, match="cannot be divided among 3"):
        train(tmp_path / "run", processes=three)
    assert not (tmp_path / "run").exists()


def test_a_run_that_cannot_draw_its_events_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(MissingError, match=r"tensorboard is not installed; run: pip install .* # the extra train"):
        train(tmp_path / "run", smoke(tensorboard=True))
    assert not (tmp_path / "run").exists()


def test_the_best_weights_and_their_facts_are_of_one_step(unbroken: Path, tmp_path: Path) -> None:
    """A kill may come between a validation that found the best and the next checkpoint."""
    from inlay.weightfile import load_weights

    run = tmp_path / "run"
    train(run, stop_after=0.0001)
    for path in (unbroken / "checkpoints").glob("best*"):
        shutil.copy(path, run / "checkpoints")
    best = json.loads((run / "checkpoints" / "best.json").read_text())
    (run / "checkpoints" / "best.json").write_text(json.dumps({**best, "psnr": 99.0}))
    outcome = train(run, resume=True)
    assert (outcome.best_step, outcome.best_psnr) == (best["step"], 99.0)
    assert load_weights(run / "weights.safetensors").meta["validation_psnr"] == 99.0


def test_a_loss_that_is_no_number_stops_the_run(tmp_path: Path) -> None:
    config = smoke(accumulate=1, log_every=50)
    task = lit_task(config)
    honest, seen = task.loss, []

    def loss(batch: Batch) -> StepLoss:
        seen.append(1)
        found = honest(batch)
        return StepLoss(total=found.total * float("nan"), terms=found.terms) if len(seen) == 4 else found

    task.loss = loss  # type: ignore[method-assign]
    with pytest.raises(TrainError, match=r"not a number at step 4; the checkpoint of step 2 is kept") as caught:
        fit(task, clips(), config, tmp_path, quiet=True)
    assert caught.value.exit_code == 1
    kept = last_tensors(tmp_path)
    assert all(t.isfinite().all() for t in kept.values() if t.is_floating_point())
    assert json.loads((tmp_path / "checkpoints" / "last.json").read_text())["step"] == 2


def test_a_time_budget_anneals_to_the_end(tmp_path: Path) -> None:
    config = smoke(steps=100_000, max_seconds=1.5, validate_every=0, warmup=0, checkpoint_every=1000)
    outcome = train(tmp_path / "run", config)
    assert outcome.finished
    assert 0 < outcome.step < 100_000
    rates = [line["rate"] for line in log_of(tmp_path / "run") if line["kind"] == "train"]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.6 * rates[0]


def one_step(config: TrainConfig, module: nn.Module, part: slice) -> tuple[float, list[torch.Tensor]]:
    """The mean loss and the gradients of the first batch, cut into parts as the loop does."""
    task = lit_task(config)
    task.module.load_state_dict(module.state_dict())
    source = clips()
    draws = Sampler(source.entries, config.clips, seed=config.seed).step(0, config.batch)[part]
    batch = Batch(pixels=torch.stack([source.cut(d) for d in draws]), draws=tuple(draws))
    total = 0.0
    for piece in batch.parts(config.accumulate):
        found = task.loss(task.inputs(piece))
        (found.total / config.accumulate).backward()
        total += found.total.item() / config.accumulate
    return total, [p.grad for p in task.module.parameters() if p.grad is not None]


def test_accumulated_parts_equal_the_whole_batch() -> None:
    module = Lit.build(SMALL)
    nn.init.normal_(module.out_proj.weight, std=0.1)  # type: ignore[arg-type, union-attr]
    whole, gradients = one_step(smoke(batch=4, accumulate=1), module, slice(None))
    parts, others = one_step(smoke(batch=4, accumulate=4), module, slice(None))
    assert parts == pytest.approx(whole, abs=1e-6)
    for a, b in zip(gradients, others, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)


JOINED = """
import sys
from pathlib import Path
from tests.flow.test_train_run import joined_config, train
train(Path(sys.argv[1]), joined_config())
"""


def joined_config() -> TrainConfig:
    return smoke(batch=4, accumulate=1, steps=3, optimizer="adamw", validate_every=0, checkpoint_every=3)


@pytest.mark.slow
def test_two_processes_equal_one_with_the_joined_batch(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    train(tmp_path / "one", joined_config())
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", JOINED, str(tmp_path / "two")],
            cwd=ROOT,
            env=environment(**common, RANK=str(rank), LOCAL_RANK=str(rank), OMP_NUM_THREADS="1"),
        )
        for rank in range(2)
    ]
    assert [p.wait(timeout=200) for p in processes] == [0, 0]
    one = [line["loss"] for line in log_of(tmp_path / "one") if line["kind"] == "train"]
    two = [line["loss"] for line in log_of(tmp_path / "two") if line["kind"] == "train"]
    assert len(two) == 3
    assert two == pytest.approx(one, abs=1e-6)
    a, b = last_tensors(tmp_path / "one"), last_tensors(tmp_path / "two")
    for name in a:
        if name.startswith("model."):
            torch.testing.assert_close(a[name], b[name], atol=1e-5, rtol=1e-3)


def free_port() -> int:
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def test_a_batch_that_cannot_be_divided_is_refused() -> None:
    from inlay.train.processes import Processes

    two = Processes()
    two.world, two.rank = 2, 1
    assert two.share(8, 2) == slice(4, 8)
    with pytest.raises(ConfigError, match="cannot be divided among 2 processes x 2"):
        two.share(6, 2)


def test_lit_overfits_one_clip(tmp_path: Path) -> None:
    """A LIT that learns fills better than hold."""
    config = smoke(
        steps=40, batch=1, accumulate=1, tau=(0.3, 0.3), lr=5e-3, ema=0.0, validate_every=20, log_every=20,
        optimizer="adamw", pixel=0.0, flip=False, crop="centre", start="grid", checkpoint_every=40,
    )  # fmt: skip
    source = clips(count=1)
    torch.manual_seed(0)
    task = LitTask(
        Lit.build(SMALL), load_backbone("mini-untrained"), config, validation=ValidationSet.of(source, config)
    )
    fit(task, source, config, tmp_path, quiet=True)
    train_lines = [line for line in log_of(tmp_path) if line["kind"] == "train"]
    assert train_lines[-1]["latent"] < 0.5 * train_lines[0]["latent"]
    assert train_lines[0]["keep_rate"] < 1


def test_backbone_learns_and_its_weights_load(tmp_path: Path) -> None:
    config = smoke(steps=12, lr=3e-3, latent_noise=0.01, latent_size=1e-3, validate_every=6, accumulate=1, ema=0.5)
    torch.manual_seed(0)
    task = BackboneTask(Mini(tiny()), config, validation=ValidationSet.of(clips(10, 2), config))
    outcome = fit(task, clips(), config, tmp_path, quiet=True)
    losses = [line["loss"] for line in log_of(tmp_path) if line["kind"] == "train"]
    assert losses[-1] < losses[0]
    assert outcome.weights is not None
    back = load_mini_file(outcome.weights)
    assert back.config == tiny()
    assert len(back.spec.latent_std) == 16
    assert back.spec.latent_mean != (0.0,) * 16


def test_a_backbone_run_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    """Its weights lie channels last in memory, and the optimiser's state must too."""
    config = smoke(optimizer="adamw", latent_noise=0.01, accumulate=1, steps=4)

    def go(run: Path, **options: Any) -> TrainResult:
        torch.manual_seed(0)
        task = BackboneTask(Mini(tiny()), config, validation=ValidationSet.of(clips(10, 1), config))
        return fit(task, clips(), config, run, quiet=True, **options)

    go(tmp_path / "whole")
    assert not go(tmp_path / "broken", stop_after=1e-9).finished
    assert go(tmp_path / "broken", resume=True).finished
    assert_same_run(tmp_path / "broken", tmp_path / "whole")


def together(**options: Any) -> TogetherTask:
    config = smoke(
        **{"accumulate": 1, "masked": 0.5, "tau": (0.4, 4.0), "latent": 0.0, "latent_noise": 0.01, **options}
    )
    torch.manual_seed(0)
    validation = ValidationSet.of(clips(10, 2), config)
    return TogetherTask(Mini(tiny()), Lit.build(SMALL), config, validation=validation)


def test_a_backbone_and_its_lit_learn_together(tmp_path: Path) -> None:
    """Both change, both load again, and they know each other."""
    task = together(steps=16, lr=3e-3, validate_every=8, ema=0.5)
    before = {name: p.clone() for name, p in task.module.named_parameters()}
    outcome = fit(task, clips(), task.config, tmp_path, quiet=True)
    lines = log_of(tmp_path)
    losses = [line["loss"] for line in lines if line["kind"] == "train"]
    assert sum(losses[-3:]) < sum(losses[:3])
    assert all(0 < line["keep_rate"] <= 1 for line in lines)
    changed = {name.split(".")[0] for name, p in task.module.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {"backbone", "lit"}
    assert outcome.weights is not None
    back, lit = load_mini_file(outcome.weights), load_lit(outcome.weights.with_name(LIT_FILE))
    assert lit.backbone_hash == back.spec.weight_hash


def test_a_run_of_both_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    def go(run: Path, **options: Any) -> TrainResult:
        task = together(steps=4, optimizer="adamw")
        return fit(task, clips(), task.config, run, quiet=True, **options)

    go(tmp_path / "whole")
    assert not go(tmp_path / "broken", stop_after=1e-9).finished
    assert go(tmp_path / "broken", resume=True).finished
    assert_same_run(tmp_path / "broken", tmp_path / "whole")


def test_larger_latents_do_not_escape_the_mask() -> None:
    """tau is in mean changes: a backbone cannot raise its keep rate by scaling what it writes."""
    task = together()
    z = torch.randn(2, 16, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    tau = torch.tensor([1.0, 1.1])
    rates = [masks(s * z, tau * task.mean_change(s * z), criterion="latent-l1", reference="last-kept") for s in (1, 8)]
    assert torch.equal(*rates)
    assert 0.2 < rates[0][:, 1:].float().mean() < 0.8


def test_both_are_judged_at_one_keep_rate() -> None:
    task = together()
    latents = [torch.randn(1, 16, 5, 8, 8, generator=torch.Generator().manual_seed(i)) * (i + 1) for i in range(3)]
    tau = task.tau_for(latents, 0.35)
    kept = torch.cat([masks(z, tau, criterion="latent-l1", reference="last-kept") for z in latents]).float().mean()
    assert kept.item() == pytest.approx(0.35, abs=0.01)


def test_learning_together_needs_masked_clips() -> None:
    with pytest.raises(ConfigError, match="masked is 0"):
        TogetherTask(Mini(tiny()), Lit.build(SMALL), smoke())
    with pytest.raises(ConfigError, match="share of the clips"):
        smoke(masked=1.5)


def test_what_a_backbone_cannot_learn_from_is_refused() -> None:
    with pytest.raises(ConfigError, match="learns from pixels"):
        BackboneTask(Mini(tiny()), smoke(pixel=0.0, latent=1.0))
    with pytest.raises(ConfigError, match="two slots or more; 1 frames are one"):
        TogetherTask(Mini(tiny()), Lit.build(SMALL), smoke(masked=0.5, frames=1))


def test_masks_that_cannot_be_made_are_refused_before_a_run_begins() -> None:
    with pytest.raises(UsageError, match="unknown criterion 'latent-l7'"):
        lit_task(smoke(criterion="latent-l7"))
    with pytest.raises(UsageError, match="unknown reference"):
        lit_task(smoke(reference="first"))
    with pytest.raises(ConfigError, match="pixel-l1"):
        TogetherTask(Mini(tiny()), Lit.build(SMALL), smoke(masked=0.5, criterion="pixel-l1"))


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_recorded_step_is_the_step(tmp_path: Path, optimizer: str) -> None:
    """Played back, with the rate changing from step to step: the same losses as step by step."""
    losses = {}
    for record in (False, True):
        task = together(steps=24, lr=1e-3, optimizer=optimizer, ema=0.9, log_every=1, record=record, warmup=6, batch=4)
        task.module.cuda()
        task.device = torch.device("cuda")
        task.validation = None
        fit(task, clips(), task.config, tmp_path / str(record), quiet=True)
        losses[record] = [line["loss"] for line in log_of(tmp_path / str(record)) if line["kind"] == "train"]
    assert losses[True] == pytest.approx(losses[False], rel=2e-3)
    assert len(set(losses[True])) == 24


def test_each_clip_is_masked_by_its_own_tau(tiny_mini: Any) -> None:
    from inlay.masking import MaskConfig, keep_mask

    z = tiny_mini.encode(torch.stack([clips().cut(d) for d in ValidationSet.of(clips(), smoke()).draws]))
    tau_B = torch.tensor([0.01, 0.05])
    keep = masks(z, tau_B, criterion="latent-l1", reference="last-kept")
    for i in range(2):
        want = keep_mask(z[i : i + 1], MaskConfig(tau=float(tau_B[i])))
        assert torch.equal(keep[i : i + 1], want)


def test_tau_is_drawn_log_uniformly() -> None:
    draws = [d for s in range(200) for d in Sampler(clips().entries, smoke().clips).step(s, 2)]
    tau = draw_tau(draws, (0.1, 0.9))
    assert 0.1 <= tau.min() < 0.11
    assert 0.8 < tau.max() <= 0.9
    assert tau.log().mean().exp().item() == pytest.approx(0.3, rel=0.1)
    assert draw_tau(draws, (0.3, 0.3)).unique().tolist() == pytest.approx([0.3])
    assert draw_tau(draws, (0.0, 0.4)).max() <= 0.4


def test_latents_are_kept_on_disk(tmp_path: Path, tiny_mini: Any) -> None:
    source = clips()
    draws = ValidationSet.of(source, smoke()).draws
    batch = Batch(pixels=torch.stack([source.cut(d) for d in draws]), draws=draws)
    cache = LatentCache(tmp_path, weight_hash=tiny_mini.spec.weight_hash, entries=source.entries)
    first = cache.latents(batch, tiny_mini.encode)
    second = cache.latents(batch, lambda x: pytest.fail("encoded again"))
    assert torch.equal(first, second)
    assert (cache.hits, cache.misses) == (2, 2)
    cache.path_of(draws[0]).write_bytes(b"broken")
    assert torch.equal(cache.latents(batch, tiny_mini.encode), first)
    other = LatentCache(tmp_path, weight_hash="another", entries=source.entries)
    assert other.path_of(draws[0]) != cache.path_of(draws[0])


def test_psnr_is_what_the_metric_says() -> None:
    from inlay.measure import compare
    from inlay.train.validate import psnr, to_uint8
    from inlay.video.frames import Video

    x = ResidentClips([moving_square(5, 32, 32).frames]).cut(ValidationSet.of(clips(), smoke()).draws[0])[None]
    y = (x + 0.1 * torch.randn_like(x)).clamp(-1, 1)
    report = compare(Video(frames=to_uint8(x[0])), Video(frames=to_uint8(y[0])), metrics=("psnr",))
    assert psnr(x, y) == pytest.approx(report.scores["psnr"].value, abs=1e-4)
    assert psnr(x, x) == 100.0


def test_bf16_and_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    config = smoke(steps=1, precision="bf16", tensorboard=True, validate_every=0)
    assert train(tmp_path, config).finished
    assert list((tmp_path / "tensorboard").iterdir())


def test_clips_a_backbone_cannot_fold_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"1 \+ 4k frames; 6 is none of these, 9 would be"):
        lit_task(smoke(frames=6))


def test_the_perceptual_term_teaches(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INLAY_WEIGHTS", str(shared / "weights"))
    config = smoke(perceptual=0.5, perceptual_frames=2)
    torch.manual_seed(0)
    task = BackboneTask(Mini(tiny()), config)
    source = clips()
    draws = tuple(Sampler(source.entries, config.clips).step(0, 2))
    found = task.loss(task.inputs(Batch(pixels=torch.stack([source.cut(d) for d in draws]), draws=draws)))
    pixel, perceptual = found.terms["pixel"].item(), found.terms["perceptual"].item()
    assert perceptual > 0
    assert found.total.item() == pytest.approx(pixel + 0.5 * perceptual, rel=1e-5)
    found.total.backward()
    assert all(p.grad is not None for p in task.module.decoder.parameters())
