# SPDX-License-Identifier: Apache-2.0
"""Key slots that are thinned out: what is dropped, what comes back, and what budgets make of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import inlay
from inlay.codec import Decoder, EncodeConfig, Encoder, LatentDecoder, WholeVideo, encode_clip
from inlay.codec.quality import mean_psnr
from inlay.container import TokenReader, as_stored, to_bytes
from inlay.container.header import FileHeader
from inlay.container.layout import CRC_BYTES, PREFIX_BYTES
from inlay.errors import ConfigError, TokenFileError
from inlay.masking import CRITERIA, Budget, MaskConfig, Profile, keep_mask, scan, scored_scan
from inlay.masking.thin import SHARE, completed, fewest, thinned
from inlay.measure.curve import gain_of_thin
from inlay.tokenizer import Tokenizer
from inlay.video.frames import Video
from tests.contracts.blocks import CHANNELS, Blocks

L1 = CRITERIA["latent-l1"]
THIN = EncodeConfig(key_slots="thin", cuts=False)


def smooth_slot(rows: int = 9, columns: int = 7, batch: int = 2) -> Tensor:
    """Latents that are planes, but for a cell that sticks out."""
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    z = torch.stack([0.1 * y + 0.2 * x, 1 - 0.3 * y + 0.05 * x, 0.07 * (x + y)]).float()
    return torch.stack([z + number for number in range(batch)])


def plane_video(frames: int = 17) -> Video:
    """Colours that run evenly over the picture, and stand still."""
    ramp = torch.linspace(20, 230, 96)
    frame = torch.stack([ramp[None].expand(96, -1), ramp[:, None].expand(-1, 96), (ramp[None] + ramp[:, None]) / 2], -1)
    return Video(frames=frame.round().to(torch.uint8).expand(frames, -1, -1, -1).contiguous())


class TestSlot:
    @pytest.mark.parametrize("size", [(9, 7), (8, 8), (1, 1), (1, 6), (6, 1), (2, 2), (3, 3)])
    def test_a_plane_needs_a_quarter(self, size: tuple[int, int]) -> None:
        z = smooth_slot(*size)
        keep, score, known = thinned(z, L1, 10.0)
        assert keep.sum() == len(z) * fewest(*size)
        assert keep[:, ::2, ::2].all() and torch.isinf(score[:, ::2, ::2]).all()
        assert not keep[:, 1::2].any() and not keep[:, :, 1::2].any()
        inside = known[:, :, 1 : size[0] // 2 * 2 - 2, 1 : size[1] // 2 * 2 - 2]
        assert torch.allclose(inside, z[:, :, 1 : size[0] // 2 * 2 - 2, 1 : size[1] // 2 * 2 - 2], atol=1e-5)

    def test_the_decoder_guesses_what_the_encoder_did(self) -> None:
        draw = torch.Generator().manual_seed(0)
        z = smooth_slot() + 0.3 * torch.randn(2, 3, 9, 7, generator=draw)
        for limit in (0.4, 1.0, 2.0, torch.tensor([0.6, 1.8]).view(-1, 1, 1)):
            keep, score, known = thinned(z, L1, limit)
            assert 0.25 < keep.float().mean() < 1
            assert torch.equal(completed(torch.where(keep[:, None], z, 7.0), keep), known)
            assert torch.equal(known.movedim(1, -1)[keep], z.movedim(1, -1)[keep])
            assert torch.equal(L1(z, known)[~keep], score[~keep])
            far = (score >= SHARE * limit) | torch.isinf(score)
            assert torch.equal(keep, far), "all that is off by too much stays, and nothing else"

    def test_nothing_is_dropped_at_no_threshold(self) -> None:
        z = smooth_slot()
        keep, _, known = thinned(z, L1, 0.0)
        assert keep.all() and torch.equal(known, z)

    def test_any_holes_are_filled_with_numbers(self) -> None:
        """A stranger's file may drop what always stays."""
        z, draw = smooth_slot(), torch.Generator().manual_seed(1)
        for share in (0.0, 0.1, 0.5):
            keep = torch.rand(2, 9, 7, generator=draw) < share
            found = completed(torch.where(keep[:, None], z, torch.nan), keep)
            assert torch.isfinite(found).all()


