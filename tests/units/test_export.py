# SPDX-License-Identifier: Apache-2.0
"""Graphs for other runtimes: ONNX Runtime and torch.export give what PyTorch gives."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from inlay.cli.main import main
from inlay.errors import ConfigError, InlayError, MissingError, UsageError
from inlay.export import PARTS, ExportConfig, Part, build, export
from inlay.export import files as files_module
from inlay.fill import Filler, Lit, LitConfig
from inlay.masking import MaskConfig, keep_mask
from inlay.tokenizer import Tokenizer

needs_onnx = pytest.mark.skipif(
    find_spec("onnxruntime") is None or find_spec("onnxscript") is None,
    reason="onnxruntime and onnxscript are not installed; pip install '.[export]'",
)
SMALL = {"height": 24, "width": 40, "frames": 9}


@pytest.fixture(scope="module")
def small(tiny_mini) -> Tokenizer:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    lit = Lit.build(LitConfig(width=64, heads=2, blocks=2, window=4)).eval().requires_grad_(False)
    torch.nn.init.normal_(lit.out_proj.weight)
    return Tokenizer(tiny_mini, filler=Filler({"lit": lit}))


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_onnx_runtime_gives_pytorchs_answer(small: Tokenizer, tmp_path: Path, part: str) -> None:
    record = export(small, tmp_path, ExportConfig(parts=(part,), **SMALL))
    row = record["parts"][part]
    assert row["same"] and row["relative"] < 1e-4
    assert Path(row["file"]).stat().st_size == row["bytes"] > 1000


@needs_onnx
@pytest.mark.slow
def test_networks_of_the_shipped_size_at_256_pixels(tmp_path: Path) -> None:
    from inlay.backbones.mini import Mini
    from inlay.fill import plus

    torch.manual_seed(0)
    mini = Mini().eval().requires_grad_(False)
    lit = Lit.build(replace(plus(), channels=mini.spec.channels)).eval().requires_grad_(False)
    torch.nn.init.normal_(lit.out_proj.weight, std=0.02)
    tokenizer = Tokenizer(mini, filler=Filler({"lit": lit}))
    record = export(tokenizer, tmp_path, ExportConfig(frames=5))
    assert all(row["same"] for row in record["parts"].values()) and set(record["parts"]) == set(PARTS)


@needs_onnx
def test_the_mask_in_onnx_is_bit_for_bit_ours_for_other_numbers(small: Tokenizer, tmp_path: Path) -> None:
    import onnxruntime

    config = ExportConfig(parts=("mask",), height=24, width=24, frames=9)
    path = Path(export(small, tmp_path, config)["parts"]["mask"]["file"])
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    z = torch.randn(1, 16, 3, 3, 3).cumsum(2)
    for tau in (0.4, 0.9, 1.3):
        (keep,) = session.run(None, {"latents": z.numpy(), "tau": torch.tensor(tau).numpy()})
        assert torch.equal(torch.from_numpy(keep), keep_mask(z, MaskConfig(tau=tau)))


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_torch_export_reads_back(small: Tokenizer, tmp_path: Path, part: str) -> None:
    record = export(small, tmp_path, ExportConfig(parts=(part,), form="torch", **SMALL))
    assert record["parts"][part]["same"]


def test_graphs_compute_what_the_tokenizer_does(small: Tokenizer) -> None:
    shape = ExportConfig(**SMALL)
    for name, plain in (("encoder", small.backbone.encode), ("decoder", small.backbone.decode)):
        part: Part = build(small, name, shape)
        (given,) = part.inputs.values()
        torch.testing.assert_close(part(), plain(given), rtol=1e-4, atol=1e-4)
    mask = build(small, "mask", shape)
    z, tau = mask.inputs.values()
    assert torch.equal(mask(), keep_mask(z, MaskConfig(tau=float(tau))))
    assert 0.15 < mask().float().mean() < 0.95, "the sample exercises both answers"


def test_refusals(small: Tokenizer, tiny_mini, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError, match="unknown part 'lits'"):
        ExportConfig(parts=("lits",))
    with pytest.raises(UsageError, match="unknown format"):
        ExportConfig(form="tflite")
    with pytest.raises(ConfigError, match="at least one part"):
        ExportConfig(frames=0)
    with pytest.raises(MissingError, match="no LIT weights for mini-untrained; leave the part lit out"):
        export(Tokenizer(tiny_mini), tmp_path, ExportConfig(parts=("lit",), **SMALL))
    (tmp_path / "mini-untrained.mask.onnx").write_bytes(b"x")
    with pytest.raises(UsageError, match="exists already"):
        export(small, tmp_path, ExportConfig(parts=("mask",), **SMALL))
    monkeypatch.setitem(files_module.FORMATS, "onnx", lambda part, path: path.write_bytes(b"") or part() * 1.1)
    with pytest.raises(InlayError, match=r"differs from PyTorch by .* not kept"):
        export(small, tmp_path, ExportConfig(parts=("decoder",), **SMALL))
    with pytest.raises(MissingError, match="no LIT weights"):
        export(Tokenizer(tiny_mini), tmp_path, ExportConfig(parts=("encoder", "lit"), **SMALL))
    assert [p.name for p in tmp_path.iterdir()] == ["mini-untrained.mask.onnx"], "nothing half done is left"


@needs_onnx
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["export", str(tmp_path / "graphs"), "--parts", "mask", "--size", "16x16", "--frames", "5"]
    assert main([*words, "--backbone", "mini-untrained"]) == 0
    assert "equal to PyTorch" in capsys.readouterr().out
    assert (tmp_path / "graphs" / "mini-untrained.mask.onnx").is_file()
    assert main([*words, "--backbone", "mini-untrained"]) == 2
    (tmp_path / "file").write_text("x")
    assert main(["export", str(tmp_path / "file")]) == 6
