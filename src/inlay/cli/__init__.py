# SPDX-License-Identifier: Apache-2.0
"""Words on a command line in, files and one result out. The only room that talks to a person."""
