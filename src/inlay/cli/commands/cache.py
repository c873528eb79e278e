# SPDX-License-Identifier: Apache-2.0
"""`inlay cache`: latent caches of trainers to tokens and back, and videos to such caches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from inlay.cli import options
from inlay.cli.help import PanelCommand, PanelGroup
from inlay.cli.screen import Screen
from inlay.errors import TokenFileError, UsageError

if TYPE_CHECKING:
    from inlay.caches.restore import VerifyResult
    from inlay.tokenizer import Tokenizer

app = typer.Typer(
    cls=PanelGroup,
    help="Pack latent caches of trainers, unpack, make them.",
    no_args_is_help=True,
)

FORMAT_NAMES = "musubi-wan, musubi-hv, musubi-hv15, diffsynth, simpletuner, ltx, fastvideo"
Cache = Annotated[str, typer.Argument(metavar="CACHE", help="The folder of a trainer's cache.")]
Packed = Annotated[str, typer.Argument(metavar="PACKED", help="A folder that inlay cache pack wrote.")]
Out = Annotated[str, typer.Argument(metavar="OUT", help="A folder of its own.")]
Format = Annotated[str, typer.Option("--format", metavar="NAME", help=f"Of the cache: auto, {FORMAT_NAMES}.")]
NewFormat = Annotated[str, typer.Option("--format", metavar="NAME", help=f"Of the cache: {FORMAT_NAMES}.")]
Tau = Annotated[
    float | None,
    typer.Option("--tau", metavar="TAU", help="Keep a cell that changed by TAU deviations.  [default: by --loss]"),
]
MostLoss = Annotated[
    float | None,
    typer.Option("--loss", metavar="X", help="Latents come back within X of their length, on average.  [default: 0.1]"),
]
LatentCriterion = Annotated[
    str, typer.Option("--criterion", metavar="NAME", help="Distance: latent-l1, latent-l2, latent-cosine.")
]
PlainFill = Annotated[str, typer.Option("--fill", metavar="NAME", help="How dropped cells come back: hold or linear.")]
UnpackFill = Annotated[str, typer.Option("--fill", metavar="NAME", help="auto (what pack was told), hold or linear.")]
ShardFiles = Annotated[
    int,
    typer.Option(
        "--shard-files", metavar="N", show_default=False, help="Files in a shard.  [default: by their number]"
    ),
]
Workers = Annotated[int, typer.Option("--workers", metavar="N", help="Processes; 0: one for each core.")]
Verify = Annotated[bool, typer.Option("--verify", help="Then read everything back, and compare it with CACHE.")]
Against = Annotated[
    str | None, typer.Option("--against", metavar="CACHE", help="Compare with the cache that was packed.")
]
Decoder = Annotated[
    str | None,
    typer.Option("--backbone", metavar="NAME", help="The model of the latents: some clips are decoded, for decibels."),
]
FrameCount = Annotated[int, typer.Option("--frames", metavar="N", help="Of a clip at most: the first of each video.")]
Text = Annotated[
    str | None,
    typer.Option(
        "--text", metavar="DIR", help="Text embeddings [L, D], named like the videos: .safetensors, .pt, .npy."
    ),
]


@dataclass(frozen=True, kw_only=True)
class Packing:
    """How the cells of a cache are chosen and stored: fields of the library's `PackConfig`, by their names there."""

    format: Format = "auto"
    loss: MostLoss = None
    tau: Tau = None
    keep: options.Keep = None
    tokens: options.TokenCount = None
    bits: options.Bits = None
    exact: options.Exact = False
    criterion: LatentCriterion = "latent-l1"
    reference: options.Reference = "last-kept"
    precision: options.Precision = "q8-quick"
    fill: PlainFill = "hold"
    shard_files: ShardFiles = 0


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """The decoder that tells decibels."""

    backbone: Decoder = None
    weights: options.Weights = None
    device: options.Device = "auto"

    def load(self) -> Tokenizer | None:
        """The tokenizer, or None where no backbone is named."""
        if self.backbone is None:
            if self.weights is not None:
                raise UsageError("weights are those of a backbone; name it as well", about="backbone")
            return None
        from inlay.tokenizer import Tokenizer

        return Tokenizer.from_pretrained(self.backbone, weights=self.weights, device=self.device)


