"""Start the control API."""

import sys

from paceline.control_api.main import main

if __name__ == "__main__":
    sys.exit(main())
