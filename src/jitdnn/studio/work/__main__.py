"""python -m jitdnn.studio.work HOME RUN LEASE, started by an executor."""

import sys

from jitdnn.studio.work.worker import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
