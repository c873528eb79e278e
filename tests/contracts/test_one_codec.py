# SPDX-License-Identifier: Apache-2.0
"""One video with one set of settings is one file: the same bytes from every way there is to make it.

`inlay encode`, `Tokenizer.encode(...).save`, an encoder fed with odd pieces, the page's download, a member of a shard.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import lru_cache
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
import torch
import typer

from inlay.backbones import WEIGHTS, Mini, load_backbone, load_mini
from inlay.cli.main import main
from inlay.codec import EncodeConfig, Encoder, VideoEncoder, encode_file, training_cache
from inlay.container import TokenWriter, part_of
from inlay.container.tokens import Tokens
from inlay.container.writer import to_bytes
from inlay.masking import Budget, Profile
from inlay.scale import job
from inlay.scale.worker import Worker
from inlay.tokenizer import Tokenizer
from inlay.video import read_video, synthetic, write_video
from inlay.video.frames import Video
from inlay.web.limits import Limits
from inlay.web.session import Session
from inlay.weightfile import save_weights
from tests.conftest import moving_square
from tests.units.media import make

TAU = 0.3  # of the untrained backbone: a third of the cells of these clips
PLAIN = EncodeConfig()
CLIPS = ("cut.mp4", "odd.mp4", "uneven.mp4")


@dataclass(frozen=True, kw_only=True)
class Case:
    """Settings, as every way is told of them."""

    name: str
    budget: Budget
    config: EncodeConfig = PLAIN
    size: str = "keep"
    clips: tuple[str, ...] = CLIPS
    model: str = "own"  # a key of `models`
    device: str = "cpu"

    @property
    def flags(self) -> list[str]:
        """For `inlay encode` and `inlay tokenize`."""
        b, c = self.budget, self.config
        words: list[object] = ["--mode", c.mode, "--criterion", c.criterion, "--reference", c.reference]
        words += ["--precision", c.precision, "--chunk", c.chunk_frames, "--key-every", c.key_seconds]
        words += ["--size", self.size, "--cuts" if c.cuts else "--no-cuts", *["--noise"] * c.noise]
        words += [] if c.step is None else ["--step", c.step]
        words += ["--scale", c.scale, "--key-slots", c.key_slots, *["--second-look"] * c.second_look]
        words += [] if c.fill is None else ["--fill", c.fill]
        for kind in ("tau", "keep", "tokens", "bits", "psnr"):
            words += [] if getattr(b, kind) is None else [f"--{kind}", getattr(b, kind)]
        words += ["--exact"] * b.exact + ([] if b.bucket_seconds is None else ["--bucket", b.bucket_seconds])
        return [str(word) for word in words]

    @property
    def page(self) -> bool:
        """Whether the page offers it: it has two sliders, and all else is as it is by default."""
        plain = self.config == PLAIN and self.size == "keep"
        by_tau = self.budget.kind == "tau" and self.budget.tau is not None
        return plain and (by_tau or (self.budget.exact and self.budget.keep is not None))


DEFAULT = Case(name="default", budget=Budget())
BUDGETS = [
    Case(name="tau", budget=Budget(tau=TAU)),
    Case(name="tau-zero", budget=Budget(tau=0.0)),
    Case(name="keep", budget=Budget(keep=0.41)),
    Case(name="keep-exact", budget=Budget(keep=0.41, exact=True)),
    Case(name="tokens", budget=Budget(tokens=121)),
    Case(name="bits", budget=Budget(bits=0.9), clips=CLIPS[:1]),
    Case(name="psnr", budget=Budget(psnr=21), clips=CLIPS[:2], model="blocks"),
    Case(
        name="psnr-linear", budget=Budget(psnr=21), config=EncodeConfig(fill="linear"), clips=CLIPS[:2], model="blocks"
    ),
    Case(name="keep-bucket", budget=Budget(keep=0.3, bucket_seconds=1)),
    Case(name="bits-bucket", budget=Budget(bits=0.9, bucket_seconds=1)),
    Case(name="keep-untold", budget=Budget(keep=0.45), clips=CLIPS[:1], model="untold"),
    Case(name="keep-bucket-untold", budget=Budget(keep=0.3, bucket_seconds=1), clips=CLIPS[:1], model="untold"),
]
MODES = [
    Case(name=f"{mode}-{budget.kind}", budget=budget, config=EncodeConfig(mode=mode))
    for mode in ("auto", "stateful", "dual-cache", "clips")
    for budget in (Budget(), Budget(keep=0.5, exact=True))
]
PRECISIONS = [
    Case(name=f"{precision}-{budget.kind}", budget=budget, config=EncodeConfig(precision=precision), clips=CLIPS[:2])
    for precision in ("fp32", "fp16", "bf16", "q8", "q8-quick")
    for budget in (Budget(tau=TAU), Budget(bits=3.0))
]
STEPS = [
    Case(name="step-default", budget=Budget(tau=TAU), model="stepped"),
    Case(name="step-default-keep", budget=Budget(keep=0.41, exact=True), model="stepped"),
    Case(name="step-named", budget=Budget(), config=EncodeConfig(step="fine"), model="stepped"),
    Case(name="step-number", budget=Budget(tau=TAU), config=EncodeConfig(step=17.5), model="stepped"),
    Case(name="step-deviation", budget=Budget(tau=TAU), config=EncodeConfig(step="deviation"), model="stepped"),
    Case(name="step-cache", budget=Budget(tau=0.0), config=training_cache(), model="stepped"),
    Case(name="step-no-q8", budget=Budget(tau=TAU), config=EncodeConfig(precision="fp16"), model="stepped"),
    Case(name="step-tokens", budget=Budget(tokens=121), config=EncodeConfig(step=3), clips=CLIPS[:2], model="stepped"),
    Case(name="step-bits", budget=Budget(bits=0.9), config=EncodeConfig(step=3), clips=CLIPS[:1], model="stepped"),
    Case(name="step-bucket", budget=Budget(bits=0.9, bucket_seconds=1), config=EncodeConfig(step=3), model="stepped"),
]
DIALS = [  # tau and step at once, or one of them fixed
    Case(name="dial-bits", budget=Budget(bits=0.9), clips=CLIPS[:2], model="dialled"),
    Case(name="dial-bits-bucket", budget=Budget(bits=0.9, bucket_seconds=1), model="dialled"),
    Case(name="dial-bits-tau", budget=Budget(bits=0.9, tau=TAU), clips=CLIPS[:2], model="dialled"),
    Case(name="dial-bits-step", budget=Budget(bits=0.9), config=EncodeConfig(step=5), clips=CLIPS[:2], model="dialled"),
    Case(name="dial-keep", budget=Budget(keep=0.41), clips=CLIPS[:1], model="dialled"),
    Case(name="dial-l2", budget=Budget(bits=0.9), config=EncodeConfig(criterion="latent-l2"), clips=CLIPS[:1],
         model="dialled"),
]  # fmt: skip
CRITERIA = [
    Case(name=f"{criterion}-{kind}", budget=budget, config=EncodeConfig(criterion=criterion), clips=CLIPS[:2])
    for criterion, tau in (("latent-l1", TAU), ("latent-l2", 0.4), ("latent-cosine", 0.2), ("pixel-l1", 0.05))
    for kind, budget in (("tau", Budget(tau=tau)), ("tokens", Budget(tokens=200)))
]
OTHERS = [
    Case(name="reference", budget=Budget(tau=TAU), config=EncodeConfig(reference="previous")),
    Case(name="no-cuts", budget=Budget(tau=TAU), config=EncodeConfig(cuts=False)),
    Case(name="noise", budget=Budget(tau=TAU), config=EncodeConfig(noise=True)),
    Case(name="chunks", budget=Budget(tau=TAU), config=EncodeConfig(chunk_frames=9, key_seconds=1)),
    Case(name="no-keys", budget=Budget(keep=0.4), config=EncodeConfig(key_seconds=0, cuts=False)),
    Case(name="fill", budget=Budget(tau=TAU), config=EncodeConfig(fill="linear"), clips=CLIPS[:1]),
    Case(name="size", budget=Budget(tau=TAU), size="24x40", clips=CLIPS[:2]),
]
SCALED = [
    Case(name="scale", budget=Budget(tau=TAU), config=EncodeConfig(scale="1/2")),
    Case(name="scale-exact", budget=Budget(keep=0.5, exact=True), config=EncodeConfig(scale="3/4"), clips=CLIPS[:2]),
    Case(name="scale-pixels", budget=Budget(tau=0.05), config=EncodeConfig(scale="1/2", criterion="pixel-l1")),
    Case(name="scale-bucket", budget=Budget(keep=0.4, bucket_seconds=1), config=EncodeConfig(scale="3/4")),
    Case(name="scale-found", budget=Budget(bits=0.35), clips=CLIPS[:2], model="dialled"),
    Case(name="scale-given", budget=Budget(bits=0.6), config=EncodeConfig(scale="3/4"), clips=CLIPS[:1],
         model="dialled"),
]  # fmt: skip
THIN = EncodeConfig(key_slots="thin")
THINNED = [
    Case(name="thin", budget=Budget(tau=TAU), config=THIN),
    Case(name="thin-exact", budget=Budget(keep=0.2, exact=True), config=THIN, clips=CLIPS[:2]),
    Case(name="thin-clips", budget=Budget(tokens=60), config=replace(THIN, mode="clips"), clips=CLIPS[1:]),
    Case(name="thin-cache-noise", budget=Budget(tau=TAU), config=replace(THIN, mode="dual-cache", noise=True)),
    Case(name="thin-bucket", budget=Budget(keep=0.3, bucket_seconds=1), config=THIN),
    Case(name="thin-pixels", budget=Budget(tau=0.05), config=replace(THIN, criterion="pixel-l1", scale="3/4")),
    Case(name="thin-found", budget=Budget(keep=0.3, exact=True), model="dialled"),
    Case(
        name="thin-not",
        budget=Budget(keep=0.41),
        config=EncodeConfig(key_slots="whole"),
        clips=CLIPS[:1],
        model="dialled",
    ),
    Case(name="thin-dial", budget=Budget(bits=0.4), config=THIN, clips=CLIPS[:1], model="dialled"),
]
LOOKED = [
    Case(name="looked", budget=Budget(tau=TAU), config=EncodeConfig(second_look=True)),
    Case(name="looked-keep", budget=Budget(keep=0.4), config=EncodeConfig(second_look=True), clips=CLIPS[:2]),
    Case(name="looked-cache-linear", budget=Budget(tau=TAU),
         config=EncodeConfig(second_look=True, mode="dual-cache", fill="linear")),
    Case(name="looked-thin", budget=Budget(tokens=60), config=replace(THIN, mode="clips", second_look=True),
         clips=CLIPS[1:]),
    Case(name="looked-bits", budget=Budget(bits=3.0), config=EncodeConfig(second_look=True), clips=CLIPS[:1]),
]  # fmt: skip
CROSSINGS = [
    Case(name="clips-pixels-fp16-bits", budget=Budget(bits=3.0), clips=CLIPS[:2],
         config=EncodeConfig(mode="clips", criterion="pixel-l1", precision="fp16")),
    Case(name="cache-l2-bf16-exact", budget=Budget(keep=0.5, exact=True), clips=CLIPS[:2],
         config=EncodeConfig(mode="dual-cache", criterion="latent-l2", precision="bf16")),
    Case(name="state-cosine-fp32-tokens", budget=Budget(tokens=260), clips=CLIPS[:2],
         config=EncodeConfig(mode="stateful", criterion="latent-cosine", precision="fp32")),
    Case(name="cache-pixels-previous-noise", budget=Budget(tau=0.05), clips=CLIPS[:2],
         config=EncodeConfig(mode="dual-cache", criterion="pixel-l1", reference="previous", noise=True)),
    Case(name="clips-psnr", budget=Budget(psnr=21), config=EncodeConfig(mode="clips", fill="linear"), clips=CLIPS[1:2],
         model="blocks"),
]  # fmt: skip
CASES = [
    DEFAULT,
    *BUDGETS,
    *MODES,
    *PRECISIONS,
    *STEPS,
    *DIALS,
    *CRITERIA,
    *OTHERS,
    *SCALED,
    *THINNED,
    *LOOKED,
    *CROSSINGS,
]


@pytest.fixture(scope="module", autouse=True)
def quick_commands() -> Iterator[None]:
    """The tree of commands is built once, and not for every call of one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", lru_cache(typer.main.get_command))
        yield


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hard cut within a chunk, a size that is no multiple of anything, times that are on no grid."""
    folder = tmp_path_factory.mktemp("clips")
    first, second = moving_square(40, 32, 48, speed=1, seed=1), moving_square(32, 32, 48, speed=1, seed=2)
    write_video(Video(frames=torch.cat([first.frames, 255 - second.frames])), folder / "cut.mp4")
    write_video(moving_square(37, 41, 51), folder / "odd.mp4")
    stamps = np.cumsum([0, *(40, 37, 90, 33, 61) * 7]).tolist()
    make(folder / "uneven.mp4", moving_square(36, 32, 32).frames.numpy(), fps=Fraction(25), stamps=stamps,
         clock=Fraction(1, 1000))  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The untrained backbone as a folder of own weights, with a profile that tells its usual tau; the same with gains
    and a usual step; with pairs of tau and step beside these; without a profile, so that nothing tells; and one that
    gives back what it was given."""
    folder, stepped, dialled = (tmp_path_factory.mktemp(name) for name in ("model", "stepped", "dialled"))
    untrained = load_backbone("mini-untrained")
    assert isinstance(untrained, Mini)
    for place in (folder, stepped, dialled):
        save_weights(place / "mini.safetensors", untrained.state_dict(), {"config": asdict(untrained.config)})
    spec = load_mini(folder).spec
    profile = Profile(backbone="mini", weight_hash=spec.weight_hash, tau=TAU)
    profile.save(folder / "mini.profile.json")
    gains = tuple(20.0 + 3 * channel for channel in range(spec.channels))
    profile = replace(profile, gains=gains, step=4.0, cache_step=1.5)
    profile.save(stepped / "mini.profile.json")
    replace(
        profile, thin=True, dial_taus=(0.0, TAU, 2 * TAU), dial_steps=(1.0, 4.0, 16.0), dial_bits=(2.0, 1.0, 0.5),
        dial_psnr=(30.0, 25.0, 20.0),
    ).save(dialled / "mini.profile.json")  # fmt: skip
    return {
        "own": str(folder),
        "stepped": str(stepped),
        "dialled": str(dialled),
        "untold": "mini-untrained",
        "blocks": "tests.contracts.blocks:Blocks",
    }


