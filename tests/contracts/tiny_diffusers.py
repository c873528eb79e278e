# SPDX-License-Identifier: Apache-2.0
"""Tiny random models of every diffusers class that the adapter knows, saved by diffusers itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

FOUR = (8, 8, 8, 8)
TINY: dict[str, dict[str, Any]] = {
    "AutoencoderKLWan": {"base_dim": 3, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1},
    "AutoencoderKLCogVideoX": {
        "block_out_channels": FOUR, "latent_channels": 4, "layers_per_block": 1, "norm_num_groups": 2,
    },
    "AutoencoderKLLTXVideo": {
        "latent_channels": 8, "block_out_channels": FOUR, "decoder_block_out_channels": FOUR,
        "layers_per_block": (1,) * 5, "decoder_layers_per_block": (1,) * 5, "patch_size": 1,
    },
    "AutoencoderKLHunyuanVideo": {
        "latent_channels": 4, "block_out_channels": FOUR, "layers_per_block": 1, "norm_num_groups": 4,
    },
    "AutoencoderKLMochi": {
        "encoder_block_out_channels": (32,) * 4, "decoder_block_out_channels": (32,) * 4, "latent_channels": 4,
        "layers_per_block": (1,) * 5, "latents_mean": (0.1, 0.2, 0.3, 0.4), "latents_std": (1.0, 2.0, 0.5, 1.0),
    },
    "AutoencoderKLCosmos": {
        "latent_channels": 4, "encoder_block_out_channels": FOUR, "decode_block_out_channels": FOUR,
        "attention_resolutions": (), "num_layers": 1, "latents_mean": [0.1 * i for i in range(8)],
        "latents_std": [1.0 + i for i in range(8)],
    },
    "AutoencoderVidTok": {"ch": 16, "ch_mult": [1, 1, 1, 1], "num_res_blocks": 1},
    "AutoencoderTiny": {
        "encoder_block_out_channels": FOUR, "decoder_block_out_channels": FOUR, "num_encoder_blocks": (1,) * 4,
        "num_decoder_blocks": (1,) * 4, "scaling_factor": 2.0, "shift_factor": 0.25,
    },
    "AutoencoderKL": {
        "block_out_channels": (8, 16, 16, 16), "down_block_types": ("DownEncoderBlock2D",) * 4,
        "up_block_types": ("UpDecoderBlock2D",) * 4, "norm_num_groups": 4, "shift_factor": 0.1, "scaling_factor": 0.5,
    },
}  # fmt: skip
WAN_22 = {  # the parts that set Wan 2.2's autoencoder apart: blocks of pixels, shortcuts, a wider decoder
    "base_dim": 4, "decoder_base_dim": 8, "z_dim": 48, "is_residual": True, "patch_size": 2, "in_channels": 12,
    "out_channels": 12, "scale_factor_spatial": 16, "latents_mean": [0.01 * i for i in range(48)],
    "latents_std": [0.5 + 0.02 * i for i in range(48)],
}  # fmt: skip


def saved(name: str, folder: Path, **changes: Any) -> Path:
    """A folder as `save_pretrained` leaves it; skips where the installed version has no such class."""
    diffusers = pytest.importorskip("diffusers")
    if not hasattr(diffusers, name):
        pytest.skip(f"diffusers {diffusers.__version__} has no {name}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        getattr(diffusers, name)(**TINY[name] | changes).save_pretrained(folder / name)
    return folder / name
