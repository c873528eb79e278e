# SPDX-License-Identifier: Apache-2.0
"""Long video through Encoder and Decoder: wherever it is cut, whatever the mode, in constant memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from inlay.codec import (
    MODES,
    Decoder,
    EncodeConfig,
    Encoder,
    LatentDecoder,
    WholeVideo,
    keep_curve,
    mode_of,
    paper_stream,
)
from inlay.codec import parts as codec_parts
from inlay.codec.parts import SLOTS_AT_ONCE
from inlay.container import TokenWriter
from inlay.container.tokens import Tokens
from inlay.errors import ConfigError, ShapeError, UsageError
from inlay.fill import Filler, Lit, LitConfig
from inlay.masking import Budget, Profile, latent_l1
from inlay.tokenizer import Tokenizer
from inlay.video.frames import Video
from tests.conftest import moving_square, still

PLAIN = EncodeConfig(key_seconds=0, cuts=False)
TAU = 0.3


def encoded(
    tokenizer: Tokenizer, video: Video, config: EncodeConfig = PLAIN, *, tau: float = TAU, criterion: str = "latent-l1"
) -> Tokens:
    return Tokens.join(list(Encoder(tokenizer, replace(config, criterion=criterion), tau=tau).encode([video])))


def same(a: Tokens, b: Tokens) -> bool:
    return a.mask.equal(b.mask) and a.values.equal(b.values)


@pytest.fixture(scope="module")
def lit_tokenizer(tiny_mini) -> Tokenizer:  # type: ignore[no-untyped-def]
    torch.manual_seed(3)
    lits = {}
    for name, kind in (("lit", "plus"), ("lit-paper", "paper")):
        lit = Lit.build(LitConfig(kind=kind, width=64, heads=2, blocks=1)).eval()
        torch.nn.init.normal_(lit.out_proj.weight, std=0.1)
        lits[name] = lit
    return Tokenizer(
        tiny_mini, filler=Filler(lits), profile=Profile(backbone="mini-untrained", weight_hash="", tau=TAU)
    )


# --- cutting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_pieces_of_any_size_give_the_same_tokens(tiny_tokenizer: Tokenizer, mode: str) -> None:
    video = moving_square(31, 16, 16)
    config = replace(PLAIN, mode=mode, chunk_frames=9)
    whole = encoded(tiny_tokenizer, video, config)
    for at in range(1, 31):
        encoder = Encoder(tiny_tokenizer, config, tau=TAU)
        parts = encoder.push(video[:at]) + encoder.push(video[at:]) + encoder.flush()
        assert same(Tokens.join(parts), whole), at
        assert [p.spans[0] for p in parts] == list(whole.spans)
    encoder = Encoder(tiny_tokenizer, config, tau=TAU)
    ones = [t for i in range(31) for t in encoder.push(video[i : i + 1])] + encoder.flush()
    assert same(Tokens.join(ones), whole)


@pytest.mark.parametrize("criterion", ["latent-l1", "pixel-l1"])
@pytest.mark.parametrize("frames", [1, 2, 33, 34, 66, 71])
def test_carried_state_makes_every_chunk_plan_equal(tiny_tokenizer: Tokenizer, frames: int, criterion: str) -> None:
    video = moving_square(frames, 16, 24)
    tau = TAU if criterion == "latent-l1" else 0.05
    plans = [
        encoded(tiny_tokenizer, video, replace(PLAIN, chunk_frames=n), criterion=criterion, tau=tau)
        for n in (5, 9, 21, 33, 201)
    ]
    assert all(same(plans[0], plan) for plan in plans[1:])
    assert len(plans[0].mask) == tiny_tokenizer.spec.slots(frames)  # one slot 0 for the whole video
    pictures = [tiny_tokenizer.decode(plan, fill="hold").frames for plan in plans]
    assert all(pictures[0].equal(p) for p in pictures[1:])


def test_a_key_interval_does_not_depend_on_the_chunk_plan(tiny_tokenizer: Tokenizer) -> None:
    video = moving_square(120, 16, 24)  # 24 frames a second
    plans = [
        encoded(tiny_tokenizer, video, EncodeConfig(key_seconds=2, cuts=False, chunk_frames=n)) for n in (5, 33, 41)
    ]
    assert all(same(plans[0], plan) for plan in plans[1:])
    starts = [[sum(s.frames for s in p.spans[:i]) for i, s in enumerate(p.spans) if s.key] for p in plans]
    assert starts == [[0, 45, 90]] * 3  # 45 = 1 + 4 * 11, the most that is within 2 seconds of 24 frames


def test_one_clip_is_what_the_tokenizer_makes_of_it(tiny_tokenizer: Tokenizer) -> None:
    video = moving_square(33, 24, 16)
    alone = tiny_tokenizer.encode(video, tau=TAU)
    for mode in MODES:
        assert same(encoded(tiny_tokenizer, video, replace(PLAIN, mode=mode)), alone)
    long = moving_square(80, 24, 16)
    assert same(
        encoded(tiny_tokenizer, long, replace(PLAIN, mode="clips")), tiny_tokenizer.encode(long, tau=TAU, mode="clips")
    )


# --- the caches -------------------------------------------------------------------------------------------------------


def dual_cache(tokenizer: Tokenizer, chunks: list[Tensor], tau: float) -> tuple[list[Tensor], list[Tensor]]:
    """Algorithm 2 (Appendix D) line by line, but for the fill cache, which goes by the mask: masks and LIT inputs."""
    selection = fill = None
    masks, inputs = [], []
    for z in chunks:
        mask = torch.zeros_like(z[:, 0], dtype=torch.bool)
        for t in range(z.shape[2]):
            if t == 0 and selection is None:
                mask[:, t] = True
                selection = fill = torch.zeros_like(z[:, :, 0])
            else:
                mask[:, t] = latent_l1(z[:, :, t], selection) >= tau
            selection = torch.where(mask[:, None, t], z[:, :, t], selection)
        given = z * mask[:, None]
        given[:, :, 0] = torch.where(mask[:, None, 0], given[:, :, 0], fill)
        for t in range(z.shape[2]):
            known = mask[:, None, t] if t else torch.ones_like(mask[:, None, t])
            fill = torch.where(known, given[:, :, t], fill)
        masks.append(mask)
        inputs.append(given)
    return masks, inputs


def test_dual_cache_is_appendix_d(lit_tokenizer: Tokenizer) -> None:
    video = moving_square(99, 64, 64, speed=1)
    chunks = [lit_tokenizer.encode_pixels(video[i : i + 33].pixels()) for i in (0, 33, 66)]
    masks, inputs = dual_cache(lit_tokenizer, chunks, TAU)
    tokens = encoded(lit_tokenizer, video, paper_stream())
    assert tokens.mask.equal(torch.cat(masks, 1)[0])
    assert [s.key for s in tokens.spans] == [True, False, False]
    assert not tokens.mask[9].all(), "the first slot of the second chunk is not kept whole"
    decoder = LatentDecoder(lit_tokenizer.filler, fill="lit-paper")
    for chunk, mask, given in zip(tokens.chunks(), masks, inputs, strict=True):
        seen = mask.clone()
        seen[:, 0] = True
        with torch.inference_mode():
            want = lit_tokenizer.filler.lits["lit-paper"](given, seen, TAU)
        assert decoder.push(chunk).equal(want)


@pytest.mark.parametrize("mode", ["dual-cache", "stateful"])
def test_a_true_zero_latent_is_not_a_hole(tiny_tokenizer: Tokenizer, mode: str) -> None:
    tokens = encoded(tiny_tokenizer, moving_square(65, 16, 16), replace(PLAIN, mode=mode), tau=0.0)
    first, second = tokens.chunks()
    first = replace(first, values=torch.zeros_like(first.values))  # kept, and zero
    nothing = torch.zeros_like(second.mask)
    second = replace(second, mask=nothing, values=second.values[:0])
    decoder = LatentDecoder(tiny_tokenizer.filler, fill="hold")
    decoder.push(replace(first, values=first.values + 7, spans=first.spans))
    decoder.reset()
    decoder.push(first)
    assert not decoder.push(second).any(), "zeros were kept last, so zeros are held"


@pytest.mark.parametrize("mode", ["dual-cache", "stateful"])
def test_a_still_video_keeps_its_first_slot_only(tiny_tokenizer: Tokenizer, mode: str) -> None:
    tokens = encoded(tiny_tokenizer, still(200, 16, 24), replace(PLAIN, mode=mode), tau=1e-4)
    curve = keep_curve(tokens.chunks())
    assert curve.keep_rates[0] == 1
    assert not any(curve.keep_rates[1:])
    spiky = keep_curve(encoded(tiny_tokenizer, still(200, 16, 24), replace(PLAIN, mode="clips"), tau=1e-4).chunks())
    assert sum(rate == 1 for rate in spiky.keep_rates) == 7
    assert spiky.seconds[9] == pytest.approx(33 / 24)


@pytest.mark.parametrize("fill", ["hold", "linear", "lit", "lit-paper"])
@pytest.mark.parametrize("mode", MODES)
def test_every_fill_decodes_every_mode(lit_tokenizer: Tokenizer, mode: str, fill: str) -> None:
    video = moving_square(70, 17, 23)
    tokens = encoded(lit_tokenizer, video, replace(PLAIN, mode=mode))
    dense = lit_tokenizer.fill(tokens, fill=fill)[0].permute(1, 2, 3, 0)
    assert dense.isfinite().all()
    if fill != "lit-paper":  # which predicts every cell anew
        assert dense[tokens.mask].equal(tokens.values)
    assert lit_tokenizer.decode(tokens, fill=fill).frames.shape == video.frames.shape


def test_all_cells_kept_is_the_backbones_own_reconstruction(tiny_mini, tiny_tokenizer: Tokenizer) -> None:  # type: ignore[no-untyped-def]
    video = moving_square(97, 16, 24)
    with torch.inference_mode():
        x = tiny_mini.decode(tiny_mini.encode(video.pixels()))[0]
    back = tiny_tokenizer.decode(encoded(tiny_tokenizer, video, tau=0.0))
    assert back.frames.equal(Video.from_pixels(x).frames)


def test_a_long_chunk_is_decoded_in_pieces_to_the_same_bits(
    tiny_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = moving_square(4 * SLOTS_AT_ONCE + 9, 32, 32)
    config = EncodeConfig(chunk_frames=len(clip), key_seconds=0, cuts=False)
    (tokens,) = Encoder(tiny_tokenizer, config, tau=0.1).encode([clip])
    most, decode = [], tiny_tokenizer.backbone.decode_next
    monkeypatch.setattr(
        tiny_tokenizer.backbone, "decode_next", lambda z, state: (most.append(z.shape[2]), decode(z, state))[1]
    )
    pieces = Decoder(tiny_tokenizer, fill="hold").push(tokens)
    assert len(tokens.mask) > SLOTS_AT_ONCE == max(most) and len(most) == 2
    monkeypatch.setattr(codec_parts, "SLOTS_AT_ONCE", len(tokens.mask))
    assert torch.equal(pieces.frames, Decoder(tiny_tokenizer, fill="hold").push(tokens).frames)


def test_a_chunk_without_its_past_is_refused(tiny_tokenizer: Tokenizer) -> None:
    _, second = encoded(tiny_tokenizer, moving_square(40, 16, 16)).chunks()
    with pytest.raises(UsageError, match="begin at a key chunk"):
        Decoder(tiny_tokenizer).push(second)


def test_reset_forgets(tiny_tokenizer: Tokenizer) -> None:
    a, b = moving_square(50, 16, 16), moving_square(50, 16, 16, seed=1)
    encoder = Encoder(tiny_tokenizer, PLAIN, tau=TAU)
    encoder.push(a)
    encoder.reset()
    after = Tokens.join(encoder.push(b) + encoder.flush())
    assert same(after, encoded(tiny_tokenizer, b))
    assert same(Tokens.join(encoder.push(a) + encoder.flush()), encoded(tiny_tokenizer, a))  # flush ends a video too


def test_latency_is_what_it_says(tiny_tokenizer: Tokenizer) -> None:
    for chunk in (5, 33):
        encoder = Encoder(tiny_tokenizer, replace(PLAIN, chunk_frames=chunk), tau=TAU)
        video = moving_square(80, 16, 16)
        out = 0
        for i in range(80):
            out += sum(t.info.frames for t in encoder.push(video[i : i + 1]))
            assert i + 1 - out <= encoder.latency_frames
    assert Decoder(tiny_tokenizer).latency_frames == 0


def test_times_travel_through_streams(tiny_tokenizer: Tokenizer) -> None:
    times = torch.rand(70, dtype=torch.float64).cumsum(0)
    video = replace(moving_square(70, 16, 16), seconds=times)
    assert tiny_tokenizer.decode(encoded(tiny_tokenizer, video)).seconds.equal(times)


def test_modes_and_chunks_are_checked(tiny_tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match="34 is none of these, 37 is"):
        Encoder(tiny_tokenizer, EncodeConfig(chunk_frames=34), tau=TAU)
    with pytest.raises(ConfigError, match=r"key_seconds is a time in seconds between key chunks.*got -1"):
        EncodeConfig(key_seconds=-1)
    with pytest.raises(ConfigError, match="whole video"):
        Encoder(tiny_tokenizer, budget=Budget(tokens=5))
    tiny_tokenizer_like = Tokenizer(Stateless(tiny_tokenizer.backbone), profile=tiny_tokenizer.profile)
    with pytest.raises(ConfigError, match="cannot carry state"):
        Encoder(tiny_tokenizer_like, EncodeConfig(mode="stateful"))
    assert Encoder(tiny_tokenizer_like).config.mode == "dual-cache"
    assert mode_of(encoded(tiny_tokenizer, still(5, 16, 16)).recipe) == "stateful"
    encoder = Encoder(tiny_tokenizer, tau=TAU)
    encoder.push(still(3, 16, 16))
    with pytest.raises(ShapeError, match="one size"):
        encoder.push(still(3, 16, 24))


class Stateless:
    """A backbone that says it cannot carry state."""

    def __init__(self, backbone) -> None:  # type: ignore[no-untyped-def]
        self.spec = replace(backbone.spec, stateful=False)
        self.encode, self.decode, self.to = backbone.encode, backbone.decode, backbone.to


# --- scene cuts -------------------------------------------------------------------------------------------------------


def scene(frames: int, seed: int) -> Video:
    """A textured ground with something that moves a little; scenes of different seeds have nothing in common."""
    video = moving_square(frames, 64, 64, speed=1, seed=seed)
    return video if seed % 2 else Video(frames=255 - video.frames)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("first", [12, 13, 14, 15, 33, 40, 65, 66])
def test_a_hard_cut_begins_a_key_chunk_and_nothing_bleeds(tiny_tokenizer: Tokenizer, mode: str, first: int) -> None:
    a, b = scene(first, 1), scene(45, 2)
    config = EncodeConfig(mode=mode, key_seconds=0)
    tokens = encoded(tiny_tokenizer, Video(frames=torch.cat([a.frames, b.frames])), config)
    starts = [sum(s.frames for s in tokens.spans[:i]) for i, s in enumerate(tokens.spans) if s.key]
    assert first in starts
    if mode != "clips":
        assert starts == [0, first]
    apart = [encoded(tiny_tokenizer, part, config) for part in (a, b)]
    assert same(Tokens.join(apart), tokens), "each scene is encoded as if it were alone"
    both = torch.cat([tiny_tokenizer.decode(part).frames for part in apart])
    assert tiny_tokenizer.decode(tokens).frames.equal(both)


def test_cuts_do_not_depend_on_the_chunk_plan(tiny_tokenizer: Tokenizer) -> None:
    video = Video(frames=torch.cat([scene(n, i).frames for i, n in enumerate((22, 47, 31, 60))]))
    plans = [encoded(tiny_tokenizer, video, EncodeConfig(chunk_frames=n)) for n in (5, 17, 33, 101)]
    assert all(same(plans[0], plan) for plan in plans[1:])
    keys = [sum(s.frames for s in plans[2].spans[:i]) for i, s in enumerate(plans[2].spans) if s.key]
    assert keys == [0, 22, 69, 100]


def test_motion_and_noise_are_no_cuts(tiny_tokenizer: Tokenizer) -> None:
    noisy = still(100, 64, 64).frames.float() + 12 * torch.randn(100, 64, 64, 3)
    dark = 4 * torch.rand(100, 64, 64, 3)
    for frames in (moving_square(100, 64, 64, speed=9).frames, noisy, dark):
        video = Video(frames=frames.clamp(0, 255).to(torch.uint8))
        tokens = encoded(tiny_tokenizer, video, EncodeConfig(key_seconds=0))
        assert [s.key for s in tokens.spans] == [True] + [False] * (len(tokens.spans) - 1)


def test_real_cuts_are_found_and_real_motion_is_not(shared: Path) -> None:
    from inlay.backbones import WEIGHTS
    from inlay.video import read_video

    if not (WEIGHTS / "mini.safetensors").is_file():
        pytest.skip("cuts in real video are found with the shipped weights, and this copy has none")
    tokenizer = Tokenizer.from_pretrained("mini", device="cpu", fill="hold")
    names = ["davis17_bear", "davis17_lucia", "davis17_soccerball"]
    parts = [read_video(shared / "data/davis" / f"{n}.mp4", size="64x64", frames=18 + i) for i, n in enumerate(names)]
    video = Video(frames=torch.cat([p.frames for p in parts]))
    tokens = encoded(tokenizer, video)
    assert [s.key for s in tokens.spans].count(True) == 1
    tokens = encoded(tokenizer, video, EncodeConfig(key_seconds=0))
    keys = [sum(s.frames for s in tokens.spans[:i]) for i, s in enumerate(tokens.spans) if s.key]
    assert keys == [0, 18, 37]


# --- budgets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_whole_video_budgets_are_kept(tiny_tokenizer: Tokenizer, mode: str, tmp_path: Path) -> None:
    video = moving_square(75, 24, 32)
    with WholeVideo.of(tiny_tokenizer, [video[:20], video[20:]], replace(PLAIN, mode=mode)) as whole:
        for budget in (Budget(keep=0.3), Budget(keep=1.0)):
            tokens = Tokens.join(list(whole.solve(budget)))
            assert tokens.keep_rate <= budget.keep
            assert tokens.keep_rate > 0.8 * budget.keep
        exact = Tokens.join(list(whole.solve(Budget(keep=0.37, exact=True))))
        assert len(exact) == int(0.37 * exact.cells)
        for n in (whole.fixed, whole.fixed + 1, 171, whole.cells):
            assert len(Tokens.join(list(whole.solve(Budget(tokens=n))))) == n
        plan = whole.solve(Budget(bits=0.3))
        path = Tokens.join(list(plan)).save(tmp_path / "x.inlay")
        assert 8 * path.stat().st_size <= 0.3 * 75 * 24 * 32
        refused = (
            (Budget(tokens=whole.fixed - 1), "kept whole"),
            (Budget(tokens=10**6), "more than the"),
            (Budget(keep=0.001), "fewer key chunks"),
            (Budget(bits=1e-3), "bits a pixel is less"),
        )
        for wrong, says in refused:
            with pytest.raises(ConfigError, match=says):
                whole.solve(wrong)


def test_psnr_is_reached_with_the_fewest_tokens_found(tiny_tokenizer: Tokenizer) -> None:
    video = moving_square(40, 32, 40)
    every = tiny_tokenizer.decode(encoded(tiny_tokenizer, video, tau=0.0)).frames.float()
    decodes = []

    def psnr(chunks) -> float:  # type: ignore[no-untyped-def]
        decodes.append(1)
        frames = torch.cat([v.frames for v in tiny_tokenizer.decode_chunks(chunks)])
        return float(10 * torch.log10(255**2 / (frames.float() - every).square().mean().clamp_min(1e-6)))

    with WholeVideo.of(tiny_tokenizer, [video], PLAIN) as whole:
        plan = whole.solve(Budget(psnr=33), psnr)
        assert plan.solution.trials == len(decodes)
        assert psnr(iter(plan)) == plan.solution.value >= 33
        assert len(Tokens.join(list(plan))) < whole.cells
        with pytest.raises(ConfigError, match="at its finest"):
            whole.solve(Budget(psnr=99), lambda chunks: 12.0)


@pytest.mark.parametrize("budget", [Budget(keep=0.2, bucket_seconds=1), Budget(bits=0.15, bucket_seconds=1)])
def test_a_stream_holds_its_rate(tiny_tokenizer: Tokenizer, budget: Budget, tmp_path: Path) -> None:
    video = moving_square(300, 48, 48, speed=3)
    encoder = Encoder(tiny_tokenizer, PLAIN, budget=budget)
    tokens = Tokens.join(list(encoder.encode([video])))
    bucket = encoder.bucket
    assert bucket is not None
    if budget.keep is not None:
        assert bucket.spent == len(tokens)
        assert len(tokens) <= 0.2 * tokens.cells + bucket.size
        assert tokens.keep_rate == pytest.approx(0.2, rel=0.15)
    else:
        with TokenWriter(tmp_path / "x.inlay", info=tokens.info, recipe=tokens.recipe) as writer:
            writer.append(tokens)
        bits = 8 * (tmp_path / "x.inlay").stat().st_size
        assert bits == pytest.approx(bucket.spent, rel=0.01)
        assert bits <= 0.15 * 300 * 48 * 48 + bucket.size
    assert bucket.peak <= bucket.size * 1.0001
    again = Tokens.join(list(encoder.encode([video])))
    assert same(again, tokens), "another video begins with a fresh bucket"


@pytest.mark.parametrize("mode", ["stateful", "dual-cache", "clips"])
@pytest.mark.parametrize("budget", [Budget(keep=0.3, bucket_seconds=2), Budget(bits=0.2, bucket_seconds=2)])
def test_a_stream_longer_than_its_bucket_never_ends_above_its_rate(
    tiny_tokenizer: Tokenizer, budget: Budget, mode: str
) -> None:
    """Wherever it ends: everything moves, and a key chunk comes every four seconds."""
    video = moving_square(330, 48, 48, speed=5, seed=3)
    noisy = video.frames.float() + 40 * torch.randn(video.frames.shape, generator=torch.Generator().manual_seed(0))
    video = Video(frames=noisy.clamp(0, 255).to(torch.uint8), fps=video.fps)
    config = EncodeConfig(mode=mode, chunk_frames=9 if mode != "clips" else 33, key_seconds=4.0, cuts=False)
    encoder = Encoder(tiny_tokenizer, config, budget=budget)
    seen, above = 0, []
    for piece in (video[i : i + 3] for i in range(0, 330, 3)):
        for tokens in encoder.push(piece):
            seen += tokens.info.frames
            assert encoder.bucket is not None
            above.append((seen / float(video.fps), encoder.bucket.overshoot))
    encoder.flush()
    assert encoder.bucket is not None
    late = [(second, over) for second, over in above if second >= 2.5 and over > 1e-9]
    assert not late, "(second, share above the rate)"
    assert -0.25 < encoder.bucket.overshoot <= 1e-9, "what is left is the reserve"
    assert encoder.bucket.ahead_until <= 2.5
    assert encoder.bucket.seconds == pytest.approx(330 / float(video.fps)), "whatever the frames of a slot"


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_memory_is_flat_over_20_000_frames(tiny_tokenizer: Tokenizer, tmp_path: Path) -> None:
    piece = moving_square(50, 16, 16)
    encoder, decoder = Encoder(tiny_tokenizer, tau=TAU), Decoder(tiny_tokenizer)
    writer = None
    resident: list[int] = []
    frames = 0
    for number in range(400):
        for tokens in encoder.push(piece):
            writer = writer or TokenWriter(tmp_path / "long.inlay", info=tokens.info, recipe=tokens.recipe)
            writer.append(tokens)
            frames += len(decoder.push(tokens))
        if number % 20 == 0:
            resident.append(_resident_bytes())
    assert writer is not None
    for tokens in encoder.flush():
        writer.append(tokens)
        frames += len(decoder.push(tokens))
    writer.close()
    assert frames == 20_000
    early, late = resident[4], resident[-1]  # after 4,000 frames everything that is made once has been made
    assert late - early < 12 << 20, [r >> 20 for r in resident]


def _resident_bytes() -> int:
    import os

    fields = Path("/proc/self/statm")
    if not fields.exists():
        pytest.skip("resident memory is read from /proc")
    return int(fields.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
