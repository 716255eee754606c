"""`python -m paceline.operator`."""

import sys

from paceline.operator.main import main

sys.exit(main())
