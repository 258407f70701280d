"""The embedded engine: shared segments over an LMDB base tier, for any number of processes on one machine."""
