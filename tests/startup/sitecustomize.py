"""What worker processes of tests run first, if this folder is in PYTHONPATH."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))

from vision import declare_operators

declare_operators()
