#!/usr/bin/env python3
"""All tests of the benchmark programs: `make test-benchmarks`. Arguments are names, as unittest takes them."""

import os
import sys
import unittest

if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, here)
    loader = unittest.TestLoader()
    names = sys.argv[1:]
    suite = loader.loadTestsFromNames(names) if names else loader.discover(here, top_level_dir=here)
    result = unittest.TextTestRunner(verbosity=1).run(suite)
    # Nothing is skipped: what cannot run has not been tested.
    sys.exit(0 if result.wasSuccessful() and not result.skipped and result.testsRun > 0 else 1)
