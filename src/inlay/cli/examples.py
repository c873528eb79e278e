# SPDX-License-Identifier: Apache-2.0
"""The examples in each command's help, as one types them. A test runs every one, in this order, in one folder."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {  # command -> lines; what follows # is a remark
    "encode": (
        "inlay encode clip.mp4                                # -> clip.inlay",
        "inlay encode clip.mp4 small.inlay --keep 0.25        # at most a quarter of the cells",
        "inlay encode videos/ --out-dir tokens/ --bits 0.1    # every video below a folder",
        "inlay encode 'videos/*.mp4' --out-dir again/ --json  # one JSON object a line",
        "cat clip.mp4 | inlay encode - piped.inlay --size 64  # from a pipe",
    ),
    "decode": (
        "inlay decode clip.inlay                              # -> clip.decoded.mp4",
        "inlay decode clip.inlay part.mp4 --from 0.5 --to 1   # half a second of it",
        "inlay decode clip.inlay exact.mkv --lossless --fill hold",
        "inlay decode tokens/ --out-dir decoded/              # -> decoded/NAME.decoded.mp4",
    ),
    "info": ("inlay info clip.inlay", "inlay info tokens/ --json                            # one JSON object a line"),
    "verify": ("inlay verify clip.inlay", "inlay verify tokens/ 'again/*.inlay'"),
    "view": (
        "inlay view clip.mp4                                  # -> clip.view.mp4",
        "inlay view clip.mp4 clip.avif --curve curve.png      # for a web page; and the share of kept cells",
        "inlay view clip.mp4 masks.png --tau 0.3 --tau 0.9    # masks of several thresholds",
        "inlay view clip.inlay film.mp4 --original clip.mp4",
    ),
    "demo": (
        "inlay demo                                           # a clip made by code, into demo/",
        "inlay demo --video clip.mp4 --out mine --frames 33",
    ),
    "serve": ("inlay serve --port 7861                              # then open the address that it prints",),
    "tokenize": (
        "inlay tokenize videos/ set/ --keep 0.25              # shards of token files, and a manifest",
        "inlay tokenize videos/ rows/ --format parquet --workers 1 --threads 1",
    ),
    "export": ("inlay export graphs/ --parts mask,lit --format torch --size 64x64",),
    "backbones": ("inlay backbones",),
    "fetch": ("inlay fetch metrics                                  # downloads the networks of LPIPS and FVD",),
    "doctor": ("inlay doctor", "inlay doctor --json"),
    "calibrate": ("inlay calibrate videos/ --side 64 --out mine.profile.json",),
    "compare": (
        "inlay compare clip.mp4 clip.decoded.mp4",
        "inlay compare videos/ decoded/ --metrics psnr,ssim,psnr-video",
    ),
    "eval": (
        "inlay eval videos/ --rule ours,hold,linear --side 64 --metrics psnr,ssim",
        "inlay eval videos/ --side 64 --metrics psnr --out scores/ --report scores.html",
    ),
    "study": (
        "inlay study masks --data-davis videos/ --out study/ --side 64 --metrics psnr",
        "inlay study bits --data-bench videos/ --out study/ --side 64 --metrics psnr  # beside video codecs",
        "inlay study docs --out study/ --page results.md      # a page from what the studies left",
    ),
    "bench": ("inlay bench --sizes 64x64 --frames 9 --stages encode,mask,decode --repeats 1",),
    "cache make": (
        "inlay cache make videos/ latents/ --format musubi-wan --backbone mini --frames 9 --size 96x64  # or wan-2.2",
    ),
    "cache pack": ("inlay cache pack latents/ packed/ --keep 0.5 --verify",),
    "cache unpack": ("inlay cache unpack packed/ restored/",),
    "cache verify": ("inlay cache verify packed/ --against latents/",),
    "train lit": (
        "inlay train lit videos/ --run run/ --preset smoke    # seconds: is everything in place?",
        "inlay train lit --show-preset smoke > mine.toml      # the settings, to be edited",
        "inlay train lit videos/ --run own/ --preset smoke --config mine.toml --steps 2",
    ),
    "train backbone": ("inlay train backbone videos/ --run mini-run/ --preset smoke",),
    "train together": ("inlay train together videos/ --run both-run/ --preset smoke",),
}