class TestScan:
    def test_later_slots_meet_what_the_decoder_has(self) -> None:
        draw = torch.Generator().manual_seed(2)
        z = torch.randn(2, 3, 4, 6, 8, generator=draw) * 0.1 + smooth_slot(6, 8)[:, :, None]
        config = MaskConfig(tau=0.5, key_slots="thin")
        found = scored_scan(z, config)
        _, _, known = thinned(z[:, :, 0], L1, 0.5)
        rest = scored_scan(z[:, :, 1:], config, known)
        assert torch.equal(found.keep_BTHW[:, 1:], rest.keep_BTHW)
        assert torch.equal(found.reference_BCHW, rest.reference_BCHW)
        assert torch.equal(scan(z, config)[0], found.keep_BTHW)

    def test_a_chunk_that_goes_on_is_not_thinned_out(self) -> None:
        z = smooth_slot(6, 8)[:, :, None].expand(-1, -1, 3, -1, -1)
        before = z[:, :, 0] + 5
        assert scored_scan(z, MaskConfig(tau=0.5, key_slots="thin"), before).keep_BTHW[:, 0].all()

    def test_a_tau_for_each_clip(self) -> None:
        draw = torch.Generator().manual_seed(3)
        z = smooth_slot(6, 8)[:, :, None] + 0.2 * torch.randn(2, 3, 3, 6, 8, generator=draw)
        config, taus = MaskConfig(key_slots="thin"), torch.tensor([0.2, 1.5])
        both = scored_scan(z, config, tau=taus).keep_BTHW
        for number in range(2):
            alone = keep_mask(z[number : number + 1], replace(config, tau=float(taus[number])))
            assert torch.equal(alone[0], both[number])


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    profile = Profile(
        backbone="x", weight_hash=Blocks().spec.weight_hash, tau=0.05, gains=(36.8,) * CHANNELS, thin=True
    )
    return Tokenizer(Blocks(), profile=profile)


class TestTokens:
    def test_a_still_picture_goes_below_a_whole_slot(self, tokenizer: Tokenizer, tmp_path: Path) -> None:
        clip = plane_video()
        whole = tokenizer.encode(clip, tau=0.3, cuts=False)
        thin = tokenizer.encode(clip, tau=0.3, key_slots="thin", cuts=False)
        assert whole.keep_rate == pytest.approx(1 / 5) and thin.keep_rate < 0.4 / 5
        again = inlay.open(thin.save(tmp_path / "x.inlay"))
        assert again.recipe == thin.recipe and again.recipe.key_slots == "thin" and torch.equal(again.mask, thin.mask)
        back = tokenizer.decode(again)
        assert mean_psnr([tokenizer.decode(whole)], [back]) > 30
        dense = tokenizer.fill(again)
        z = encode_clip(tokenizer, clip).z_BCTHW
        assert (dense - z).abs().mean() < 0.05

    def test_streams_and_wholes_agree(self, tokenizer: Tokenizer) -> None:
        clip = plane_video(40)
        encoder = Encoder(tokenizer, THIN, tau=0.1)
        chunks = [tokens for i in range(40) for tokens in encoder.push(clip[i : i + 1])] + encoder.flush()
        assert to_bytes(inlay.Tokens.join(chunks)) == to_bytes(
            tokenizer.encode(clip, tau=0.1, key_slots="thin", cuts=False)
        )
        decoder, latents = Decoder(tokenizer), LatentDecoder(tokenizer.filler)
        for tokens in chunks:
            video, z = decoder.push(tokens), latents.push(tokens)
            assert torch.isfinite(z).all() and len(video) == tokens.info.frames

    def test_streams_that_differ_in_it_go_in_step(self, tokenizer: Tokenizer) -> None:
        clip = plane_video()
        tokens = [tokenizer.encode(clip, tau=0.3, key_slots=kind, cuts=False) for kind in ("whole", "thin")]  # type: ignore[call-overload]
        together = Decoder(tokenizer, streams=2).push_all(tokens)
        for each, video in zip(tokens, together, strict=True):
            assert torch.equal(tokenizer.decode(each).frames, video.frames)

    def test_the_header_says_so(self, tokenizer: Tokenizer) -> None:
        data = to_bytes(tokenizer.encode(plane_video(), tau=0.3, key_slots="thin"))
        with TokenReader(data) as reader:
            header = reader.header
        assert header.version == "1.2" and b'"key_slots":"thin"' in header.pack()
        for wrong in (b'"some"', b"1", b"null"):
            text = header.pack()[PREFIX_BYTES:-CRC_BYTES].replace(b'"key_slots":"thin"', b'"key_slots":' + wrong)
            with pytest.raises(TokenFileError, match="'key_slots' should be one of whole, thin"):
                FileHeader.unpack(text)


