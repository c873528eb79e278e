# SPDX-License-Identifier: Apache-2.0
"""The paper as studies, other systems' rules, benchmarks, our own weights' data: what no part of the codec imports."""
