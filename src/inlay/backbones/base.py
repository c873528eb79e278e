# SPDX-License-Identifier: Apache-2.0
"""What every backbone promises: a truthful spec, pixels to latents, latents to pixels, always the same way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from torch import Tensor

from inlay.errors import ConfigError, ShapeError
from inlay.types import describe
from inlay.weightfile import hash_weights

State: TypeAlias = "Tensor | list[State] | tuple[State, ...] | None"  # what a network carries from chunk to chunk


@dataclass(frozen=True, kw_only=True)
class BackboneSpec:
    """The facts of a backbone. Whatever else reads them; nobody assumes 16 channels or 4x8x8."""

    name: str
    channels: int
    time_stride: int
    space_stride: int
    causal: bool  # slot t depends on frames up to its own last one only
    stateful: bool  # the causal state can be carried from chunk to chunk
    latent_mean: tuple[float, ...] = field(repr=False)
    latent_std: tuple[float, ...] = field(repr=False)
    weight_hash: str
    parameters: int
    licence: str
    first_slot_frames: int = 1  # slot 0 sees one frame, later slots see time_stride

    def __post_init__(self) -> None:
        for name in ("latent_mean", "latent_std"):
            if len(getattr(self, name)) != self.channels:
                raise ConfigError(f"{name} needs one number a channel: {self.channels}, not {len(getattr(self, name))}")
        if min(self.latent_std) <= 0:
            raise ConfigError(f"latent_std must be positive; got {min(self.latent_std)}")

    def slots(self, frames: int) -> int:
        """Latent slots that hold `frames` video frames, the last one padded if need be."""
        return 1 + max(0, -(-(frames - self.first_slot_frames) // self.time_stride))

    def frames(self, slots: int) -> int:
        """Video frames that `slots` latent slots decode to."""
        return self.first_slot_frames + (slots - 1) * self.time_stride

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """(rows, columns) of the latent grid, the border cells padded if need be."""
        return -(-height // self.space_stride), -(-width // self.space_stride)


def spec_of(
    network: Any, *, channels: int, strides: tuple[int, int], causal: bool, licence: str, stateful: bool = False,
    latent_mean: tuple[float, ...] | None = None, latent_std: tuple[float, ...] | float = 1.0,
) -> BackboneSpec:  # fmt: skip
    """The spec of a torch network that has a `name` and a `weight_hash`, which is made when it is first asked for.

    `strides` are time and space; latents are centred unless a mean is given; one number is the spread of all channels.
    """
    if not network.weight_hash:
        network.weight_hash = hash_weights(network.state_dict())
    spread = latent_std if isinstance(latent_std, tuple) else (latent_std,) * channels
    return BackboneSpec(
        name=network.name, channels=channels, time_stride=strides[0], space_stride=strides[1], causal=causal,
        stateful=stateful, latent_mean=latent_mean or (0.0,) * channels, latent_std=spread,
        weight_hash=network.weight_hash, parameters=sum(p.numel() for p in network.parameters()), licence=licence,
    )  # fmt: skip


@runtime_checkable
class Backbone(Protocol):
    """A frozen video autoencoder. Both ways are deterministic: posterior mean, never a sample."""

    @property
    def spec(self) -> BackboneSpec: ...

    def encode(self, x_BCTHW: Tensor) -> Tensor:
        """Pixels in [-1, 1] to latents; T = first + k * stride, H and W multiples of the space stride."""
        ...

    def decode(self, z_BCTHW: Tensor) -> Tensor:
        """Latents to pixels, not yet clamped."""
        ...

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """Move to a device or dtype, as `torch.nn.Module.to` does."""
        ...


@runtime_checkable
class StatefulBackbone(Backbone, Protocol):
    """A causal backbone whose state can be carried from chunk to chunk: the result is that of the whole video."""

    def encode_next(self, x_BCTHW: Tensor, state: State) -> tuple[Tensor, State]:
        """Latents of the next chunk and the state after it; without a state the chunk begins a video."""
        ...

    def decode_next(self, z_BCTHW: Tensor, state: State) -> tuple[Tensor, State]:
        """Pixels of the next chunk and the state after it; without a state the chunk begins a video."""
        ...


def check_pixels(x_BCTHW: Tensor, spec: BackboneSpec, *, continued: bool = False) -> None:
    """Refuse pixels this backbone cannot take, with the shape it would take."""
    first = 0 if continued else spec.first_slot_frames
    rule = f"{first} + {spec.time_stride}k" if first else f"{spec.time_stride}k"
    ok = x_BCTHW.ndim == 5 and x_BCTHW.shape[1] == 3 and x_BCTHW.shape[2] >= max(first, 1)
    ok = ok and (x_BCTHW.shape[2] - first) % spec.time_stride == 0
    ok = ok and min(x_BCTHW.shape[3:]) > 0 and all(n % spec.space_stride == 0 for n in x_BCTHW.shape[3:])
    if not ok:
        raise ShapeError(
            f"{spec.name} takes pixels [B, 3, T, H, W] with T = {rule} and H, W multiples of {spec.space_stride}; "
            f"got {describe(x_BCTHW)}"
        )


def check_latents(z_BCTHW: Tensor, spec: BackboneSpec) -> None:
    """Refuse latents of another backbone."""
    if z_BCTHW.ndim != 5 or z_BCTHW.shape[1] != spec.channels or 0 in z_BCTHW.shape:
        raise ShapeError(f"{spec.name} decodes latents [B, {spec.channels}, T, H, W]; got {describe(z_BCTHW)}")
