# SPDX-License-Identifier: Apache-2.0
"""The paper's tables and figures as named studies that resume, their records, and one report."""