@pytest.fixture(scope="module")
def load(models: dict[str, str]) -> Callable[..., Tokenizer]:
    return lru_cache(lambda model, device="cpu": Tokenizer.from_pretrained(models[model], device=device))


# --- the ways ---------------------------------------------------------------------------------------------------------


def by_command(case: Case, clip: Path, models: dict[str, str], out: Path) -> bytes:
    words = ["encode", clip, out / "command.inlay", "--backbone", models[case.model], "--device", case.device]
    assert main([*map(str, words), *case.flags, "--quiet", "--force"]) == 0
    return (out / "command.inlay").read_bytes()


def by_library(case: Case, clip: Path, tokenizer: Tokenizer, out: Path) -> bytes:
    return case_tokens(case, clip, tokenizer).save(out / "library.inlay", force=True).read_bytes()


def case_tokens(case: Case, clip: Path, tokenizer: Tokenizer) -> Tokens:
    b, c = case.budget, case.config
    return tokenizer.encode(
        clip, tau=b.tau, keep=b.keep, tokens=b.tokens, bits=b.bits, psnr=b.psnr, exact=b.exact, mode=c.mode,
        criterion=c.criterion, reference=c.reference, precision=c.precision, step=c.step, scale=c.scale,
        key_slots=c.key_slots, second_look=c.second_look, size=case.size, fill=c.fill, chunk_frames=c.chunk_frames,
        key_seconds=c.key_seconds, cuts=c.cuts, noise=c.noise,
    )  # type: ignore[call-overload]  # fmt: skip


