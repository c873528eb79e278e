# SPDX-License-Identifier: Apache-2.0
"""Fast twins of hot torch functions, and the one rule that says when they may run. The plain ones stay the oracle."""

from inlay.kernels.replay import Branch, Replay
from inlay.kernels.rule import compile_halves, may_run
from inlay.kernels.switch import compiles, is_on

__all__ = ["Branch", "Replay", "compile_halves", "compiles", "is_on", "may_run"]
