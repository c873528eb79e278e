# SPDX-License-Identifier: Apache-2.0
"""The Python API as its users meet it: what `encode` takes, what `decode` takes, and what is said of mistakes."""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch

import inlay
from inlay.backbones import Backbone
from inlay.codec import EncodeConfig, Encoder
from inlay.container.writer import to_bytes
from inlay.errors import ConfigError, MissingError, ShapeError, UsageError, VideoError
from inlay.fill import Filler, Lit, LitConfig
from inlay.tokenizer import Tokenizer
from inlay.video import write_video
from inlay.video.frames import Video, from_array
from tests.conftest import moving_square, still

# --- sources ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axes", ["".join(order) for order in permutations("THWC")])
def test_frames_of_any_axis_order(axes: str) -> None:
    video = moving_square(5, 8, 12)
    given = video.frames.permute(*("THWC".index(axis) for axis in axes))
    assert torch.equal(from_array(given, axes=axes).frames, video.frames)
    assert torch.equal(from_array(given.numpy(), axes=axes).frames, video.frames)
    pixels = given.float() / 127.5 - 1
    assert torch.equal(from_array(pixels, axes=axes, fps=Fraction(30)).frames, video.frames)
    assert from_array(pixels, axes=axes, fps=Fraction(30)).fps == 30


def test_arrays_that_run_backwards_or_are_read_only_are_copied() -> None:
    video = moving_square(5, 8, 12)
    frames = video.frames.numpy()
    assert torch.equal(from_array(frames[..., ::-1]).frames, video.frames.flip(3))  # BGR, as OpenCV has it
    assert torch.equal(from_array(frames[::-1]).frames, video.frames.flip(0))
    shut = np.frombuffer(frames.tobytes(), np.uint8).reshape(frames.shape)
    assert torch.equal(from_array(shut).frames, video.frames)  # and no warning
    learnt = (video.frames.float() / 127.5 - 1).requires_grad_()
    assert torch.equal(from_array(learnt).frames, video.frames)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_floating_point_frames_of_any_kind(dtype: torch.dtype) -> None:
    frames = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 8, 8, 3)
    assert torch.equal(from_array((frames.float() / 127.5 - 1).to(dtype)).frames, frames)


WRONG = [
    (torch.zeros(5, 8, 8, dtype=torch.uint8), "THWC", "T, H, W, C"),
    (torch.zeros(1, 5, 8, 8, 3, dtype=torch.uint8), "THWC", "frames of one video"),
    (torch.zeros(5, 8, 8, 4, dtype=torch.uint8), "THWC", "3 colours, and not 4; convert them to RGB first"),
    (torch.zeros(5, 3, 8, 8, dtype=torch.uint8), "THWC", "and not 8; axes names another order, such as TCHW"),
    (torch.zeros(5, 8, 8, 3, dtype=torch.uint8), "TCHW", "and not 8; axes names another order, such as THWC"),
    (torch.zeros(3, 5, 8, 8, dtype=torch.uint8), "THWC", "and not 8; axes names another order, such as CTHW"),
    (torch.zeros(8, 8, 3, dtype=torch.uint8), "THWC", "stacked into one array first"),
    (torch.zeros(0, 8, 8, 3, dtype=torch.uint8), "THWC", "at least one frame"),
    (torch.zeros(5, 8, 8, 3, dtype=torch.int64), "THWC", "uint8, or floating point"),
    (torch.zeros(5, 8, 8, 3, dtype=torch.bool), "THWC", "uint8, or floating point"),
    (torch.full((5, 8, 8, 3), 255.0), "THWC", r"up to 255"),
    (torch.full((5, 8, 8, 3), torch.nan), "THWC", "not finite"),
    (torch.zeros(5, 8, 8, 3, dtype=torch.uint8), "THWX", "names the order"),
    (torch.zeros(5, 8, 8, 3, dtype=torch.uint8), "THW", "names the order"),
    (torch.zeros(5, 4, 8, 8), "TCHW", "3"),
]


@pytest.mark.parametrize(("frames", "axes", "says"), WRONG, ids=[f"{tuple(x.shape)} {axes}" for x, axes, _ in WRONG])
def test_frames_that_are_none_are_refused(frames: torch.Tensor, axes: str, says: str) -> None:
    with pytest.raises(ShapeError, match=says):
        from_array(frames, axes=axes)


