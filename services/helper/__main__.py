"""``python -m services.helper LEARNER_DIR``: started by the node agent, one per learner."""

import os
import sys
from pathlib import Path

from services.helper.main import main

if __name__ == "__main__":
    if "WEFT_FAILPOINTS" in os.environ:  # never in production
        from services.core.failpoints.ports import failpoints

        if (points := failpoints("helper")) is not None:
            points.watch_files()
    sys.exit(main(Path(sys.argv[1])))
