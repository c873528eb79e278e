# SPDX-License-Identifier: Apache-2.0
"""Puts Inlay's last-kept rule in place of EVS in vLLM and SGLang, when the environment variable INLAY_VLM asks.

The servers call the plugins in each of their processes, also in those of people who never asked: without the variable
nothing is imported and nothing is changed. Only the mask is replaced. The count stays the server's own, and the new
mask asks it, so that the two agree whatever the server's formula is.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import os
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

VARIABLE = "INLAY_VLM"
RULES = {"last-kept": "cosine", "last-kept-l1": "l1"}  # value of the variable -> criterion
MASK, COUNT = "compute_retention_mask", "compute_retained_tokens_count"
PARAMETERS = {
    MASK: ["video_embeds", "video_size_thw", "spatial_merge_size", "q"],
    COUNT: ["tokens_per_frame", "num_frames", "q"],
}
VLLM_HOMES = ("vllm.multimodal.video_prune.evs", "vllm.multimodal.evs")  # newest first
SGLANG_HOME = "sglang.srt.multimodal.evs.evs_core"
SGLANG_HOOKS = "sglang.srt.plugins.hook_registry"


class Refusal(Exception):
    """Why the rule cannot be put in place, in one line."""


def vllm_plugin() -> None:
    """Entry point of `vllm.general_plugins`."""
    install("vllm", put_into_vllm)


def sglang_plugin() -> None:
    """Entry point of `sglang.srt.plugins`."""
    install("sglang", put_into_sglang)


def install(server: str, put: Callable[[str], str]) -> None:
    """Put the rule in place if the variable asks; otherwise, or with a warning, leave the server as it is."""
    rule = os.environ.get(VARIABLE, "")
    if not rule:
        return
    log = logging.getLogger(f"{server}.inlay")  # so that it appears in the server's own log
    try:
        if rule not in RULES:
            raise Refusal(f"{VARIABLE} is {rule!r}; write one of {', '.join(RULES)}")
        home = put(RULES[rule])
    except Refusal as refusal:
        log.warning("inlay: %s; nothing is changed, EVS prunes as before", refusal)
    else:
        log.info("inlay: %s replaces %s.%s", rule, home, MASK)


def put_into_vllm(criterion: str) -> str:
    """Set the mask where it is defined and in every module that has imported it by name."""
    home = first_of(VLLM_HOMES)
    original = function_of(home, MASK)
    if hasattr(original, "inlay_criterion"):  # vLLM may load plugins more than once
        return home.__name__
    replacement = mask_for(home, criterion)
    for module in [m for m in sys.modules.values() if isinstance(m, ModuleType)]:
        for name in [name for name, value in vars(module).items() if value is original]:
            setattr(module, name, replacement)
    return home.__name__


def put_into_sglang(criterion: str) -> str:
    """Register the mask with SGLang's hooks, which SGLang applies when all plugins have been called."""
    home, hooks = first_of((SGLANG_HOME,)), first_of((SGLANG_HOOKS,))
    try:
        register, kind = hooks.HookRegistry.register, hooks.HookType.REPLACE
    except AttributeError as error:
        raise Refusal(f"{hooks.__name__} of {version_of(hooks)} has no hook that replaces a function") from error
    register(f"{home.__name__}.{MASK}", mask_for(home, criterion), kind)
    return home.__name__


def mask_for(home: ModuleType, criterion: str) -> Callable[..., Tensor]:
    """The new mask, with the signature of the one at home and with the count at home."""
    original, count_of = function_of(home, MASK), function_of(home, COUNT)
    rule = first_of(("inlay.vlm",)).compute_retention_mask

    @functools.wraps(original)
    def compute_retention_mask(
        video_embeds: Tensor, video_size_thw: Tensor | tuple[int, int, int], spatial_merge_size: int, q: float
    ) -> Tensor:
        return rule(video_embeds, video_size_thw, spatial_merge_size, q, criterion=criterion, count_of=count_of)

    vars(compute_retention_mask)["inlay_criterion"] = criterion
    return compute_retention_mask


def first_of(names: tuple[str, ...]) -> ModuleType:
    """The first of these modules that can be imported."""
    for name in names:
        try:
            return importlib.import_module(name)
        except Exception as error:  # a package half installed fails in any way, and must not take the server with it
            reason = " ".join(str(error).split())
    raise Refusal(f"{version_of(names[0])} has no {' or '.join(names)} that opens ({reason})")


def function_of(home: ModuleType, name: str) -> FunctionType:
    """A function that takes what it took when this plugin was written."""
    found = getattr(home, name, None)
    if not isinstance(found, FunctionType):
        raise Refusal(f"{home.__name__} of {version_of(home)} has no function {name}")
    parameters = list(inspect.signature(found).parameters)
    if parameters != PARAMETERS[name]:
        raise Refusal(
            f"{home.__name__}.{name} of {version_of(home)} takes ({', '.join(parameters)}), this plugin knows it with"
            f" ({', '.join(PARAMETERS[name])})"
        )
    return found


def version_of(module: ModuleType | str) -> str:
    """`vllm 0.32.0`: the package a module is of, and its version if it has one."""
    package = (module if isinstance(module, str) else module.__name__).split(".")[0]
    version = getattr(sys.modules.get(package), "__version__", "")
    return f"{package} {version}".strip()
