"""``python -m services.helper LEARNER_DIR``: started by the node agent, one per learner."""

import sys
from pathlib import Path

from services.helper.main import main

if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
