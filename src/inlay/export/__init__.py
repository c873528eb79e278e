# SPDX-License-Identifier: Apache-2.0
"""A tokenizer in, its parts as ONNX or torch.export files out, each held against PyTorch before it counts."""

from inlay.export.files import FORMATS, ExportConfig, export
from inlay.export.parts import PARTS, Part, build

__all__ = ["FORMATS", "PARTS", "ExportConfig", "Part", "build", "export"]
