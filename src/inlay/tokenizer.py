# SPDX-License-Identifier: Apache-2.0
"""`Tokenizer`: a video to tokens and back, by a backbone's name. Read this file first, then `codec/`.

encode   video ─► chunks ─► backbone ─► mask (budget) ─► gather ─► Tokens
fill     Tokens ─► scatter ─► filler ─► latents [1, C, T, H, W]
decode   Tokens or latents ─► filler ─► backbone ─► crop ─► Video
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Literal, TypeAlias, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inlay.backbones import WEIGHTS, Backbone, check_latents, default_tau, is_saved_model, load_backbone, resolve
from inlay.codec.config import CLIP_FRAMES, EncodeConfig
from inlay.codec.decoder import Decoder, LatentDecoder
from inlay.codec.parts import Parts
from inlay.codec.whole import VideoEncoder, encode_videos
from inlay.container.tokens import Tokens
from inlay.errors import ConfigError, UsageError, check_kind
from inlay.files import beside
from inlay.fill import Filler
from inlay.masking import Budget, Profile
from inlay.types import check_shape, frame_rate
from inlay.video.frames import Video, from_array, join_videos

Path_: TypeAlias = str | PathLike[str]
Array: TypeAlias = Tensor | NDArray[np.uint8] | NDArray[np.float32]
Source: TypeAlias = Path_ | Video | Array
Mode: TypeAlias = Literal["auto", "stateful", "dual-cache", "clips"]
Criterion: TypeAlias = Literal["latent-l1", "latent-l2", "latent-cosine", "pixel-l1"]
Reference: TypeAlias = Literal["last-kept", "previous"]
Precision: TypeAlias = Literal["fp32", "fp16", "bf16", "q8", "q8-quick"]
Step: TypeAlias = Literal["lossless-ish", "fine", "normal", "coarse", "small", "cache", "deviation"]
Scale: TypeAlias = Literal["auto", "1", "3/4", "1/2"]
KeySlots: TypeAlias = Literal["auto", "whole", "thin"]
AxisOrder: TypeAlias = Literal["THWC", "TCHW", "CTHW"]
Read: TypeAlias = Callable[[Source], Iterator[Video]]
SOURCES = "a path, a Video, or frames as a tensor or array"


class Tokenizer(Parts):
    """A frozen backbone, a mask and a fill. `encode` and `decode` are inverse up to what was dropped.

    tokenizer = Tokenizer.from_pretrained("mini")
    tokens = tokenizer.encode("clip.mp4", keep=0.25)
    video = tokenizer.decode(tokens)
    """

    def __repr__(self) -> str:
        s, tau = self.spec, "none" if self.profile is None else f"{self.profile.tau:g}"
        kind = str(self.dtype).removeprefix("torch.")
        return (
            f"Tokenizer({s.name}, {s.channels} channels, {s.time_stride}x{s.space_stride}x{s.space_stride}, "
            f"tau {tau}, fills {', '.join(self.filler.names)}; {kind} on {self.device})"
        )

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | PathLike[str] = "mini",
        *,
        device: torch.device | str = "auto",
        dtype: torch.dtype = torch.float32,
        fill: str | None = None,
        weights: str | PathLike[str] | None = None,
        profile: Profile | str | PathLike[str] | None = None,
        trust: bool = False,
    ) -> Tokenizer:
        """Load a backbone by name with the fills and the profile that ship beside it, or a folder of such files.

        Args:
            name_or_path: a name of `inlay backbones`, a hub's name, a folder, or `module:Class` of your own.
            fill: the fill to decode with where nobody names one; the best at hand by default.
            weights: a file or folder to load in place of the published weights.
            profile: what `inlay calibrate` measured, in place of the profile beside the weights.
            trust: let pickles and TorchScript among `weights` be loaded; those of official repositories always are.
        """
        check_kind(name_or_path, (str, PathLike), "from_pretrained takes a name of `inlay backbones`, or a folder")
        check_kind(profile, (Profile, str, PathLike, type(None)), "from_pretrained takes a Profile, or the path of one")
        device = pick_device(device)
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise ConfigError(f"dtype is a floating point type such as torch.bfloat16; got {dtype!r}", about="dtype")
        given = Profile.load(Path(profile)) if isinstance(profile, str | PathLike) else profile
        name, folder = resolve(str(name_or_path)), Path(name_or_path)
        if folder.is_dir() and not is_saved_model(folder):
            name, weights = "mini", folder / "mini.safetensors"
        else:
            folder = Path(weights) if weights and Path(weights).is_dir() else WEIGHTS
        where = str(weights) if weights else None
        backbone: Backbone = load_backbone(name, weights=where, device=device, dtype=dtype, trust=trust)
        spec = backbone.spec
        folders = [folder] if folder == WEIGHTS else [folder, WEIGHTS]  # ours may fill latents of others' weights
        filler = Filler.load(folders, name, spec.weight_hash, default=fill, device=device, dtype=dtype)
        if given is not None and given.weight_hash != spec.weight_hash:
            raise ConfigError(
                f"the profile is of {given.backbone} with weights {given.weight_hash or 'unknown'}, not of {spec.name} "
                f"with {spec.weight_hash}; calibrate this backbone",
                about="profile",
            )
        found = given or find_profile(folders, name, spec.weight_hash)
        return cls(backbone, profile=found, filler=filler, device=device, dtype=dtype)

    @overload  # a str is a sequence of str, and still one source
    def encode(  # type: ignore[overload-overlap]
        self,
        source: Path_ | Video | Tensor | NDArray[np.uint8] | NDArray[np.float32],
        *,
        tau: float | None = ...,
        keep: float | None = ...,
        tokens: int | None = ...,
        bits: float | None = ...,
        psnr: float | None = ...,
        exact: bool = ...,
        mode: Mode = ...,
        criterion: Criterion = ...,
        reference: Reference = ...,
        precision: Precision = ...,
        step: Step | float | None = ...,
        scale: Scale = ...,
        key_slots: KeySlots = ...,
        second_look: bool = ...,
        size: str = ...,
        fill: str | None = ...,
        chunk_frames: int = ...,
        key_seconds: float = ...,
        cuts: bool = ...,
        noise: bool = ...,
        axes: AxisOrder = ...,
        fps: float | Fraction = ...,
    ) -> Tokens: ...

    @overload
    def encode(
        self,
        source: Sequence[Source],
        *,
        tau: float | None = ...,
        keep: float | None = ...,
        tokens: int | None = ...,
        bits: float | None = ...,
        psnr: float | None = ...,
        exact: bool = ...,
        mode: Mode = ...,
        criterion: Criterion = ...,
        reference: Reference = ...,
        precision: Precision = ...,
        step: Step | float | None = ...,
        scale: Scale = ...,
        key_slots: KeySlots = ...,
        second_look: bool = ...,
        size: str = ...,
        fill: str | None = ...,
        chunk_frames: int = ...,
        key_seconds: float = ...,
        cuts: bool = ...,
        noise: bool = ...,
        axes: AxisOrder = ...,
        fps: float | Fraction = ...,
    ) -> list[Tokens]: ...

    def encode(
        self,
        source: Source | Sequence[Source],
        *,
        tau: float | None = None,
        keep: float | None = None,
        tokens: int | None = None,
        bits: float | None = None,
        psnr: float | None = None,
        exact: bool = False,
        mode: Mode = "auto",
        criterion: Criterion = "latent-l1",
        reference: Reference = "last-kept",
        precision: Precision = "q8",
        step: Step | float | None = None,
        scale: Scale = "auto",
        key_slots: KeySlots = "auto",
        second_look: bool = False,
        size: str = "keep",
        fill: str | None = None,
        chunk_frames: int = CLIP_FRAMES,
        key_seconds: float = 10.0,
        cuts: bool = True,
        noise: bool = False,
        axes: AxisOrder = "THWC",
        fps: float | Fraction = 24,
        **unknown: object,
    ) -> Tokens | list[Tokens]:
        """Turn a video into tokens, as `inlay encode` does; a list of videos into a list, batched where it pays.

        Give at most one of `tau`, `keep`, `tokens`, `bits`, `psnr`; none of them: the backbone's calibrated tau.

        Args:
            source: a path, a `Video`, or frames as a uint8 or float tensor or array (floats in [-1, 1]).
            tau: keep a cell that changed by at least this.
            keep: keep at most this share of the cells; `exact` makes it exactly that share.
            tokens: keep exactly this many cells.
            bits: spend at most this many bits a pixel, container included.
            psnr: spend the fewest bits found that reach this many decibels.
            mode: what a chunk knows of the one before; "clips" is the paper's setting, every 33 frames on their own.
            criterion: how change is measured.
            reference: what a cell is compared with.
            precision: how values are stored when the tokens are saved.
            step: how coarsely q8 rounds them, in grey levels of the picture, or by name; the profile's own by default.
            scale: encode a smaller picture, which comes back enlarged; `bits` and `psnr` choose by themselves.
            size: resize and crop a file as it is read, as `inlay encode --size` takes it; files only.
            key_slots: "thin" drops cells of key slots, too, where their neighbours tell them; `keep` and `tokens` do so
                by themselves where calibration found it better.
            second_look: fill once while encoding, and keep cells that the fill gets wrong: better for the same number
                of tokens, slower to encode.
            fill: the fill that a saved file suggests to whoever decodes it.
            chunk_frames: frames encoded together.
            key_seconds: longest time between key chunks; 0 for no limit.
            cuts: begin a key chunk at every scene cut.
            noise: do not spend tokens on sensor noise.
            axes: the order of the axes where `source` is a tensor or array.
            fps: its frame rate; a file and a `Video` have their own.
        """
        _refuse(unknown)
        budget = Budget(tau=tau, keep=keep, tokens=tokens, bits=bits, psnr=psnr, exact=exact)
        config = EncodeConfig(
            mode=mode,
            criterion=criterion,
            reference=reference,
            precision=precision,
            step=step,
            scale=scale,
            key_slots=key_slots,
            second_look=second_look,
            fill=fill,
            chunk_frames=chunk_frames,
            key_seconds=key_seconds,
            cuts=cuts,
            noise=noise,
        )
        read = partial(_pieces, size=size, axes=axes, fps=frame_rate(fps))
        if isinstance(source, str | PathLike | Video | Tensor | np.ndarray):
            return self._encode_one(read, source, config, budget)
        if not isinstance(source, Sequence) or isinstance(source, bytes | bytearray | memoryview):
            raise UsageError(f"encode takes {SOURCES}, or a list of these; got {type(source).__name__}")
        if budget.kind == "psnr":
            return [self._encode_one(read, each, config, budget) for each in source]
        return self._encode_list(read, source, config, budget)

    def _encode_one(self, read: Read, source: Source, config: EncodeConfig, budget: Budget) -> Tokens:
        encoder = VideoEncoder(self, config, budget=budget, original=lambda: read(source))
        return Tokens.join(encoder.encode(read(source)))

    def _encode_list(self, read: Read, sources: Sequence[Source], config: EncodeConfig, budget: Budget) -> list[Tokens]:
        parts: list[list[Tokens]] = [[] for _ in sources]
        for first in range(0, len(sources), self.batch):
            group = [read(source) for source in sources[first : first + self.batch]]
            for number, chunk in encode_videos(self, group, config, budget=budget):
                if isinstance(chunk, Exception):
                    raise chunk
                parts[first + number].append(chunk)
        return [Tokens.join(chunks) for chunks in parts]

    def fill(self, tokens: Tokens, *, fill: str | None = None) -> Tensor:
        """Dense latents [1, C, T, H, W], in place of the backbone's own: kept cells as stored, the rest filled in.

        Args:
            fill: "hold", "linear", or a LIT at hand; the tokenizer's default otherwise.
        """
        check_kind(tokens, Tokens, "fill takes Tokens, as encode and inlay.open return them")
        self.check(tokens.recipe, tokens.channels)
        decoder = LatentDecoder(self.filler, fill=fill)
        return torch.cat([decoder.push(chunk) for chunk in tokens.chunks()], dim=2)

    def decode(
        self,
        tokens: Tokens | Tensor,
        *,
        fill: str | None = None,
        fps: float | Fraction | None = None,
        size: tuple[int, int] | None = None,
    ) -> Video:
        """The video of tokens, or of latents [1, C, T, H, W] that a generator made.

        Args:
            fill: how the dropped cells of tokens come back.
            fps: the frame rate of latents, 24 by default; tokens know theirs.
            size: (height, width) to crop the video of latents to; tokens know theirs.
        """
        if isinstance(tokens, Tokens):
            if fps is not None or size is not None:
                raise UsageError("tokens know their frame rate and size; fps and size are those of latents")
            return join_videos(list(self.decode_chunks(tokens.chunks(), fill=fill)))
        check_kind(tokens, Tensor, "decode takes Tokens (inlay.open reads a file), or latents as a tensor")
        check_latents(tokens, self.spec)
        if len(tokens) != 1:
            raise UsageError(f"decode takes latents of one video, [1, C, T, H, W]; got {len(tokens)} of them")
        check_shape(bool(tokens.isfinite().all()), "latents hold numbers that are not finite; look at what made them")
        if fill is not None:
            raise UsageError("latents are whole, and a fill is for tokens; give one of the two")
        rate = frame_rate(24 if fps is None else fps)
        x_CTHW = self.decode_latents(tokens.to(self.device, self.dtype))[0]
        height, width = _cropping(size, *x_CTHW.shape[2:])
        return Video.from_pixels(x_CTHW[..., :height, :width], fps=rate)

    def decode_chunks(self, chunks: Iterable[Tokens], *, fill: str | None = None) -> Iterator[Video]:
        """One `Video` for each chunk, with memory for one at a time."""
        return Decoder(self, fill=fill).decode(chunks)


def _pieces(source: Source, *, size: str, axes: AxisOrder, fps: Fraction) -> Iterator[Video]:
    """The frames of a source, in pieces of at most 33."""
    if isinstance(source, str | PathLike):
        from inlay.video.reader import open_video  # PyAV is loaded when a file is opened

        with open_video(source, size=size) as reader:
            yield from reader.chunks(CLIP_FRAMES)
    elif size != "keep":
        raise ConfigError("size is that of files as they are read; resize frames before", about="size")
    elif isinstance(source, Video):
        yield source
    elif isinstance(source, Tensor | np.ndarray):
        yield from_array(source, axes=axes, fps=fps)
    else:
        raise UsageError(f"encode takes {SOURCES}; got {type(source).__name__}")


def _cropping(size: tuple[int, int] | None, height: int, width: int) -> tuple[int, int]:
    """(height, width) to crop to, checked."""
    if size is None:
        return height, width
    fits = isinstance(size, tuple | list) and len(size) == 2 and all(isinstance(n, int) for n in size)
    if not fits or not (1 <= size[0] <= height and 1 <= size[1] <= width):
        raise UsageError(f"size is (height, width) to crop {height} x {width} pixels to; got {size!r}")
    return size


def _refuse(unknown: dict[str, object]) -> None:
    if unknown:
        name = next(iter(unknown))
        known = [key for key in Tokenizer.encode.__annotations__ if key not in ("source", "return", "unknown")]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"encode has no argument {name!r}{hint} (it takes: {', '.join(known)})")


def find_profile(folders: Sequence[Path], name: str, weight_hash: str) -> Profile | None:
    """The first profile that is of these weights, else the paper's tau for this backbone, else none."""
    for path in beside(folders, name, "profile.json"):
        if path.is_file() and (profile := Profile.load(path)).weight_hash == weight_hash:
            return profile
    tau = default_tau(name)
    return None if tau is None else Profile(backbone=name, weight_hash=weight_hash, tau=tau, data="the paper")


def pick_device(device: torch.device | str) -> torch.device:
    """`auto` takes CUDA, then MPS, then the CPU; a device that is not here is refused."""
    if str(device) == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"{device!r} is not a device; choose auto, cpu, cuda or mps", about="device") from error
    here = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not here.get(chosen.type, False):
        raise ConfigError(f"device {device!r} is not available on this machine; choose auto or cpu", about="device")
    return chosen
