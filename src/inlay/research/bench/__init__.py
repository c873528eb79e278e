# SPDX-License-Identifier: Apache-2.0
"""A tokenizer and sizes in, warm timings of every stage out, beside what the machine could do at best."""

from inlay.research.bench.config import SIZES, BenchConfig
from inlay.research.bench.run import bench, table

__all__ = ["SIZES", "BenchConfig", "bench", "table"]