def odd_pieces(case: Case, clip: Path) -> Iterator[Video]:
    """The frames of a video, in pieces that fit no chunk."""
    sizes = cycle((1, 7, 2, 13, 40, 3))
    video, begin = read_video(clip, size=case.size), 0
    while begin < len(video):
        end = begin + next(sizes)
        yield video[begin:end]
        begin = end


def by_pieces(case: Case, clip: Path, tokenizer: Tokenizer, out: Path) -> bytes:
    if case.budget.causal:
        encoder = Encoder(tokenizer, case.config, budget=case.budget)
        chunks = [tokens for piece in odd_pieces(case, clip) for tokens in encoder.push(piece)] + encoder.flush()
    else:
        whole = VideoEncoder(tokenizer, case.config, budget=case.budget, original=lambda: odd_pieces(case, clip))
        chunks = list(whole.encode(odd_pieces(case, clip)))
    path = out / "pieces.inlay"
    with TokenWriter(path, info=chunks[0].info, recipe=chunks[0].recipe, force=True) as writer:
        for tokens in chunks:
            writer.append(tokens)
    return path.read_bytes()


def by_page(case: Case, clip: Path, tokenizer: Tokenizer, out: Path) -> bytes:
    def quiet(share: float, what: str) -> None: ...

    (out / "page").mkdir(exist_ok=True)
    session = Session(folder=out / "page")
    try:
        session.load_file(tokenizer, clip, Limits(), quiet)
        if case.budget.tau is not None:
            session.choose_tau(case.budget.tau)
        else:
            session.choose_keep(case.budget.keep or 0.0)
        return session.reconstruct(tokenizer, "hold", quiet)[0].token_file.read_bytes()
    finally:
        session.close()