def test_arrays_of_what_is_no_number_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"uint8, or floating point in \[-1, 1\]; got object\[5, 8, 8, 3\]"):
        from_array(np.zeros((5, 8, 8, 3), object))  # type: ignore[arg-type]


def test_every_kind_of_source_gives_the_same_tokens(tiny_tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = write_video(moving_square(37, 16, 24), tmp_path / "clip.mkv", lossless=True)
    video = inlay.read_video(path)
    wanted = to_bytes(tiny_tokenizer.encode(str(path)))
    x = video.frames
    assert to_bytes(tiny_tokenizer.encode(path)) == wanted
    assert to_bytes(tiny_tokenizer.encode(video)) == wanted
    assert to_bytes(tiny_tokenizer.encode(x, fps=video.fps)) == wanted
    assert to_bytes(tiny_tokenizer.encode(x.numpy(), fps=24.0)) == wanted
    assert to_bytes(tiny_tokenizer.encode(x.permute(0, 3, 1, 2), axes="TCHW")) == wanted
    assert to_bytes(tiny_tokenizer.encode(x.permute(3, 0, 1, 2).float() / 127.5 - 1, axes="CTHW")) == wanted
    floats = (x.numpy() / 127.5 - 1).astype(np.float32)
    assert to_bytes(tiny_tokenizer.encode(floats)) == wanted


def test_lists_come_back_as_lists(tiny_tokenizer: Tokenizer, tmp_path: Path) -> None:
    video = moving_square(9, 16, 24)
    path = write_video(still(5, 16, 16), tmp_path / "still.mkv", lossless=True)
    mixed = tiny_tokenizer.encode([video, path, video.frames, str(path)])
    assert [tokens.info.frames for tokens in mixed] == [9, 5, 9, 5]
    assert to_bytes(mixed[0]) == to_bytes(mixed[2]) == to_bytes(tiny_tokenizer.encode(video))
    assert [len(t) for t in tiny_tokenizer.encode((video, video), tokens=10)] == [10, 10]
    assert [len(t) for t in tiny_tokenizer.encode([video], keep=0.5, exact=True)] == [9]
    assert tiny_tokenizer.encode([]) == []


def test_a_list_names_what_is_wrong_with_one_of_it(tiny_tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(VideoError, match="no such file"):
        tiny_tokenizer.encode([still(5, 16, 16), tmp_path / "none.mp4"])
    with pytest.raises(ShapeError, match="uint8"):
        tiny_tokenizer.encode([torch.zeros(5, 8, 8, 3, dtype=torch.int32)])


# --- keywords ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"kepp": 0.3}, "did you mean 'keep'"),
        ({"tua": 0.3}, "did you mean 'tau'"),
        ({"presicion": "q8"}, "did you mean 'precision'"),
        ({"key_second": 3}, "did you mean 'key_seconds'"),
        ({"streaming": "clips"}, "it takes: tau, keep"),
    ],
)
def test_an_unknown_keyword_names_the_nearest(tiny_tokenizer: Tokenizer, given: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        tiny_tokenizer.encode(still(5, 16, 16), **given)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"mode": "clip"}, "did you mean 'clips'"),
        ({"criterion": "latent-l3"}, "unknown criterion"),
        ({"reference": "last"}, "unknown reference"),
        ({"precision": "fp8"}, "unknown precision"),
        ({"tau": 0.3, "keep": 0.5}, "tau and keep contradict"),
        ({"exact": True}, "give one"),
        ({"chunk_frames": 32}, "33 is"),
        ({"psnr": 101}, "at most 100"),
        ({"criterion": "latent-l2"}, "no default tau"),
    ],
)
def test_wrong_values_are_refused_with_a_sentence(
    tiny_tokenizer: Tokenizer, given: dict[str, object], says: str
) -> None:
    with pytest.raises((UsageError, ConfigError), match=says) as caught:
        tiny_tokenizer.encode(still(5, 16, 16), **given)  # type: ignore[call-overload]
    assert "--" not in str(caught.value), "the library knows nothing of flags"


def test_arguments_are_named(tiny_tokenizer: Tokenizer) -> None:
    tokens = tiny_tokenizer.encode(still(5, 16, 16))
    with pytest.raises(TypeError, match="positional"):
        tiny_tokenizer.encode(still(5, 16, 16), 0.3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="positional"):
        tiny_tokenizer.decode(tokens, "hold")  # type: ignore[misc]
    with pytest.raises(TypeError, match="positional"):
        tiny_tokenizer.fill(tokens, "hold")  # type: ignore[misc]


