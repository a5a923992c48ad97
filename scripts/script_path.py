"""Import this module first in every script of this folder: it moves the folder from the front of sys.path to the end.

The folder holds tokenize.py, a name that users know. At the front of sys.path it would hide the standard library's
`tokenize`, which torch and many other libraries import. The packages of this folder can still be imported.
"""

import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != FOLDER] + [FOLDER]
