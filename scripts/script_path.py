"""Import this module first in every script: it moves scripts/ from the front of sys.path to the end, or adds it there.

The folder holds tokenize.py, a name that users know. At the front of sys.path it would hide the standard library's
`tokenize`, which torch and many other libraries import. The packages of scripts/ can be imported from its subfolders,
too: script_path.py of benches, checks and studies are links to this file.
"""

import os
import sys

FOLDER = os.path.dirname(os.path.realpath(__file__))
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != FOLDER] + [FOLDER]
