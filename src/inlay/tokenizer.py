# SPDX-License-Identifier: Apache-2.0
"""The five rooms in order: video, backbone, masking, tokens, fill, and back. Read this file first.

encode   Video ─► pixels ─► pad ─► backbone.encode ─► keep_mask ─► gather ─► Tokens
decode   Tokens ─► scatter ─► fill ─► backbone.decode ─► crop ─► Video
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.backbones import WEIGHTS, Backbone, BackboneSpec, default_tau, is_saved_model, load_backbone, resolve
from inlay.container.tokens import Tokens
from inlay.errors import ConfigError, MissingError, ShapeError, pick
from inlay.fill import FILLS, Fill, Lit, load_lit
from inlay.kernels import Replay, compile_halves
from inlay.masking import MaskConfig, Profile, keep_mask
from inlay.types import Recipe, Span, VideoInfo
from inlay.video.frames import Video

if TYPE_CHECKING:
    from inlay.codec import StreamDecoder

CLIP_FRAMES = 33  # frames encoded together; a longer video is a row of such chunks
LITS = {"lit": "lit", "lit-paper": "lit-paper"}  # fill name -> suffix of the weight file beside the backbone's


class Tokenizer:
    """A frozen backbone, a mask and a fill. `encode` and `decode` are inverse up to what was dropped."""

    def __init__(
        self,
        backbone: Backbone,
        *,
        profile: Profile | None = None,
        lits: dict[str, Lit] | None = None,
        fill: str | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.backbone = backbone
        self.spec: BackboneSpec = backbone.spec
        self.profile = profile
        self.lits = lits or {}
        self.device, self.dtype = torch.device(device), dtype
        self.default_fill = fill or ("lit" if "lit" in self.lits else "hold")
        self.find_fill(self.default_fill)
        compile_halves(backbone, self.device)
        self.run_encode: Callable[..., Tensor] = backbone.encode
        self.run_decode: Callable[..., Tensor] = backbone.decode
        if isinstance(backbone, torch.nn.Module):  # what stands in for a network may count calls, or wait for others
            self.run_encode, self.run_decode = Replay(backbone.encode), Replay(backbone.decode)
        self.run_lits = {name: Replay(lit) for name, lit in self.lits.items()}

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | PathLike[str] = "mini",
        *,
        device: torch.device | str = "auto",
        dtype: torch.dtype = torch.float32,
        fill: str | None = None,
        weights: str | PathLike[str] | None = None,
        trust: bool = False,
    ) -> Tokenizer:
        """A backbone by name with the fills and the profile that ship beside it, or a folder of such files.

        `trust` lets pickles and TorchScript among `weights` be loaded; those of official repositories always are.
        """
        device = pick_device(device)
        name, folder = resolve(str(name_or_path)), Path(name_or_path)
        if folder.is_dir() and not is_saved_model(folder):
            name, weights = "mini", folder / "mini.safetensors"
        else:
            folder = Path(weights) if weights and Path(weights).is_dir() else WEIGHTS
        where = str(weights) if weights else None
        backbone = load_backbone(name, weights=where, device=device, dtype=dtype, trust=trust)
        made_for = backbone.spec.weight_hash
        paths = {fill: folder / f"{name}.{suffix}.safetensors" for fill, suffix in LITS.items()}
        found = {fill: load_lit(path) for fill, path in paths.items() if path.is_file()}
        lits = {
            fill: lit.to(device=device, dtype=dtype)
            for fill, lit in found.items()
            if lit.backbone_hash in ("", made_for)  # a LIT of other weights would inlay noise
        }
        profile = find_profile(folder / f"{name}.profile.json", name, made_for)
        return cls(backbone, profile=profile, lits=lits, fill=fill, device=device, dtype=dtype)

    # --- encode -----------------------------------------------------------------------------------------------------

    def encode(
        self, source: Video | str | PathLike[str] | Sequence[Video | str | PathLike[str]], **options: Any
    ) -> Any:
        """`Tokens` of a video or a path, a list of them for a list; options as for `recipe` (tau, precision …)."""
        if isinstance(source, Video | str | PathLike):
            return Tokens.join(list(self.encode_chunks(_open(source), **options)))
        videos = [_load(s) for s in source]
        groups: dict[tuple[int, ...], list[int]] = {}
        for i, video in enumerate(videos):
            groups.setdefault(tuple(video.frames.shape), []).append(i)
        done: dict[int, Tokens] = {}
        for members in groups.values():  # clips of one shape go through the network together
            rows = zip(*(_cut([videos[i]]) for i in members), strict=True)
            parts = [self.encode_batch(list(row), self.recipe(**options)) for row in rows]
            done |= {i: Tokens.join(list(chunks)) for i, chunks in zip(members, zip(*parts, strict=True), strict=True)}
        return [done[i] for i in range(len(videos))]

    def encode_chunks(self, videos: Iterable[Video], **options: Any) -> Iterator[Tokens]:
        """One `Tokens` for each chunk of at most 33 frames, as the pieces of a long video come in."""
        recipe = self.recipe(**options)
        for chunk in _cut(videos):
            yield from self.encode_batch([chunk], recipe)

    def encode_batch(self, clips: list[Video], recipe: Recipe) -> list[Tokens]:
        """Clips of one shape, each on its own: one encoder pass, one mask."""
        x_BCTHW = self.pixels(clips)
        z_BCTHW = self.latents(x_BCTHW)
        config = MaskConfig(tau=recipe.tau, criterion=recipe.criterion, reference=recipe.reference)
        keep_BTHW = keep_mask(z_BCTHW, config, x_BCTHW)
        return [
            _gather(z, keep, clip, recipe)
            for z, keep, clip in zip(z_BCTHW.float().cpu(), keep_BTHW.cpu(), clips, strict=True)
        ]

    def recipe(
        self,
        *,
        tau: float | None = None,
        criterion: str = "latent-l1",
        reference: str = "last-kept",
        precision: str = "q8",
        fill: str | None = None,
    ) -> Recipe:
        """How this tokenizer makes tokens; the default tau is the backbone's calibrated one."""
        if tau is None:
            if self.profile is None or criterion != "latent-l1":
                raise ConfigError(f"there is no default tau for {self.spec.name} with {criterion}; give one (--tau)")
            tau = self.profile.tau
        MaskConfig(tau=tau, criterion=criterion, reference=reference)
        return Recipe(
            backbone=self.spec.name,
            weight_hash=self.spec.weight_hash,
            tau=tau,
            criterion=criterion,
            reference=reference,
            precision=precision,
            fill=fill or self.default_fill,
            time_stride=self.spec.time_stride,
            space_stride=self.spec.space_stride,
        )

    def pixels(self, clips: list[Video], *, continued: bool = False) -> Tensor:
        """[B, 3, T, H, W], padded by repetition to what the backbone takes; `continued`: with no first slot."""
        shapes = {tuple(c.frames.shape) for c in clips}
        if len(shapes) != 1:
            raise ShapeError(f"clips of one batch must have one shape; got {sorted(shapes)}")
        frames, height, width, _ = shapes.pop()
        rows, columns = self.spec.grid(height, width)
        stride = self.spec.time_stride
        pad_t = -frames % stride if continued else self.spec.frames(self.spec.slots(frames)) - frames
        pad_h, pad_w = rows * self.spec.space_stride - height, columns * self.spec.space_stride - width
        x_BCTHW = torch.cat([c.pixels(self.device, self.dtype) for c in clips])
        if not (pad_t or pad_h or pad_w):
            return x_BCTHW
        return F.pad(x_BCTHW, (0, pad_w, 0, pad_h, 0, pad_t), mode="replicate")

    @torch.inference_mode()
    def latents(self, x_BCTHW: Tensor) -> Tensor:
        return self.run_encode(x_BCTHW)

    # --- fill and decode --------------------------------------------------------------------------------------------

    def fill(self, tokens: Tokens, fill: str | None = None) -> Tensor:
        """Dense latents, a drop-in for the backbone's own; kept cells as stored, the rest inlaid."""
        decoder = self.stream_decoder(fill)
        return torch.cat([decoder.fill(chunk) for chunk in tokens.chunks()], dim=2)

    def fill_chunk(self, tokens: Tokens, fill: str | None = None) -> Tensor:
        """[1, C, T, H, W] of one chunk that stands alone."""
        z_BCTHW, keep_BTHW = tokens.dense().to(self.device, self.dtype), tokens.mask[None].to(self.device)
        return self.fill_cells(z_BCTHW, keep_BTHW, tokens.recipe.tau, fill)

    @torch.inference_mode()
    def fill_cells(self, z_BCTHW: Tensor, keep_BTHW: Tensor, tau: float, fill: str | None = None) -> Tensor:
        """Dense latents from those of the kept cells."""
        name = fill or self.default_fill
        run = self.find_fill(name)
        if not isinstance(run, Lit):
            return run(z_BCTHW, keep_BTHW)
        tau_B = torch.full((len(z_BCTHW),), tau, dtype=torch.float32, device=z_BCTHW.device)
        return self.run_lits[name](z_BCTHW, keep_BTHW, tau_B)

    def decode(self, tokens: Tokens, fill: str | None = None) -> Video:
        """The video back."""
        parts = list(self.decode_chunks(tokens.chunks(), fill))
        times = [p.seconds for p in parts if p.seconds is not None]
        return Video(
            frames=torch.cat([p.frames for p in parts]), fps=parts[0].fps, seconds=torch.cat(times) if times else None
        )

    def decode_chunks(self, chunks: Iterable[Tokens], fill: str | None = None) -> Iterator[Video]:
        """One `Video` for each chunk, with memory for one at a time."""
        decoder = self.stream_decoder(fill)
        for chunk in chunks:
            yield decoder.push(chunk)

    def stream_decoder(self, fill: str | None = None) -> StreamDecoder:
        """What decodes chunks that may go on from one another."""
        from inlay.codec import StreamDecoder

        return StreamDecoder(self, fill=fill)

    @torch.inference_mode()
    def render(self, z_BCTHW: Tensor, info: VideoInfo, seconds: Tensor | None = None) -> Video:
        """Dense latents of one chunk to frames, cropped to the true size and length."""
        x_CTHW = self.run_decode(z_BCTHW)[0]
        x_CTHW = x_CTHW[:, : info.frames, : info.height, : info.width]
        return Video.from_pixels(x_CTHW, fps=info.fps, seconds=seconds)

    def find_fill(self, name: str) -> Fill | Lit:
        """The fill called `name`; a LIT only where its weights are at hand."""
        if name in LITS and name not in self.lits:
            raise MissingError(
                f"there are no weights for the fill {name!r} with {self.spec.name}; "
                f"use --fill hold, or train one: inlay train lit --backbone {self.spec.name}"
            )
        table: dict[str, Fill | Lit] = {**FILLS, **self.lits}
        return pick("fill", name, table)

    def check(self, tokens: Tokens) -> None:
        """Refuse tokens of another backbone: they would decode to noise."""
        made, here = tokens.recipe, self.spec
        if (made.backbone, made.weight_hash) != (here.name, here.weight_hash):
            raise MissingError(
                f"these tokens were made with {made.backbone} (weights {made.weight_hash}), "
                f"and this is {here.name} (weights {here.weight_hash}); load the weights they were made with"
            )
        if tokens.channels != here.channels:
            raise ShapeError(f"{here.name} has {here.channels} channels, the tokens have {tokens.channels}")

    def with_fill(self, fill: str) -> Tokenizer:
        """The same tokenizer with another default fill."""
        return Tokenizer(
            self.backbone, profile=self.profile, lits=self.lits, fill=fill, device=self.device, dtype=self.dtype
        )


