# SPDX-License-Identifier: Apache-2.0
"""Latent caches of trainers."""
