# SPDX-License-Identifier: Apache-2.0
"""Metrics of videos and tokens: quality, flicker, cost, each with the convention it follows and an interval."""

from __future__ import annotations

from inlay.measure.base import MeasureConfig, Metric, Score
from inlay.measure.flicker import FLOWS
from inlay.measure.fvd import frechet_distance, kernel_distance, kernel_interval
from inlay.measure.meter import Meter, Report, compare, measure
from inlay.measure.statistics import bootstrap_interval, paired_comparison
from inlay.measure.table import METRICS
from inlay.measure.tokens import bits_per_pixel, count_tokens
from inlay.measure.weights import fetch_metrics, find_weights

__all__ = [
    "FLOWS",
    "METRICS",
    "MeasureConfig",
    "Meter",
    "Metric",
    "Report",
    "Score",
    "bits_per_pixel",
    "bootstrap_interval",
    "compare",
    "count_tokens",
    "fetch_metrics",
    "find_weights",
    "frechet_distance",
    "kernel_distance",
    "kernel_interval",
    "measure",
    "paired_comparison",
]
