"""Makes the harness of the other tests known here."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))
