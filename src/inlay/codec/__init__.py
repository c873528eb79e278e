# SPDX-License-Identifier: Apache-2.0
"""The codec: frames to tokens and back, as they come; chunks, carried state, scene cuts, budgets, seeking.

This is the only place where video, backbone, masking, fill and container are joined.
"""

from inlay.codec.check import check_file, verify
from inlay.codec.choose import Chooser
from inlay.codec.config import (
    AUTO,
    CLIP_FRAMES,
    MODES,
    EncodeConfig,
    continues,
    mode_of,
    paper_clips,
    paper_stream,
    slot_of_frame,
    training_cache,
)
from inlay.codec.curve import KeepCurve, keep_curve
from inlay.codec.decoder import Decoder, LatentDecoder
from inlay.codec.encoder import Encoder
from inlay.codec.files import budget_of_pipe, encode_file, keep_part, with_times
from inlay.codec.gather import gather
from inlay.codec.latents import LatentChunk, LatentEncoder, encode_clip
from inlay.codec.parts import CPU_BATCH, GPU_BATCH, Parts
from inlay.codec.seek import Cutting, cutting, decode_part
from inlay.codec.sizes import SizedVideo, sizes_for
from inlay.codec.solve import SolvedVideo, WholeVideo
from inlay.codec.watch import Watch
from inlay.codec.whole import BudgetReport, VideoEncoder, encode_groups, encode_videos

__all__ = [
    "AUTO",
    "CLIP_FRAMES",
    "CPU_BATCH",
    "GPU_BATCH",
    "MODES",
    "BudgetReport",
    "Chooser",
    "Cutting",
    "Decoder",
    "EncodeConfig",
    "Encoder",
    "KeepCurve",
    "LatentChunk",
    "LatentDecoder",
    "LatentEncoder",
    "Parts",
    "SizedVideo",
    "SolvedVideo",
    "VideoEncoder",
    "Watch",
    "WholeVideo",
    "budget_of_pipe",
    "check_file",
    "continues",
    "cutting",
    "decode_part",
    "encode_clip",
    "encode_file",
    "encode_groups",
    "encode_videos",
    "gather",
    "keep_curve",
    "keep_part",
    "mode_of",
    "paper_clips",
    "paper_stream",
    "sizes_for",
    "slot_of_frame",
    "training_cache",
    "verify",
    "with_times",
]