def test_modes_differ_as_they_say(tiny_tokenizer: Tokenizer) -> None:
    video = moving_square(70, 16, 24)
    auto, stateful = tiny_tokenizer.encode(video, tau=0.3), tiny_tokenizer.encode(video, tau=0.3, mode="stateful")
    assert to_bytes(auto) == to_bytes(stateful) and auto.recipe.streaming == "stateful"
    clips = tiny_tokenizer.encode(video, tau=0.3, mode="clips")
    assert all(span.key for span in clips.spans) and len(clips) > len(auto)


# --- fill and decode --------------------------------------------------------------------------------------------------


def test_what_fill_gives_decode_takes(tiny_tokenizer: Tokenizer) -> None:
    """A generator is trained on what `fill` gives; what it makes is decoded like that."""
    video = moving_square(33, 24, 40)
    tokens = tiny_tokenizer.encode(video, tau=0.3, fps=24)
    for fill in ("hold", "linear"):
        z = tiny_tokenizer.fill(tokens, fill=fill)
        assert isinstance(z, torch.Tensor) and z.shape == (1, 16, 9, 3, 5)
        assert torch.equal(tiny_tokenizer.decode(z).frames, tiny_tokenizer.decode(tokens, fill=fill).frames)


def test_latents_that_a_generator_made(tiny_tokenizer: Tokenizer, tmp_path: Path) -> None:
    z = torch.randn(1, 16, 3, 2, 4)
    video = tiny_tokenizer.decode(z)
    assert video.frames.shape == (9, 16, 32, 3) and video.fps == 24
    video = tiny_tokenizer.decode(z.double().requires_grad_(), fps=Fraction(30000, 1001), size=(15, 30))
    assert video.frames.shape == (9, 15, 30, 3) and video.fps == Fraction(30000, 1001)
    assert len(inlay.read_video(video.save(tmp_path / "made.mp4"))) == 9
    assert not z.requires_grad


@pytest.mark.parametrize(
    ("shape", "says"),
    [
        ((1, 8, 3, 2, 2), "latents"),
        ((16, 3, 2, 2), "latents"),
        ((1, 16, 0, 2, 2), "latents"),
        ((2, 16, 3, 2, 2), "one"),
    ],
)
def test_latents_of_another_kind_are_refused(tiny_tokenizer: Tokenizer, shape: tuple[int, ...], says: str) -> None:
    with pytest.raises((ShapeError, UsageError), match=says):
        tiny_tokenizer.decode(torch.zeros(shape))


def test_a_lit_of_other_weights_is_refused(tiny_mini: Backbone) -> None:
    lit = Lit.build(LitConfig(width=32, heads=1, blocks=1)).eval()
    lit.backbone_hash = "f" * 16
    filler = Filler({"lit": lit})
    tokenizer = Tokenizer(tiny_mini, filler=filler)
    tokens = tokenizer.encode(moving_square(9, 16, 16), tau=0.3)
    for use in (
        lambda: filler.check(tokens.recipe),
        lambda: filler.check(tokens.recipe, "lit"),
        lambda: tokenizer.decode(tokens),
        lambda: tokenizer.fill(tokens),
    ):
        with pytest.raises(MissingError, match=r"trained for a backbone with weights ffff.*fill with 'hold'"):
            use()
    filler.check(tokens.recipe, "hold")
    assert tokenizer.decode(tokens, fill="hold").frames.shape == (9, 16, 16, 3)
    lit.backbone_hash = tokens.recipe.weight_hash
    filler.check(tokens.recipe)
    lit.backbone_hash = ""  # of nobody in particular
    filler.check(tokens.recipe)


def test_lits_of_a_folder_are_those_of_its_backbone(tmp_path: Path) -> None:
    from inlay.fill import save_lit

    lit = Lit.build(LitConfig(width=32, heads=1, blocks=1)).eval()
    for name, made_for in (("lit", "a" * 16), ("lit-paper", "b" * 16)):
        save_lit(tmp_path / f"mini.{name}.safetensors", lit, {"backbone_hash": made_for})
    assert set(Filler.load([tmp_path], "mini", "a" * 16).lits) == {"lit"}
    assert Filler.load([tmp_path], "mini", "a" * 16).default == "lit"
    assert Filler.load([tmp_path], "mini", "c" * 16).names == ("hold", "linear")
    other = tmp_path / "other"
    save_lit(other / "mini.lit.safetensors", lit, {"backbone_hash": "c" * 16})
    assert Filler.load([tmp_path, other], "mini", "c" * 16).default == "lit", "the first folder has one for others"