def by_job(case: Case, clips: Path, models: dict[str, str], out: Path, *more: str) -> dict[str, bytes]:
    """The members of a shard, by the names of their sources."""
    listed = out / "clips.txt"
    listed.write_text("".join(f"{clips / name}\n" for name in case.clips))
    words = ["tokenize", listed, out / "job", "--backbone", models[case.model], "--device", case.device]
    assert main([*map(str, words), *case.flags, *more, "--quiet"]) == 0
    members = {}
    for shard in sorted((out / "job/shards").glob("*.tar")):
        with tarfile.open(shard) as tar:
            for name in (n for n in tar.getnames() if n.endswith(".inlay")):
                member = tar.extractfile(name)
                assert member is not None
                members[case.clips[int(name.removesuffix(".inlay"))]] = member.read()
    return members


@contextmanager
def workers_in_this_process() -> Iterator[None]:
    """As the local engine runs them, without the seconds that processes take to start."""

    def run(task, shards, run, progress):  # type: ignore[no-untyped-def]
        worker = Worker(task)
        for shard in shards:
            worker.run(shard, progress)

    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(job.ENGINES, "local", lambda *settings: nullcontext(run))
        yield
    torch.set_num_threads(threads)


# --- the contract -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_way_gives_the_same_bytes(
    case: Case, clips: Path, models: dict[str, str], load: Callable[..., Tokenizer], tmp_path: Path
) -> None:
    tokenizer = load(case.model, case.device)
    members = {}
    if case.budget.psnr is None:  # a data set is not decoded
        with workers_in_this_process():
            members = by_job(case, clips, models, tmp_path, "--workers", "2")
    for name in case.clips:
        clip = clips / name
        wanted = by_command(case, clip, models, tmp_path)
        found = {"pieces": by_pieces(case, clip, tokenizer, tmp_path)}
        if case.budget.bucket_seconds is None:
            found["library"] = by_library(case, clip, tokenizer, tmp_path)
        if members:
            found["job"] = members[name]
        if case.page:
            found["page"] = by_page(case, clip, tokenizer, tmp_path)
        assert {way for way, data in found.items() if data != wanted} == set(), f"{name} differs from `inlay encode`"


