# SPDX-License-Identifier: Apache-2.0
"""The parts of a tokenizer as ONNX or torch.export files, each compared with PyTorch before it is kept."""

from inlay.export.files import FORMATS, ExportConfig, export
from inlay.export.parts import PARTS, Part, build

__all__ = ["FORMATS", "PARTS", "ExportConfig", "Part", "build", "export"]
