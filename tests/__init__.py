"""The tests: a mirror of src, and the suites that cut across it."""