@pytest.mark.gpu
@pytest.mark.skipif(find_spec("av") is None, reason="PyAV is not installed: no clips can be written")
@pytest.mark.parametrize("precision", ["fp32", "q8"])
@pytest.mark.parametrize("budget", [Budget(tau=TAU), Budget(keep=0.41, exact=True)], ids=["tau", "keep"])
def test_every_way_gives_the_same_bytes_on_a_gpu(
    budget: Budget,
    precision: str,
    clips: Path,
    models: dict[str, str],
    load: Callable[..., Tokenizer],
    tmp_path: Path,
) -> None:
    case = Case(name="gpu", budget=budget, config=EncodeConfig(precision=precision), device="cuda", clips=CLIPS[:2])
    test_every_way_gives_the_same_bytes(case, clips, models, load, tmp_path)


def test_the_cases_are_not_all_alike(clips: Path, load: Callable[..., Tokenizer]) -> None:
    """If every setting were ignored, the contract would hold as well."""
    clip = clips / "cut.mp4"
    cases = [
        DEFAULT,
        *BUDGETS[2:6],
        *MODES[4:],
        *PRECISIONS[:5:2],
        PRECISIONS[8],
        *STEPS[:4],
        *STEPS[7:9],
        DIALS[0],
        *DIALS[2:4],
        DIALS[5],
        *CRITERIA[2:],
        *OTHERS[:6],
    ]
    made: dict[bytes, str] = {}
    for case in cases:
        if case.name == "keep-exact":  # where no two cells tie at the threshold, the largest share is the exact one
            continue
        data = to_bytes(case_tokens(case, clip, load(case.model)))
        assert data not in made, f"{case.name} is {made[data]}"
        made[data] = case.name


