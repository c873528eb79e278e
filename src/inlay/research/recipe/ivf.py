# SPDX-License-Identifier: Apache-2.0
"""Decode AV1 with the `dav1d` program into planar frames: for machines that have no video library."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.errors import MissingError, ShapeError, VideoError, pick
from inlay.types import describe

MATRICES = {"bt601": (0.299, 0.114), "bt709": (0.2126, 0.0722), "bt2020": (0.2627, 0.0593)}  # red and blue in luma
CODES = {1: "bt709", 9: "bt2020", 10: "bt2020"}  # the numbers streams use (ISO 23091-2); all others mean BT.601 here
IVF_CLOCK = 1_000_000_000  # ticks a second; ivf counts whole ticks, and rates such as 30000/1001 need fine ones


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PlanarVideo:
    """8-bit 4:2:0 frames as a decoder makes them: half the memory of RGB, and nothing rounded twice."""

    y: Tensor  # [T, H, W] uint8
    u: Tensor  # [T, ceil(H/2), ceil(W/2)]
    v: Tensor
    matrix: str = "bt601"

    def __post_init__(self) -> None:
        pick("colour matrix", self.matrix, MATRICES)
        t, h, w = self.y.shape
        want = (t, (h + 1) // 2, (w + 1) // 2)
        if tuple(self.u.shape) != want or tuple(self.v.shape) != want:
            raise ShapeError(f"luma {describe(self.y)} needs chroma {list(want)}; got {describe(self.u)}")

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        return f"PlanarVideo({describe(self.y)})"

    def to(self, device: torch.device | str) -> PlanarVideo:
        return replace(self, y=self.y.to(device), u=self.u.to(device), v=self.v.to(device))


def decode_ivf(paths: Sequence[str | Path], *, program: str = "dav1d", processes: int = 16) -> list[PlanarVideo]:
    """Decode each file, `processes` side by side; one thread each, since whole files are the better unit of work."""
    with ThreadPoolExecutor(max_workers=processes) as pool:
        return list(pool.map(lambda path: _decode_one(Path(path), program), paths))


def _decode_one(path: Path, program: str) -> PlanarVideo:
    if not path.is_file():
        raise VideoError(f"{path}: no such file")
    command = [program, "--quiet", "--threads", "1", "-i", str(path), "--muxer", "yuv4mpeg2", "-o", "-"]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except OSError as error:
        raise MissingError(f"cannot run {program!r} ({error.strerror}); install dav1d or name its path") from error
    if done.returncode:
        reason = (done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"])[-1]
        raise VideoError(f"{path}: {program} cannot decode it: {reason}")
    with path.open("rb") as file:
        header = file.read(32)
    return replace(parse_y4m(done.stdout, name=str(path)), matrix=CODES.get(header[28], "bt601"))


def parse_y4m(data: bytes, *, name: str = "stream") -> PlanarVideo:
    """The frames of a YUV4MPEG2 stream, 8-bit 4:2:0 only."""
    head, _, body = data.partition(b"\n")
    words = head.decode("ascii", errors="replace").split()
    if not words or words[0] != "YUV4MPEG2":
        raise VideoError(f"{name}: not a YUV4MPEG2 stream; it begins with {head[:16]!r}")
    tags = {w[0]: w[1:] for w in words[1:]}
    if tags.get("C", "420") not in ("420", "420jpeg", "420mpeg2", "420paldv"):
        raise VideoError(f"{name}: colour layout {tags['C']} is not supported; only 8-bit 4:2:0 is")
    width, height = int(tags["W"]), int(tags["H"])
    luma, chroma = width * height, ((width + 1) // 2) * ((height + 1) // 2)
    size = len(b"FRAME\n") + luma + 2 * chroma
    frames, rest = divmod(len(body), size)
    if rest or not frames:
        raise VideoError(f"{name}: {len(body)} bytes are not a whole number of {width}x{height} frames")
    rows = torch.frombuffer(bytearray(body), dtype=torch.uint8).view(frames, size)[:, len(b"FRAME\n") :]
    y, u, v = rows.split([luma, chroma, chroma], dim=1)
    half = (frames, (height + 1) // 2, (width + 1) // 2)
    return PlanarVideo(y=y.reshape(frames, height, width), u=u.reshape(half), v=v.reshape(half))


def i420_to_rgb(
    y_THW: Tensor, u_THW: Tensor, v_THW: Tensor, *, matrix: str = "bt601", chroma: str = "bicubic"
) -> Tensor:
    """[T, 3, H, W] in [-1, 1], not rounded to whole levels: limited range, chroma upsampled by one of CHROMA."""
    kr, kb = MATRICES[matrix]
    kg = 1 - kr - kb
    h, w = y_THW.shape[1:]
    chroma_T2HW = pick("chroma", chroma, CHROMA)(torch.stack([u_THW, v_THW], dim=1).float())[..., :h, :w]
    luma = (y_THW.float() - 16) * (2 / 219)  # [-1, 1] is two units wide
    cb, cr = ((chroma_T2HW - 128) * (2 / 224)).unbind(1)
    red, blue = luma + (2 - 2 * kr) * cr, luma + (2 - 2 * kb) * cb
    green = luma - (kb * (2 - 2 * kb) / kg) * cb - (kr * (2 - 2 * kr) / kg) * cr
    return (torch.stack([red, green, blue], dim=1) - 1).clamp_(-1, 1)


def bicubic(chroma_TCHW: Tensor) -> Tensor:
    """Twice the size as swscale's careful path makes it, which inlay.video uses."""
    n, m = chroma_TCHW.shape[-2:]
    padded = F.pad(chroma_TCHW, (0, 0, 2, 2), mode="replicate")
    rows = [padded[..., i : i + n, :] for i in range(5)]  # samples lie between two rows: a quarter from each
    upper, lower = _weigh(rows[:4], CUBIC[0.75]), _weigh(rows[1:], CUBIC[0.25])
    tall = torch.stack([upper, lower], dim=-2).flatten(-3, -2)
    padded = F.pad(tall, (1, 2, 0, 0), mode="replicate")
    between = _weigh([padded[..., i : i + m] for i in range(4)], CUBIC[0.5])  # and on every second column
    return torch.stack([tall, between], dim=-1).flatten(-2)


