# SPDX-License-Identifier: Apache-2.0
"""The paper as studies, other systems' rules, benchmarks: what uses the codec and is used by no part of it."""