def test_processes_of_the_local_engine_do_as_one(clips: Path, models: dict[str, str], tmp_path: Path) -> None:
    case = Case(name="fp32", budget=Budget(), config=EncodeConfig(precision="fp32"))
    members = by_job(case, clips, models, tmp_path, "--workers", "2", "--shard-videos", "1")
    for name in CLIPS:
        assert members[name] == by_command(case, clips / name, models, tmp_path), name


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # Ray's own, which are none of ours
def test_the_ray_engine_does_as_the_local_one(clips: Path, models: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("ray")
    case = Case(name="fp32", budget=Budget(keep=0.5, exact=True), config=EncodeConfig(precision="fp32"))
    members = by_job(case, clips, models, tmp_path, "--engine", "ray", "--workers", "1")
    for name in CLIPS:
        assert members[name] == by_command(case, clips / name, models, tmp_path), name


def test_batches_of_the_library_and_of_the_job_do_as_one(
    clips: Path, models: dict[str, str], load: Callable[..., Tokenizer], tmp_path: Path
) -> None:
    """Lists, and clips of one size that a job encodes together."""
    same = tmp_path / "same"
    same.mkdir()
    for seed in range(3):
        write_video(moving_square(37, 32, 48, seed=seed), same / f"{seed}.mp4")
    case = Case(name="batch", budget=Budget(), clips=("0.mp4", "1.mp4", "2.mp4"))
    with workers_in_this_process():
        members = by_job(case, same, models, tmp_path, "--workers", "1", "--batch", "3")
    listed = load("own").encode([same / name for name in case.clips])
    for name, tokens in zip(case.clips, listed, strict=True):
        wanted = by_command(case, same / name, models, tmp_path)
        assert tokens.save(tmp_path / "list.inlay", force=True).read_bytes() == wanted
        assert members[name] == wanted, f"{name} in a batch"


@pytest.mark.parametrize("precision", ["fp32", "q8"])
def test_a_file_a_video_and_an_array_are_one_source(
    clips: Path, load: Callable[..., Tokenizer], tmp_path: Path, precision: str
) -> None:
    video = read_video(clips / "odd.mp4")
    wanted = to_bytes(load("own").encode(clips / "odd.mp4", precision=precision))  # type: ignore[call-overload]
    for source in (video, video.frames, video.frames.numpy()):
        tokens = load("own").encode(source, precision=precision, fps=video.fps)  # type: ignore[call-overload]
        assert to_bytes(tokens) == wanted


@pytest.mark.parametrize("model", ["own", "stepped"])
def test_resumed_is_as_never_interrupted(
    clips: Path, models: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    case = replace(DEFAULT, config=EncodeConfig(chunk_frames=9, key_seconds=1), model=model)
    wanted = by_command(case, clips / "cut.mp4", models, tmp_path)
    out, append, written = tmp_path / "other.inlay", TokenWriter.append, 0

    def torn(self: TokenWriter, tokens: Tokens) -> None:
        nonlocal written
        written += 1
        append(self, tokens)
        if written == 5:
            raise KeyboardInterrupt

    network = ["--backbone", models[model], "--device", "cpu"]
    words = [str(word) for word in ("encode", clips / "cut.mp4", out, *network, *case.flags, "-q")]
    with monkeypatch.context() as patch:
        patch.setattr(TokenWriter, "append", torn)
        assert main(words) == 130
    part_of(out).write_bytes(part_of(out).read_bytes()[:-50])  # as a kill leaves it, without its index
    assert main([*words, "--resume"]) == 0
    assert out.read_bytes() == wanted


def test_threads_decide_no_bit() -> None:
    """A command has all cores, a worker of a job its share of them."""
    if not (WEIGHTS / "mini.safetensors").is_file():
        pytest.skip("the untrained network is too small for its sums to be shared out, and this copy has no other")
    mini, before = load_backbone("mini"), torch.get_num_threads()
    try:
        for height, width in ((64, 96), (136, 136), (128, 240), (16, 24), (24, 24), (8, 40)):  # few cells, too
            x = torch.rand(1, 3, 5, height, width, generator=torch.Generator().manual_seed(0)) * 2 - 1
            found = []
            for threads in (1, 2, 3, 4):
                torch.set_num_threads(threads)
                with torch.inference_mode():
                    found.append(mini.encode(x))
            assert all(torch.equal(found[0], z) for z in found[1:]), f"{width}x{height}"
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    "size", [(64, 96), *(pytest.param(s, marks=pytest.mark.slow) for s in ((90, 122), (136, 136), (144, 256)))], ids=str
)
def test_threads_decide_no_byte(size: tuple[int, int], tmp_path: Path) -> None:
    """Of a whole token file; a PSNR is reached by decoding, so that LIT's sums decide as well."""
    if not (WEIGHTS / "mini.safetensors").is_file():
        pytest.skip("the untrained network is too small for its sums to be shared out, and this copy has no other")
    video, before = synthetic.demo_clip(21, *size), torch.get_num_threads()
    tokenizer = Tokenizer.from_pretrained("mini", fill="lit", device="cpu")
    budgets = [Budget(), Budget(keep=0.3), Budget(bits=0.1, bucket_seconds=0.5)]
    budgets += [Budget(psnr=23)] if size == (64, 96) else []
    try:
        for budget in budgets:
            found = []
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                encoder = VideoEncoder(tokenizer, budget=budget, original=lambda: [video])
                encode_file(encoder, [video], tmp_path / "x.inlay", force=True)
                found.append((tmp_path / "x.inlay").read_bytes())
            assert found[0] == found[1] == found[2], budget
    finally:
        torch.set_num_threads(before)
