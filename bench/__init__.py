"""Named workloads, run on Ephemera and its peers with the same keys: `python -m bench`."""