def find_profile(path: Path, name: str, weight_hash: str) -> Profile | None:
    """The profile beside the weights if it is theirs, else the paper's tau for this backbone, else none."""
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
    except RuntimeError as error:
        raise ConfigError(f"{device!r} is not a device; choose auto, cpu, cuda or mps") from error
    here = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not here.get(chosen.type, False):
        raise ConfigError(f"device {device!r} is not available on this machine; choose auto or cpu")
    return chosen


def _gather(z_CTHW: Tensor, keep_THW: Tensor, clip: Video, recipe: Recipe) -> Tokens:
    return Tokens(
        values=z_CTHW.permute(1, 2, 3, 0)[keep_THW],
        mask=keep_THW,
        info=VideoInfo(width=clip.width, height=clip.height, fps=clip.fps, frames=len(clip)),
        recipe=recipe,
        spans=(Span(slots=keep_THW.shape[0], frames=len(clip)),),
        seconds=clip.seconds,
    )


def _cut(videos: Iterable[Video]) -> Iterator[Video]:
    """Any pieces of one video to clips of 33 frames and a rest."""
    held: list[Video] = []
    count = 0
    for piece in videos:
        held.append(piece)
        count += len(piece)
        while count >= CLIP_FRAMES:
            whole = join_videos(held)
            yield whole[:CLIP_FRAMES]
            count -= CLIP_FRAMES
            held = [whole[CLIP_FRAMES:]] if count else []
    if count:
        yield join_videos(held)


def join_videos(parts: list[Video]) -> Video:
    """Pieces of one video as one."""
    if len(parts) == 1:
        return parts[0]
    times = [p.seconds for p in parts if p.seconds is not None]
    return replace(
        parts[0],
        frames=torch.cat([p.frames for p in parts]),
        seconds=torch.cat(times) if len(times) == len(parts) else None,
    )


def _open(source: Video | str | PathLike[str]) -> Iterator[Video]:
    if isinstance(source, Video):
        yield source
        return
    from inlay.video import open_video

    with open_video(source) as reader:
        yield from reader.chunks(CLIP_FRAMES)


def _load(source: Video | str | PathLike[str]) -> Video:
    return source if isinstance(source, Video) else join_videos(list(_open(source)))
