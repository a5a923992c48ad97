#!/usr/bin/env python3
"""Puts the output of `distill --help-config` into docs/configuration.md; run it after a key was added or changed."""

import subprocess

from program import ROOT, distill_program

page = ROOT / "docs" / "configuration.md"
output = subprocess.run([distill_program(), "--help-config"], capture_output=True, text=True, check=True).stdout
before, found, _ = page.read_text().partition("The output of `distill --help-config`:\n")
assert found, f"{page}: the line above the reference is gone"
page.write_text(before + found + "\n```\n" + output + "```\n")