# --- what things are called and how they print ------------------------------------------------------------------------


def test_public_names_of_streams_are_the_codecs(tiny_tokenizer: Tokenizer) -> None:
    from inlay.codec import Decoder

    assert inlay.StreamEncoder is Encoder and inlay.StreamDecoder is Decoder
    encoder, decoder = (
        inlay.StreamEncoder(tiny_tokenizer, EncodeConfig(chunk_frames=9)),
        inlay.StreamDecoder(tiny_tokenizer),
    )
    video = moving_square(20, 16, 16)
    chunks = [*encoder.push(video), *encoder.flush()]
    assert sum(len(decoder.push(chunk)) for chunk in chunks) == 20


def test_things_print_what_they_are(tiny_tokenizer: Tokenizer, tmp_path: Path) -> None:
    assert repr(tiny_tokenizer) == (
        "Tokenizer(mini-untrained, 16 channels, 4x8x8, tau 0.1, fills hold, linear; float32 on cpu)"
    )
    assert re.fullmatch(r"Profile\(mini-untrained, weights \w+, tau 0\.1; .+\)", repr(tiny_tokenizer.profile))
    assert len(repr(tiny_tokenizer.spec)) < 300, "a spec does not print the numbers of each channel"
    video = moving_square(33, 16, 24)
    assert repr(video) == "Video(uint8[33, 16, 24, 3], fps=24)"
    tokens = tiny_tokenizer.encode(video, tau=0.3)
    text = repr(tokens)
    assert f"{len(tokens):,} of 54 cells" in text and "mode stateful" in text and "33 frames 24x16" in text
    tokens.save(tmp_path / "a.inlay")
    assert repr(Encoder(tiny_tokenizer)) == (
        "Encoder(mini-untrained, tau 0.1, mode stateful, chunks of 33 frames, streams 1)"
    )
    with inlay.container.TokenReader(tmp_path / "a.inlay") as reader:
        assert repr(reader) == f"TokenReader({tmp_path / 'a.inlay'}: 1 chunks, 33 frames 24x16; mini-untrained)"
    assert repr(inlay.StreamDecoder(tiny_tokenizer, streams=2)) == "Decoder(mini-untrained, fill hold, streams 2)"
    assert repr(inlay.scale.TokenDataset(tmp_path)) == "TokenDataset(1 videos; sparse)"
    assert repr(inlay.scale.TokenStream(tmp_path, mode="dense")) == "TokenStream(1 videos; dense)"


def test_a_video_becomes_what_it_was(tiny_tokenizer: Tokenizer) -> None:
    video = Video(frames=moving_square(34, 17, 23).frames, fps=Fraction(30000, 1001))
    back = tiny_tokenizer.decode(tiny_tokenizer.encode(video, tau=0.3))
    assert back.frames.shape == video.frames.shape and back.fps == video.fps


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"tokens": 20.5}, "tokens is a number of tokens, 1 or more; got 20.5, and a whole number is wanted"),
        ({"tokens": 200.0}, r"tokens is a number of tokens, 1 or more; got 200\.0"),
        ({"keep": "0.3"}, "keep is a share of the cells"),
        ({"tau": "0.3"}, "tau is a distance"),
        ({"tau": True}, "tau is a distance"),
        ({"step": True}, "a step is one of .* got 'True'"),
        ({"scale": 0.5}, "unknown scale 0.5"),
        ({"chunk_frames": "33"}, "chunk_frames is a number of frames"),
        ({"cuts": "no"}, "cuts is true or false; got 'no'"),
        ({"fill": "nosuchfill"}, "unknown fill 'nosuchfill'.*hold, linear"),
        ({"size": "32x32"}, "size is that of files"),
        ({"fps": float("nan")}, "fps is from 1/3600 to 10000"),
        ({"fps": "x"}, "fps is from"),
        ({"fps": 1e-9}, "fps is from"),
    ],
)
def test_a_wrong_value_is_refused_before_the_network_runs(
    tiny_tokenizer: Tokenizer, given: dict[str, object], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny_tokenizer.backbone, "encode", None)
    with pytest.raises((ConfigError, UsageError), match=says):
        tiny_tokenizer.encode(moving_square(5, 8, 8), **given)  # type: ignore[call-overload]