class TestBudgets:
    def test_counts_thin_out_by_themselves_where_calibration_found_it_better(self, tokenizer: Tokenizer) -> None:
        clip = plane_video()
        for settings, kind in (
            ({"keep": 0.15}, "thin"), ({"tokens": 100}, "thin"), ({"tau": 0.1}, "whole"), ({"bits": 0.5}, "whole"),
            ({"keep": 0.3, "key_slots": "whole"}, "whole"), ({"tau": 0.1, "key_slots": "thin"}, "thin"),
        ):  # fmt: skip
            assert tokenizer.encode(clip, cuts=False, **settings).recipe.key_slots == kind  # type: ignore[call-overload]
        assert Tokenizer(Blocks()).encode(clip, keep=0.3, cuts=False).recipe.key_slots == "whole"

    def test_what_a_whole_slot_could_not_grant_is_granted(self, tokenizer: Tokenizer) -> None:
        clip = plane_video()
        tokens = tokenizer.encode(clip, keep=0.1, exact=True, cuts=False)
        assert len(tokens) == int(0.1 * tokens.cells)
        with pytest.raises(ConfigError, match="kept whole, need 144"):
            tokenizer.encode(clip, keep=0.1, key_slots="whole", cuts=False)
        with pytest.raises(ConfigError, match="thinned out, need 36"):
            tokenizer.encode(clip, tokens=35, cuts=False)
        assert len(tokenizer.encode(clip, tokens=36, cuts=False)) == 36

    def test_one_set_of_latents_serves_all_budgets(self, tokenizer: Tokenizer) -> None:
        with WholeVideo.of(tokenizer, [plane_video()], EncodeConfig(cuts=False)) as video:
            assert video.fixed == 144 and video.settled(Budget(keep=0.1)).fixed == 36
            few, many = (video.solve(Budget(keep=keep, exact=True)) for keep in (0.05, 0.5))
            assert sum(len(tokens) for tokens in few) == 36 and sum(len(tokens) for tokens in many) == 360
            assert next(iter(video.tokens(video.recipe(0.1)))).mask[0].all()

    def test_thinning_out_gains_where_a_picture_is_smooth(self, tokenizer: Tokenizer) -> None:
        """What slot 0 leaves over goes to what moves."""
        clip = plane_video()
        frames = clip.frames.clone()
        for t in range(17):
            frames[t, 40:56, 4 * t : 4 * t + 20] = 255 - frames[t, 40:56, 4 * t : 4 * t + 20]
        moving = Video(frames=frames)
        assert gain_of_thin(tokenizer, moving) > 0.5
        assert as_stored(tokenizer.encode(moving, keep=0.2, cuts=False)).recipe.key_slots == "thin"
