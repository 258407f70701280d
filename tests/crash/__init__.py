"""Many processes, one store: kills, forks, signals, clocks, and histories that must make sense."""