@pytest.mark.parametrize("source", [None, 3, {"a": 1}, {"a.mp4"}, (v for v in "ab"), [still(1, 8, 8), None]])
def test_what_is_no_video_is_refused(tiny_tokenizer: Tokenizer, source: object) -> None:
    with pytest.raises(UsageError, match=r"encode takes a path, a Video, or frames.*; got \w+$"):
        tiny_tokenizer.encode(source, tau=0.3)  # type: ignore[call-overload]


def test_the_bytes_of_a_file_are_called_bytes(tiny_tokenizer: Tokenizer) -> None:
    with pytest.raises(UsageError, match=r"encode takes a path.*; got bytes$"):
        tiny_tokenizer.encode(b"....ftypisom", tau=0.3)  # type: ignore[call-overload]


def test_decode_says_what_it_takes(tiny_tokenizer: Tokenizer) -> None:
    z, tokens = torch.zeros(1, 16, 1, 1, 1), tiny_tokenizer.encode(still(1, 8, 8), tau=0.3)
    for wrong, says in (
        (lambda: tiny_tokenizer.decode(z.numpy()), "decode takes Tokens"),
        (lambda: tiny_tokenizer.decode("clip.inlay"), "inlay.open reads a file"),
        (lambda: tiny_tokenizer.fill(z), "fill takes Tokens"),
        (lambda: tiny_tokenizer.decode(z * torch.nan), "not finite"),
        (lambda: tiny_tokenizer.decode(z, fill="hold"), "a fill is for tokens"),
        (lambda: tiny_tokenizer.decode(z, size=64), "size is"),
        (lambda: tiny_tokenizer.decode(z, size=(9, 8)), "to crop 8 x 8 pixels to"),
        (lambda: tiny_tokenizer.decode(z, fps=float("nan")), "fps is from"),
        (lambda: tiny_tokenizer.decode(tokens, size=(8, 8)), "tokens know their frame rate and size"),
        (lambda: tiny_tokenizer.decode(tokens, fps=12), "tokens know their frame rate and size"),
        (lambda: inlay.pack.pack(tokens), "a batch is a list of clips"),
        (lambda: inlay.pack.pack([still(1, 8, 8)]), "each of them Tokens; got Video"),
        (lambda: inlay.pack.pack_latents([z]), "got list"),
        (lambda: inlay.pack.pack_latents(z[0]), r"\[B, C, T, H, W\]; got float32\[16, 1, 1, 1\]"),
    ):
        with pytest.raises((UsageError, ShapeError, ConfigError), match=says):
            wrong()
    assert tiny_tokenizer.decode(z, size=(8, 5)).frames.shape == (1, 8, 5, 3)


def test_a_stream_says_what_it_takes(tiny_tokenizer: Tokenizer) -> None:
    video = moving_square(40, 8, 8)
    tokens = tiny_tokenizer.encode(video, tau=0.3)
    encoder, decoder = inlay.StreamEncoder(tiny_tokenizer, tau=0.3), inlay.StreamDecoder(tiny_tokenizer)
    two = inlay.StreamEncoder(tiny_tokenizer, tau=0.3, streams=2)
    for wrong, says in (
        (lambda: inlay.StreamEncoder("mini"), "an encoder takes a Tokenizer; got str"),
        (lambda: inlay.StreamEncoder(tiny_tokenizer, "clips"), "settings are an EncodeConfig; got str"),
        (lambda: inlay.StreamEncoder(tiny_tokenizer, streams=0), "streams is a number of videos, 1 or more; got 0"),
        (lambda: inlay.StreamDecoder("mini"), "a decoder takes a Tokenizer; got str"),
        (lambda: inlay.StreamDecoder(tiny_tokenizer, streams=0), "streams is a number of videos"),
        (lambda: encoder.push(video.frames), "frames as a Video; got Tensor"),
        (lambda: encoder.push("clip.mp4"), "frames as a Video; got str"),
        (lambda: decoder.push(video), "a chunk at a time; got Video"),
        (lambda: decoder.push(tokens), r"these tokens are 2; give each of tokens.chunks\(\)"),
        (lambda: encoder.push_all([video, video]), "of 1 streams push_all takes a list of 1 pieces; got 2"),
        (lambda: two.push(video), "of 2 streams push_all takes a list of 2 pieces; got 1"),
        (lambda: decoder.push_all(list(tokens.chunks())), "of 1 streams push_all takes at most 1 chunks; got 2"),
        (lambda: inlay.codec.LatentDecoder(tiny_tokenizer.filler).push(tokens), "these tokens are 2"),
        (lambda: Tokenizer.from_pretrained(None), "takes a name of `inlay backbones`, or a folder; got NoneType"),
        (lambda: Tokenizer.from_pretrained("mini", profile=3), "takes a Profile, or the path of one; got int"),
        (lambda: Tokenizer("mini"), r"Tokenizer.from_pretrained\('mini'\) loads one"),
    ):
        with pytest.raises(UsageError, match=says):
            wrong()
    made = inlay.Tokens.join(iter(encoder.push(video) + encoder.flush()))  # what was refused left nothing behind
    assert to_bytes(made) == to_bytes(tokens) and sum(len(decoder.push(chunk)) for chunk in made.chunks()) == 40