def nearest(chroma_TCHW: Tensor) -> Tensor:
    """Twice the size, every sample four times: what most programs do by default."""
    return chroma_TCHW.repeat_interleave(2, dim=-2).repeat_interleave(2, dim=-1)


CHROMA: dict[str, Callable[[Tensor], Tensor]] = {"bicubic": bicubic, "nearest": nearest}


def _cubic(distance: float, a: float = -0.6) -> float:
    """Keys' kernel with swscale's own constant."""
    d = abs(distance)
    if d < 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * (d**3 - 5 * d**2 + 8 * d - 4)


CUBIC = {at: [_cubic(at - tap) for tap in (-1, 0, 1, 2)] for at in (0.25, 0.5, 0.75)}  # weights of four neighbours


def _weigh(parts: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    total = parts[0] * weights[0]
    for part, weight in zip(parts[1:], weights[1:], strict=True):
        total = total.add_(part, alpha=weight)
    return total


def remux_to_ivf(source: str | Path, target: str | Path, *, frames: int | None = None) -> Path:
    """Copy an AV1 stream, or its first `frames`, into an .ivf file, packet by packet: nothing is encoded again.

    The four spare bytes of the ivf header carry the number of the colour matrix, which dav1d does not hand on.
    """
    from inlay.video.source import pyav

    av = pyav()
    path = Path(target)
    with av.open(str(source)) as container:
        if not container.streams.video:
            raise VideoError(f"{source}: has no video stream")
        stream = container.streams.video[0]
        if stream.codec_context.name not in ("av1", "libdav1d"):
            raise VideoError(f"{source}: its codec is {stream.codec_context.name}, and only AV1 fits into .ivf here")
        packets = [p for p in container.demux(stream) if p.size][:frames]
        base = Fraction(stream.time_base or Fraction(1, 1000))
        extra = bytes(stream.codec_context.extradata or b"")
        header = extra[4:] if extra[:1] == b"\x81" else b""  # the OBUs of the mp4's `av1C` box
        body = b"".join(
            struct.pack("<IQ", len(data), round((p.pts or 0) * base * IVF_CLOCK)) + data
            for i, p in enumerate(packets)
            for data in [_temporal_unit(bytes(p), header if i == 0 else b"")]
        )
        size = struct.pack("<HHII", stream.width, stream.height, IVF_CLOCK, 1)
        count = struct.pack("<II", len(packets), int(stream.codec_context.colorspace))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"DKIF" + struct.pack("<HH4s", 0, 32, b"AV01") + size + count + body)
    return path


def _temporal_unit(data: bytes, header: bytes) -> bytes:
    """mp4 drops the delimiter that opens each unit; a bare stream needs it, and the sequence header once."""
    if data[:2] == b"\x12\x00":
        return data
    missing = b"" if not header or data[:1] == header[:1] else header
    return b"\x12\x00" + missing + data
