# SPDX-License-Identifier: Apache-2.0
"""Videos that are encoded smaller than they are: what a file says of it, what comes back, and who chooses the size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import inlay
from inlay.codec import EncodeConfig, Encoder, LatentChunk, SizedVideo, VideoEncoder, Watch, sizes_for
from inlay.codec.quality import mean_psnr
from inlay.container import TokenReader, as_stored, to_bytes
from inlay.container.header import FileHeader
from inlay.container.layout import CRC_BYTES, PREFIX_BYTES
from inlay.container.tokens import Tokens
from inlay.draw.lighting import light
from inlay.errors import ConfigError, TokenFileError
from inlay.masking import Budget, Profile
from inlay.tokenizer import Tokenizer
from inlay.types import SCALES, coded_size
from inlay.video.frames import Video, resized
from tests.conftest import moving_square
from tests.contracts.blocks import CHANNELS, Blocks

SIDE = 96
ALL = list(SCALES)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    blocks = Blocks()
    profile = Profile(
        backbone="x", weight_hash=blocks.spec.weight_hash, tau=0.05, gains=(36.8,) * CHANNELS, step=2.0,
        dial_taus=(0.0, 0.02, 0.05, 0.1), dial_steps=(0.5, 2.0, 4.0, 8.0), dial_bits=(0.9, 0.4, 0.14, 0.085),
        dial_psnr=(40.0, 30.0, 25.0, 20.0),
    )  # fmt: skip
    return Tokenizer(blocks, profile=profile)


def textured(cells: int, frames: int = 17) -> Video:
    """Random colours on a coarse or a fine grid, that change from slot to slot."""
    draw = torch.Generator().manual_seed(1)
    slots = torch.rand(1 + (frames - 1) // 4, 3, cells, cells, generator=draw)
    wide = F.interpolate(slots, size=(SIDE, SIDE), mode="bicubic").clamp(0, 1) * 255
    return Video(frames=wide.repeat_interleave(4, 0)[3:].permute(0, 2, 3, 1).round().to(torch.uint8))


SMOOTH, FINE = textured(4), textured(24)


def flickering() -> Video:
    """A still picture whose cells each change a little from slot to slot."""
    shades = torch.randint(-2, 3, (5, 12, 12, 3), generator=torch.Generator().manual_seed(3))
    flicker = shades.repeat_interleave(4, 0)[3:].repeat_interleave(8, 1).repeat_interleave(8, 2)
    return Video(frames=(SMOOTH.frames[:1].int() + flicker).clamp(0, 255).to(torch.uint8))


class TestFrames:
    def test_each_is_made_smaller_by_itself(self) -> None:
        frames = moving_square(9, 41, 51).frames
        whole = resized(frames, 31, 39)
        assert whole.shape == (9, 31, 39, 3)
        assert all(torch.equal(resized(frames[i : i + 1], 31, 39)[0], whole[i]) for i in range(9))
        assert resized(frames, 41, 51) is frames

    def test_a_smooth_picture_comes_back(self) -> None:
        back = resized(resized(SMOOTH.frames, SIDE // 2, SIDE // 2), SIDE, SIDE)
        assert mean_psnr([SMOOTH], [Video(frames=back)]) > 40
        flat = torch.full((2, 9, 7, 3), 255, dtype=torch.uint8)
        assert torch.equal(resized(flat, 5, 4), flat[:, :5, :4])


class TestTokens:
    @pytest.mark.parametrize("scale", ["3/4", "1/2"])
    @pytest.mark.parametrize("size", [(96, 96), (41, 51), (8, 9), (1, 1)])
    def test_a_video_comes_back_at_its_own_size(
        self, tokenizer: Tokenizer, tmp_path: Path, scale: str, size: tuple[int, int]
    ) -> None:
        clip = moving_square(21, *size)
        tokens = tokenizer.encode(clip, tau=0.0, scale=scale)  # type: ignore[call-overload]
        height, width = coded_size(*size, scale)
        assert tokens.mask.shape[1:] == (-(-height // 8), -(-width // 8))
        assert (tokens.info.height, tokens.info.width) == size
        again = inlay.open(tokens.save(tmp_path / "x.inlay"))
        assert again.recipe == tokens.recipe and again.recipe.scale == scale
        assert tokenizer.decode(again).frames.shape == clip.frames.shape
        small = Video(frames=resized(clip.frames, height, width))
        alone = tokenizer.decode(tokenizer.encode(small, tau=0.0))
        assert torch.equal(tokenizer.decode(tokens).frames, resized(alone.frames, *size))
        assert tokenizer.fill(again).shape[-2:] == again.mask.shape[1:]

    def test_a_stream_changes_its_size_as_a_whole_does(self, tokenizer: Tokenizer) -> None:
        clip, config = moving_square(40, 41, 51), EncodeConfig(scale="3/4")
        encoder = Encoder(tokenizer, config, tau=0.02)
        pieces = [tokens for i in range(40) for tokens in encoder.push(clip[i : i + 1])] + encoder.flush()
        whole = tokenizer.encode(clip, tau=0.02, scale="3/4")
        assert to_bytes(Tokens.join(pieces)) == to_bytes(whole)

    def test_streams_of_several_sizes_go_in_step(self, tokenizer: Tokenizer) -> None:
        clips = [moving_square(21, 40, 48), moving_square(21, 41, 51)]
        together = tokenizer.encode(clips, tau=0.02, scale="1/2")
        alone = [tokenizer.encode(clip, tau=0.02, scale="1/2") for clip in clips]
        assert [to_bytes(tokens) for tokens in together] == [to_bytes(tokens) for tokens in alone]

    def test_frames_of_two_sizes_are_no_video(self, tokenizer: Tokenizer) -> None:
        encoder = Encoder(tokenizer, EncodeConfig(scale="1/2"), tau=0.02)
        encoder.push(moving_square(5, 40, 48))
        with pytest.raises(inlay.InlayError, match="one size"):
            encoder.push(moving_square(5, 39, 47))  # both are 20 x 24 when they are made smaller

    def test_cells_are_lit_where_they_are(self) -> None:
        frames = torch.full((1, 41, 51, 3), 200, dtype=torch.uint8)
        keep = torch.ones(1, 4, 5, dtype=torch.bool)
        keep[0, 0, 0] = False
        lit = light(frames, keep, 8 / 0.75)[0, ..., 0]
        dark = (lit < 100).nonzero()
        assert dark.min() == 0 and dark.max() == 10, "a cell of 8 pixels is 10 2/3 pixels of the video"

    def test_unknown_scales_are_refused(self, tokenizer: Tokenizer) -> None:
        with pytest.raises(inlay.InlayError, match="scale"):
            tokenizer.encode(SMOOTH, tau=0.02, scale="1/3")  # type: ignore[call-overload]


class TestHeader:
    def header(self, tokenizer: Tokenizer) -> FileHeader:
        data = to_bytes(tokenizer.encode(SMOOTH, tau=0.02, scale="1/2"))
        with TokenReader(data) as reader:
            return reader.header

    def test_says_so_in_version_1_2(self, tokenizer: Tokenizer) -> None:
        header = self.header(tokenizer)
        assert header.version == "1.2" and b'"scale":"1/2"' in header.pack()
        plain = replace(header, recipe=replace(header.recipe, scale="1"), rows=12, columns=12, version="")
        assert plain.version == "1.1" and b"scale" not in plain.pack()

    @pytest.mark.parametrize("wrong", ['"1/4"', '"2"', "0.5", "null", '["1/2"]', '"' + "1" * 300 + '"'])
    def test_any_other_is_refused(self, tokenizer: Tokenizer, wrong: str) -> None:
        text = (
            self.header(tokenizer)
            .pack()[PREFIX_BYTES:-CRC_BYTES]
            .replace(b'"scale":"1/2"', f'"scale":{wrong}'.encode())
        )
        with pytest.raises(TokenFileError, match="'scale' should be one of 1, 3/4, 1/2"):
            FileHeader.unpack(text)

    def test_a_grid_of_another_scale_is_refused(self, tokenizer: Tokenizer) -> None:
        text = self.header(tokenizer).pack()[PREFIX_BYTES:-CRC_BYTES].replace(b'"1/2"', b'"3/4"')
        with pytest.raises(TokenFileError, match="promises 6 rows for 72 pixels, which make 9"):
            FileHeader.unpack(text)


class TestChoice:
    def solved(self, tokenizer: Tokenizer, clip: Video, budget: Budget, **settings: str) -> tuple[Tokens, VideoEncoder]:
        config = EncodeConfig(cuts=False, **settings)
        encoder = VideoEncoder(tokenizer, config, budget=budget, original=lambda: [clip])
        tokens = Tokens.join(list(encoder.encode([clip])))
        assert encoder.report is not None and encoder.report.scale == tokens.recipe.scale
        return tokens, encoder

    def test_few_bits_go_to_a_smaller_picture_where_that_looks_better(self, tokenizer: Tokenizer) -> None:
        for clip, bits, scale, decodes in ((SMOOTH, 0.1, "1/2", 5), (SMOOTH, 0.15, "3/4", 3), (FINE, 0.15, "1", 3)):
            budget = Budget(bits=bits)
            tokens, encoder = self.solved(tokenizer, clip, budget)
            assert tokens.recipe.scale == scale
            assert encoder.report is not None and encoder.report.decodes == decodes
            assert 8 * len(to_bytes(tokens)) / (17 * SIDE * SIDE) <= bits
            found = mean_psnr([clip], [tokenizer.decode(as_stored(tokens))])
            for other in ALL:
                fixed, _ = self.solved(tokenizer, clip, budget, scale=other)
                assert fixed.recipe.scale == other
                assert mean_psnr([clip], [tokenizer.decode(as_stored(fixed))]) <= found + 1e-9

    def test_a_video_that_bears_a_larger_tau_gets_it(
        self, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where cells only flicker a little, fewer of them in finer steps look better than the dial's pair."""
        clip = flickering()
        tokens, encoder = self.solved(tokenizer, clip, Budget(bits=0.07))
        assert encoder.report is not None and 0.069 < encoder.report.got <= 0.07
        alone, _ = self.solved(tokenizer, clip, Budget(bits=0.07), scale="1")
        assert to_bytes(alone) == to_bytes(tokens), "where the size is given, tau is chosen all the same"
        monkeypatch.setattr("inlay.codec.sizes.TAU_SHARES", ())
        by_dial, _ = self.solved(tokenizer, clip, Budget(bits=0.07))
        assert tokens.recipe.tau > by_dial.recipe.tau and (tokens.recipe.step or 0) < (by_dial.recipe.step or 0)
        found, before = (mean_psnr([clip], [tokenizer.decode(as_stored(t))]) for t in (tokens, by_dial))
        assert found > before + 0.1

    def test_a_psnr_is_reached_with_the_fewest_bits(self, tokenizer: Tokenizer) -> None:
        tokens, _ = self.solved(tokenizer, SMOOTH, Budget(psnr=25))
        assert tokens.recipe.scale == "1/2"
        assert mean_psnr([SMOOTH], [tokenizer.decode(as_stored(tokens))]) >= 25
        full, _ = self.solved(tokenizer, SMOOTH, Budget(psnr=25), scale="1")
        assert len(to_bytes(tokens)) < len(to_bytes(full))

    def test_a_psnr_takes_fewer_bits_where_a_larger_tau_does(
        self, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clip, budget = flickering(), Budget(psnr=32.5)
        tokens, encoder = self.solved(tokenizer, clip, budget)
        assert mean_psnr([clip], [tokenizer.decode(as_stored(tokens))]) >= 32.5
        assert encoder.report is not None
        monkeypatch.setattr("inlay.codec.sizes.TAU_SHARES", ())
        by_dial, plain = self.solved(tokenizer, clip, budget)
        assert tokens.recipe.tau > by_dial.recipe.tau
        assert len(to_bytes(tokens)) < 0.95 * len(to_bytes(by_dial))
        assert plain.report is not None and encoder.report.decodes > plain.report.decodes
        fixed, _ = self.solved(tokenizer, clip, replace(budget, tau=by_dial.recipe.tau))
        assert fixed.recipe.tau == by_dial.recipe.tau, "a tau that is given stays"

    def test_what_only_a_smaller_picture_can_grant_is_granted(self, tokenizer: Tokenizer) -> None:
        with pytest.raises(ConfigError, match="less than the"):
            self.solved(tokenizer, FINE, Budget(bits=0.055), scale="1")
        tokens, _ = self.solved(tokenizer, FINE, Budget(bits=0.055))
        assert tokens.recipe.scale != "1"
        with pytest.raises(ConfigError, match="less than the"):
            self.solved(tokenizer, FINE, Budget(bits=0.0001))

    @pytest.mark.parametrize(
        ("config", "budget", "sizes"),
        [
            (EncodeConfig(), Budget(bits=0.1), ALL),
            (EncodeConfig(), Budget(psnr=22), ALL),
            (EncodeConfig(), Budget(bits=0.8), ["1"]),
            (EncodeConfig(), Budget(psnr=38), ["1"]),
            (EncodeConfig(scale="3/4"), Budget(bits=0.1), ["3/4"]),
            (EncodeConfig(step="coarse"), Budget(bits=0.1), ["1"]),
            (EncodeConfig(), Budget(bits=0.1, tau=0.1), ["1"]),
            (EncodeConfig(), Budget(keep=0.1), ["1"]),
            (EncodeConfig(), Budget(tau=0.1), ["1"]),
            (EncodeConfig(criterion="latent-l2"), Budget(bits=0.1), ["1"]),
        ],
    )
    def test_who_may_choose(self, tokenizer: Tokenizer, config: EncodeConfig, budget: Budget, sizes: list[str]) -> None:
        assert sizes_for(tokenizer, config, budget) == sizes

    def test_without_a_dial_nobody_chooses(self) -> None:
        assert sizes_for(Tokenizer(Blocks()), EncodeConfig(), Budget(bits=0.1)) == ["1"]

    def test_the_chunk_that_changes_most_decides(self, tokenizer: Tokenizer) -> None:
        """A still and smooth beginning says nothing of the detail that moves later."""
        still = Video(frames=SMOOTH.frames[:1].expand(33, -1, -1, -1))
        clip = Video(frames=torch.cat([still.frames, FINE.frames, FINE.frames[:16]]))
        config = EncodeConfig(mode="clips", chunk_frames=33, cuts=False)
        with SizedVideo.of(tokenizer, [clip[:20], clip[20:]], config, sizes=ALL) as video:
            solved = video.solve(Budget(bits=0.15))
            assert video._sample is not None and video._sample.first == 33
            assert torch.equal(video._sample.frames_THWC, clip.frames[33:66])
        assert solved.recipe.scale == "1" and solved.looked == 4

    def test_a_size_with_other_chunks_is_judged_by_the_same_frames(self, tokenizer: Tokenizer) -> None:
        """Where a cut is found at one size alone, its chunks begin elsewhere."""
        one, two = (EncodeConfig(mode="clips", chunk_frames=n, cuts=False) for n in (17, 9))
        with (
            SizedVideo.of(tokenizer, [SMOOTH], one, sizes=["1", "1/2"]) as video,
            SizedVideo.of(tokenizer, [SMOOTH], two, sizes=["1/2"]) as cut,
        ):
            video.videos["1/2"].close()
            video.videos["1/2"] = cut.full
            solved = video.solve(Budget(bits=0.1))
            small = Tokens.join(cut.full.solve(Budget(bits=0.1)))
            assert video._psnr(solved) == mean_psnr([SMOOTH], [tokenizer.decode(as_stored(small))])
        assert solved.recipe.scale == "1/2" and len(small.spans) == 2

    def test_who_looks_on_sees_the_latents_of_the_choice_alone(self, tokenizer: Tokenizer) -> None:
        class Grids(Watch):
            def __init__(self) -> None:
                self.seen: list[tuple[int, ...]] = []

            def on_latents(self, chunk: LatentChunk) -> None:
                self.seen.append(tuple(chunk.z_BCTHW.shape[2:]))

        for clip, side in ((SMOOTH, 9), (FINE, 12)):
            watch = Grids()
            with tokenizer.watched_by(watch):
                tokenizer.encode(clip, bits=0.15, cuts=False)
            assert watch.seen == [(5, side, side)]

    def test_a_list_is_encoded_as_each_of_it(self, tokenizer: Tokenizer) -> None:
        together = tokenizer.encode([SMOOTH, FINE], bits=0.15, cuts=False)
        assert [tokens.recipe.scale for tokens in together] == ["3/4", "1"]
        alone = [tokenizer.encode(clip, bits=0.15, cuts=False) for clip in (SMOOTH, FINE)]
        assert [to_bytes(tokens) for tokens in together] == [to_bytes(tokens) for tokens in alone]
