# SPDX-License-Identifier: Apache-2.0
"""Warm timings of every stage, beside what the machine could do at best."""

from inlay.research.bench.before import compare, read_record
from inlay.research.bench.config import SIZES, BenchConfig
from inlay.research.bench.run import bench, table

__all__ = ["SIZES", "BenchConfig", "bench", "compare", "read_record", "table"]