def pack(
    cache: Cache,
    out: Out,
    *,
    packing: Packing,
    workers: Workers = 1,
    verify: Verify = False,
    measuring: Measuring,
    screen: Screen,
) -> None:
    """Pack a cache into shards of tokens.

    No video and no network is needed; what is no latent is carried along untouched. Run the same command again to go on
    after an interruption.
    """
    from inlay.caches import PackConfig, pack_cache

    config, tokenizer = PackConfig(**vars(packing)), measuring.load()  # a wrong name shows before the work
    if tokenizer is not None and not verify:
        raise UsageError("clips are decoded when all is read back; ask for that as well", about="verify")
    with screen.bar("packing (files)", "{task.fields[mb]:.0f} MB", time_left=True, mb=0.0) as update:
        result = pack_cache(
            cache, out, config, workers=workers,
            watch=lambda done, total, size: update(total=total, completed=done, mb=size / 1e6),
        )  # fmt: skip
    record, rows = result.record(), result.rows()
    ok = True
    if verify:
        checked = _verified(out, cache, tokenizer, screen)
        ok = not checked.problems
        record, rows = {**record, "verified": checked.record()}, [*rows, *checked.rows()]
    screen.show(record, rows)
    if not ok:
        raise typer.Exit(TokenFileError.exit_code)


def unpack(packed: Packed, out: Out, *, fill: UnpackFill = "auto", screen: Screen) -> None:
    """Write the files of a packed cache again.

    Names, keys and everything but the latents are as they were.
    """
    from inlay.caches import unpack_cache

    with screen.bar("unpacking (files)", time_left=True) as update:
        result = unpack_cache(packed, out, fill=fill, watch=_counting(update))
    screen.show(result.record(), result.rows())


def verify(packed: Packed, *, against: Against = None, measuring: Measuring, screen: Screen) -> None:
    """Read a packed cache back, all of it.

    With --against, compare it with the cache it was made of. The exit code is 4 if something is damaged or differs.
    """
    result = _verified(packed, against, measuring.load(), screen)
    screen.show(result.record(), result.rows())
    if result.problems:
        raise typer.Exit(TokenFileError.exit_code)


def make(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Videos, as inlay tokenize takes them.")],
    out: Out,
    *,
    format: NewFormat,
    frames: FrameCount = 81,
    size: options.Size = "keep",
    text: Text = None,
    model: options.Model,
    screen: Screen,
) -> None:
    """Encode videos into a trainer's cache.

    Run the same command again to go on after an interruption.
    """
    from inlay.caches import MakeConfig, make_cache
    from inlay.caches.table import FORMATS

    config = MakeConfig(format=format, frames=frames, size=size, text=text)
    model.check()
    tokenizer = model.load()
    note = FORMATS[format].stranger(tokenizer.spec.name, tokenizer.spec.channels)
    if note:
        screen.note(note)  # before hours of work
    if text is not None and not FORMATS[format].takes_text:
        screen.note(f"{FORMATS[format].about}, keeps text in files that its own tool makes; --text is not used")
    with screen.bar("encoding (files)", time_left=True) as update:
        result = make_cache(source, out, config, tokenizer, watch=_counting(update))
    if result.note and not note:
        screen.note(result.note)
    screen.show(result.record(), result.rows())


def _verified(place: str, against: str | None, tokenizer: Tokenizer | None, screen: Screen) -> VerifyResult:
    from inlay.caches import verify_cache

    with screen.bar("verifying (files)", time_left=True) as update:
        return verify_cache(place, against=against, tokenizer=tokenizer, watch=_counting(update))


def _counting(update: Callable[..., None]) -> Callable[[int, int], None]:
    return lambda done, total: update(total=total, completed=done)


COMMANDS: dict[str, Callable[..., None]] = {"pack": pack, "unpack": unpack, "verify": verify, "make": make}
for _name, _command in COMMANDS.items():
    app.command(_name, cls=PanelCommand)(options.with_flags(_command))
