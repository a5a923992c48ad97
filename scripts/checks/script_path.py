"""Import this module first in every script of this folder: it lets them import the packages of the folder above."""

import os
import sys

FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # scripts/
sys.path.append(FOLDER)
