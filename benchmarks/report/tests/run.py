#!/usr/bin/env python3
"""Tests of the pages: `make test-report`. They need the libraries of report/requirements.txt. With SAMPLE set, as CI
has it, they take some of the pages, and a browser must be there."""

import os
import sys
import unittest

if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:0] = [here, os.path.dirname(here), os.path.join(os.path.dirname(os.path.dirname(here)), "tests")]
    loader = unittest.TestLoader()
    suite = loader.loadTestsFromNames(sys.argv[1:]) if sys.argv[1:] else loader.discover(here, top_level_dir=here)
    result = unittest.TextTestRunner(verbosity=1).run(suite)
    for test, why in result.skipped:
        print(f"not tested: {test.id()}: {why}")
    sys.exit(0 if result.wasSuccessful() and not (result.skipped and os.environ.get("SAMPLE")) else 1)