def test_a_rate_is_the_fraction_it_is_near(tiny_tokenizer: Tokenizer) -> None:
    frames = moving_square(1, 8, 8).frames
    for fps, rate in ((29.97, Fraction(2997, 100)), (30_000 / 1001, Fraction(30_000, 1001)), (25, Fraction(25))):
        tokens = tiny_tokenizer.encode(frames, tau=0.3, fps=fps)
        assert tokens.info.fps == rate
        video = Video(frames=frames, fps=fps)  # type: ignore[arg-type]  # as one writes it by hand
        assert to_bytes(tiny_tokenizer.encode(video, tau=0.3)) == to_bytes(tokens)
    with pytest.raises(ShapeError, match=r"a tensor, which torch.as_tensor makes of an array; got ndarray"):
        Video(frames=frames.numpy())  # type: ignore[arg-type]
    for wrong in ("x", float("nan"), 0, None):
        with pytest.raises(ShapeError, match=f"the frame rate must be positive; got {wrong!r}"):
            Video(frames=frames, fps=wrong)  # type: ignore[arg-type]


def test_what_is_closed_says_so(tiny_tokenizer: Tokenizer, tmp_path: Path) -> None:
    write_video(moving_square(9, 16, 16), tmp_path / "a.mp4")
    with inlay.video.open_video(tmp_path / "a.mp4") as reader:
        chunks = reader.chunks(2)
        next(chunks)
    for late in (lambda: next(chunks), lambda: list(reader.chunks(2)), lambda: next(iter(reader))):
        with pytest.raises(UsageError, match="the reader is closed"):
            late()
    tiny_tokenizer.encode(moving_square(5, 8, 8), tau=0.3).save(tmp_path / "a.inlay")
    with inlay.container.TokenReader(tmp_path / "a.inlay") as tokens:
        pass
    with (tmp_path / "a.inlay").open("rb") as file:
        pass
    for late in (lambda: tokens.read(0), lambda: inlay.open(file)):
        with pytest.raises(UsageError, match="is closed; open it again"):
            late()
    with (tmp_path / "a.inlay").open(encoding="latin-1") as text, pytest.raises(UsageError, match="'rb'"):
        inlay.open(text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"profile": "nosuch.json"}, "nosuch.json: cannot be read"),
        ({"device": None}, "is not a device"),
        ({"dtype": "float32"}, "dtype is a floating point type"),
        ({"dtype": torch.int8}, "dtype is a floating point type"),
    ],
)
def test_what_cannot_be_loaded_is_refused(given: dict[str, object], says: str) -> None:
    with pytest.raises((ConfigError, MissingError), match=says):
        Tokenizer.from_pretrained("mini", **{"device": "cpu", **given})  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [{"size": 256}, {"frames": 2.5}, {"start": "a"}])
def test_videos_are_opened_with_sizes_and_counts(given: dict[str, object], tmp_path: Path) -> None:
    write_video(still(1, 16, 16), tmp_path / "a.mp4")
    with pytest.raises((ConfigError, UsageError)):
        inlay.video.read_video(tmp_path / "a.mp4", **given)  # type: ignore[arg-type]
