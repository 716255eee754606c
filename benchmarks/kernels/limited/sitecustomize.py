"""Run by every Python of a benchmark's engine: limits what torch, and so vLLM, sees of the processor."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from instructions import LIMIT_VARIABLE, InstructionSet, limit_torch

limit_torch(InstructionSet(os.environ[LIMIT_VARIABLE]))
