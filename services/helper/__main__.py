"""``python -m services.helper LEARNER_DIR``: started by the node agent, one per learner.

``python -m services.helper --pod [ROOT]``: in a learner's pod, whose volumes are below ROOT (/weft).
"""

import os
import sys
from pathlib import Path

from services.core.runtime import pod_layout
from services.helper.main import main, main_in_pod

if __name__ == "__main__":
    if "WEFT_FAILPOINTS" in os.environ:  # never in production
        from services.core.failpoints.ports import failpoints

        if (points := failpoints("helper")) is not None:
            points.watch_files()
    if sys.argv[1] == "--pod":
        root = Path(sys.argv[2] if len(sys.argv) > 2 else pod_layout.ROOT)
        learner = os.environ[pod_layout.LEARNER_VARIABLE]
        if pod_layout.PROBE_VARIABLE in os.environ:
            from services.helper import probe

            sys.exit(probe.main(root, learner, os.environ[pod_layout.PROBE_VARIABLE]))
        run = int(os.environ.get(pod_layout.RUN_VARIABLE, "1"))
        sys.exit(main_in_pod(root, learner, run))
    sys.exit(main(Path(sys.argv[1])))
