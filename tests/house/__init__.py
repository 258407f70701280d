"""House rules, as tests."""
