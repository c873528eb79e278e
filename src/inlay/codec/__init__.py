# SPDX-License-Identifier: Apache-2.0
"""Long video: frames in and tokens out as they come, and back; caches between chunks, scene cuts, budgets, seeking."""

from inlay.codec.config import AUTO, MODES, StreamConfig, continues, mode_of, paper, slot_of_frame
from inlay.codec.curve import KeepCurve, keep_curve, traced
from inlay.codec.cuts import CutFinder
from inlay.codec.decoder import StreamDecoder
from inlay.codec.encoder import StreamEncoder
from inlay.codec.latents import LatentChunk, LatentStream
from inlay.codec.seek import Cutting, chunks_of, cutting
from inlay.codec.solve import Plan, WholeVideo

__all__ = [
    "AUTO",
    "MODES",
    "CutFinder",
    "Cutting",
    "KeepCurve",
    "LatentChunk",
    "LatentStream",
    "Plan",
    "StreamConfig",
    "StreamDecoder",
    "StreamEncoder",
    "WholeVideo",
    "chunks_of",
    "continues",
    "cutting",
    "keep_curve",
    "mode_of",
    "paper",
    "slot_of_frame",
    "traced",
]
