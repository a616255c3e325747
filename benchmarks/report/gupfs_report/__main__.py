"""`python -m gupfs_report`."""

import sys

from gupfs_report.cli import main

sys.exit(main())
