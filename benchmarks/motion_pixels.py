# SPDX-License-Identifier: Apache-2.0
"""What the coder would gain if both sides decoded, moved the picture and encoded it again: bits a number, all kept.

    python benchmarks/motion_pixels.py VIDEO... --out benchmarks/motion_pixels_cpu_DATE.json

For each slot the last frame that was decoded is moved block by block, by one vector a block, to where the four frames
of the slot are (the encoder's own frames choose it), and these four are encoded after what was decoded before. Whole
numbers of steps are guessed by least squares over each clip, channel by channel: from the neighbours that the coder has
(as motion_cells.py counts them), from these and the latents of the frame as it stands, and from these and the latents
of the moved one. Bits are those of a wide bell curve, not of the coder; a vector is counted with one bit for each of
its possible halves. No decoder works like this: it is a bound for what prediction along motion is worth.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from motion_cells import BEFORE, SPACE, cost, left, shifted
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))  # runs from a checkout, nothing installed

from inlay.backbones import State
from inlay.codec import encode_clip
from inlay.masking.steps import channel_steps
from inlay.research.studies.datasets import ClipSpec, read_any
from inlay.tokenizer import Tokenizer

SPEEDS = tuple(range(-12, 13))  # pixels a frame, each way
BLOCK = 16  # pixels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("videos", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=float, nargs="+", default=[2.0, 4.0])
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    tokenizer = Tokenizer.from_pretrained("mini", device="cpu")
    assert tokenizer.profile is not None
    rows = []
    for path in args.videos:
        video = read_any(path, ClipSpec(size=256, frames=33))
        z_CTHW, x_CTHW = encode_clip(tokenizer, video).z_BCTHW[0].float(), tokenizer.pixels([video])[0]
        for step in args.steps:
            steps = torch.tensor(channel_steps(tokenizer.profile.gains, step)).view(-1, 1, 1, 1)
            q_CTHW = (z_CTHW / steps).round()
            stands, moves, vectors = again(tokenizer, q_CTHW * steps, x_CTHW)
            rows.append({"clip": path.stem, "step": step} | measured(q_CTHW, stands / steps, moves / steps, vectors))
            print(rows[-1], flush=True)
    record = {"command": "python benchmarks/motion_pixels.py VIDEO...", "weights": tokenizer.spec.weight_hash}
    args.out.write_text(json.dumps(record | {"rows": rows}, indent=1) + "\n")


def measured(q_CTHW: Tensor, stands_CTHW: Tensor, moves_CTHW: Tensor, vectors: float) -> dict[str, float]:
    """Bits a number with each guess, and the share that is saved with the vectors counted."""
    now, before = q_CTHW[:, 1:], q_CTHW[:, :-1]
    known = [shifted(now, *place) for place in SPACE] + [shifted(before, *place) for place in BEFORE]
    guesses = {"space and time": known, "as it stands": [*known, stands_CTHW], "moved": [*known, moves_CTHW]}
    bits = {name: cost(left(now, given)).mean().item() for name, given in guesses.items()}
    bits["vectors"] = vectors / q_CTHW[:, 0].numel()
    bits["saved, standing"] = 1 - bits["as it stands"] / bits["space and time"]
    bits["saved, moved"] = 1 - (bits["moved"] + bits["vectors"]) / bits["space and time"]
    return {name: round(value, 4) for name, value in bits.items()}


def again(tokenizer: Tokenizer, z_CTHW: Tensor, x_CTHW: Tensor) -> tuple[Tensor, Tensor, float]:
    """Latents of slots 1, 2, ... as both sides would foresee them: of the last frame, of that frame moved; and the bits
    that the vectors of a slot take."""
    seen, decoded = tokenizer.decode_next(z_CTHW[None, :, :1], None)
    state: State
    _, state = tokenizer.encode_next(seen[:, :, :1], None)
    stands, moves, spent = [], [], 0.0
    for t in range(1, z_CTHW.shape[1]):
        frames = x_CTHW[:, 4 * t - 3 : 4 * t + 1]
        last = seen[0, :, -1]
        moved, bits = followed(last, frames)
        spent += bits
        for found, guess in ((stands, last[:, None].expand_as(frames)), (moves, moved)):
            found.append(tokenizer.encode_next(guess[None].contiguous(), state)[0][0].float())
        seen, decoded = tokenizer.decode_next(z_CTHW[None, :, t : t + 1], decoded)
        _, state = tokenizer.encode_next(seen.clamp(-1, 1), state)
    return torch.cat(stands, dim=1), torch.cat(moves, dim=1), spent / len(stands)


def followed(last_CHW: Tensor, frames_CTHW: Tensor) -> tuple[Tensor, float]:
    """The last frame, each block moved evenly along the vector that fits the frames best, and the bits of vectors."""
    T, H, W = frames_CTHW.shape[1:]
    reach = T * max(SPEEDS)
    padded = F.pad(last_CHW, (reach, reach, reach, reach), mode="replicate")
    rows, columns = H // BLOCK, W // BLOCK
    least, best = torch.full((rows, columns), math.inf), torch.zeros_like(frames_CTHW)
    still = torch.ones(rows, columns, dtype=torch.bool)
    for dy, dx in sorted(((y, x) for y in SPEEDS for x in SPEEDS), key=any):
        places = [(reach - dy * (t + 1), reach - dx * (t + 1)) for t in range(T)]
        there = torch.stack([padded[:, y : y + H, x : x + W] for y, x in places], dim=1)
        apart = (there - frames_CTHW).abs().sum((0, 1)).view(rows, BLOCK, columns, BLOCK).sum((1, 3))
        better = apart < (least if any((dy, dx)) else math.inf)
        least = torch.where(better, apart, least)
        still &= ~(better & any((dy, dx)))
        best = torch.where(better.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1), there, best)
    bits = 2 * math.log2(len(SPEEDS)) * float((~still).sum()) + still.numel()
    return best, bits


if __name__ == "__main__":
    main()
